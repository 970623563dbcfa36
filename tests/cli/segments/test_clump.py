"""`compactor segments plan --clump` and `compact --clump` as a user meets them: plan, refusals, receipts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml

from cli.commands import Run
from compaction.segments.clump.moves import read_moves
from compaction.segments.commit import fence
from compaction.segments.generate import corrupt_entry, generate_log
from compaction.segments.snapshot.directories import write_snapshot
from support.stores.log_owner import live_payloads, under_the_maps


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Five segments of 32 entries of 50 bytes; every 4th of 1..128 is live; the fifth segment is the newest."""
    directory = tmp_path / "log"
    generate_log(directory, segments=5, entries_per_segment=32, payload_bytes=50, seed=1, sync=False)
    return directory


def test_a_plan_says_what_and_what_not_and_changes_nothing(run: Run, log: Path) -> None:
    before = sorted(log.rglob("*"))
    plan = json.loads(run("plan", log, "--clump", "--budget", "500", "-o", "json").stdout)
    assert (plan["entries"], plan["rangesBefore"], plan["rangesAfter"]) == (0, 32, 32)
    assert [left["reason"] for left in plan["leftOut"]] == ["OverBudget", "TooLittleGain"]
    plan = json.loads(run("plan", log, "--clump", "--max-entries", "20", "-o", "json").stdout)
    assert [(part["entries"], part["first"], part["last"]) for part in plan["segments"]] == [
        (20, 161, 180),
        (12, 181, 192),
    ]
    assert (plan["entries"], plan["payloadBytes"], plan["rangesAfter"], plan["refused"]) == (32, 1600, 1, None)
    assert (plan["freedSegments"], plan["leftOut"]) == (4, [])
    text = run("plan", log, "--clump").stdout
    assert "Live:        32 entries in 32 ranges" in text
    assert "Afterwards:  1 range at the owner's next snapshot" in text
    assert yaml.safe_load(run("plan", log, "--clump", "-o", "yaml").stdout)["entries"] == 32
    assert sorted(log.rglob("*")) == before


def test_a_plan_says_what_would_refuse_it(run: Run, log: Path) -> None:
    (log.parent / "0001.wal").write_bytes(b"RAWA\x01" + log.name.encode())
    assert "but it would be refused now" in run("plan", log, "--clump").stdout
    assert "0001.wal" in json.loads(run("plan", log, "--clump", "-o", "json").stdout)["refused"]


def test_nobody_said_that_the_owner_is_stopped(run: Run, log: Path) -> None:
    before = sorted(log.rglob("*"))
    result = run("compact", log, "--clump")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {log}: its live entries are not re-written at the head: the log's owner")
    assert "--owner-stopped" in result.stderr
    assert sorted(log.rglob("*")) == before


def test_receipts_name_the_maps(run: Run, log: Path) -> None:
    before = live_payloads(log)
    done = json.loads(run("compact", log, "--clump", "--owner-stopped", "--max-entries", "20", "-o", "json").stdout)
    assert (done["entries"], done["payloadBytes"], done["rangesBefore"], done["rangesAfter"]) == (32, 1600, 32, 1)
    assert [receipt["map"] for receipt in done["receipts"]] == [
        "00000000000000000161.moves",
        "00000000000000000181.moves",
    ]
    assert [moves.receipt.job for moves in read_moves(log)] == [done["job"]] * 2
    assert under_the_maps(log, before) == before
    assert fence.read(log).claimed(done["job"]) is None
    again = run("compact", log, "--clump", "--owner-stopped")
    assert (again.exit_code, again.stdout) == (0, "nothing to re-write\n")
    assert "Live:      nothing" in run("inspect", log).stdout


def test_it_keeps_to_its_bytes_per_second(run: Run, log: Path) -> None:
    before, began = live_payloads(log), time.monotonic()
    (receipt,) = json.loads(
        run("compact", log, "--clump", "--owner-stopped", "--max-bytes-per-second", "5k", "-o", "json").stdout
    )["receipts"]
    moved = receipt["payloadBytes"] + 2 * receipt["outputBytes"]
    assert time.monotonic() - began >= moved / 5000 >= 0.5
    assert under_the_maps(log, before) == before


def test_table_of_receipts(run: Run, log: Path) -> None:
    write = run("compact", log, "--clump", "--owner-stopped", "--budget", "1000")
    lines = write.stdout.splitlines()
    assert lines[0].split()[:5] == ["SEGMENT", "FIRST", "LAST", "ENTRIES", "BYTES"]
    assert lines[1].split()[0] == "0000000000000006.segment"
    assert "20 entries re-written, 1000; live ranges 32 before, 13 after" in lines
    assert lines[-1].startswith("OverBudget")


def test_a_corrupt_entry_is_named(run: Run, log: Path) -> None:
    damaged = corrupt_entry(log, segment=2, record=0)
    result = run("compact", log, "--clump", "--owner-stopped")
    assert result.exit_code == 1
    assert f"{damaged.file}: corrupt entry at index {damaged.index}, offset" in result.stderr
    assert read_moves(log) == ()


def test_wrong_usage_and_wrong_places(run: Run, log: Path, tmp_path: Path) -> None:
    assert run("compact", tmp_path / "absent", "--clump").exit_code == 2
    assert run("compact", log, "--clump", "--shorter-than", "1").exit_code == 2
    (tmp_path / "empty").mkdir()
    result = run("compact", tmp_path / "empty", "--clump", "--owner-stopped")
    assert (result.exit_code, "not a segment log directory" in result.stderr) == (1, True)
    assert list((tmp_path / "empty").iterdir()) == []
    write_snapshot(log, index=150, term=9, live=None, sync=False)
    result = run("plan", log, "--clump")
    assert (result.exit_code, "unknown (not empty)" in result.stderr) == (1, True)


@pytest.mark.parametrize("command", ["plan", "compact"])
def test_each_option_belongs_to_a_clump_or_not(run: Run, log: Path, command: str) -> None:
    before = sorted(log.rglob("*"))
    for option in (("--owner-reads-maps",), ("--shorter-than", "3"), ("--min-ranges", "3"), ("--budget", "9")):
        result = run(command, log, *option)
        assert (result.exit_code, f"{option[0]} needs --clump" in result.stderr) == (2, True), option
    others = [("--snapshot", "9"), ("--live", "1"), ("--wal-dir", log), ("--max-sources", "2")]
    others += [("--when-indexes-missing", "TreatAsEmpty"), *([("--phase", "1")] if command == "compact" else [])]
    for name, value in others:
        result = run(command, log, "--clump", name, value)
        assert (result.exit_code, f"{name} cannot be used with --clump" in result.stderr) == (2, True), name
    assert sorted(log.rglob("*")) == before


def test_a_half_done_log_is_not_planned(run: Run, log: Path) -> None:
    (log / "0000000000000001.compacting").write_bytes(b"torn")
    result = run("plan", log, "--clump")
    assert (result.exit_code, f"`compactor segments sweep {log} --apply` first" in result.stderr) == (1, True)


def test_a_sweep_names_what_is_decided_when_it_is_settled(run: Run, log: Path) -> None:
    (log / "0000000000000006.clump").write_bytes(b"torn")
    assert run("sweep", log).stdout.splitlines()[0] == "would finish or undo: 0000000000000006.clump"
    assert json.loads(run("sweep", log, "-o", "json").stdout)["undecided"] == ["0000000000000006.clump"]
    assert run("sweep", log, "--apply").stdout.splitlines()[0] == "discarded: 0000000000000006.clump"
    assert json.loads(run("sweep", log, "-o", "json").stdout)["undecided"] == []
