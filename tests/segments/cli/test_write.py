"""`compactor segments plan`, `compact`, `sweep` as a user meets them."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import yaml

from compaction.segments.clump.moves import read_moves
from compaction.segments.commit import commit, fence
from compaction.segments.format.names import group_sources, parse_compacting
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.generate import corrupt_entry, generate_log
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.faults.sudden_death import DyingFilesystem, SuddenDeath
from support.segments.log_owners import live_payloads, under_the_maps
from support.segments.segment_logs import Run, compact_log, content, regular


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Overwritten indexes: two segments are dead, the last one is the newest."""
    directory = tmp_path / "log"
    generate_log(directory, pattern="overwritten", segments=9, entries_per_segment=32, payload_bytes=64, sync=False)
    return directory


def test_plan_names_every_segment_in_three_formats(run: Run, log: Path) -> None:
    planned = json.loads(run("plan", log, "-o", "json").stdout)
    named = [n for g in planned["groups"] for n in g["sources"] + g["carried"]]
    named += [u["segment"] for u in planned["unreferenced"]] + [left["segment"] for left in planned["leftAlone"]]
    assert sorted(named) == sorted(p.name for p in log.glob("*.segment"))
    assert yaml.safe_load(run("plan", log, "-o", "yaml").stdout) == planned
    table = run("plan", log).stdout
    assert all(name in table for name in named)
    assert "NewestSegment" in table
    assert not (log / fence.FENCE_FILE).exists()


def test_compact_prints_receipts_and_content_stays(run: Run, log: Path) -> None:
    before, planned = content(log), json.loads(run("plan", log, "-o", "json").stdout)
    result = json.loads(run("compact", log, "-o", "json").stdout)
    assert result["failures"] == []
    assert result["bytesReclaimed"] == planned["debtBytes"]
    for receipt in result["receipts"]:
        assert receipt["fingerprintBefore"] == receipt["fingerprintAfter"]
    assert content(log) == before
    assert fence.read(log).claimed(result["job"]) is None
    assert run("compact", log).stdout == "nothing to compact\n"
    replaced = sorted(n for r in result["receipts"] for n in r["replaced"])
    dead = sorted(u["segment"] for u in result["unreferenced"])
    shown = json.loads(run("sweep", log, "--grace", "0", "-o", "json").stdout)
    assert (shown["applied"], shown["waits"], shown["refused"]) == (False, [], None)
    assert all((log / name).exists() for name in replaced)
    done = json.loads(run("sweep", log, "--apply", "--grace", "0", "-o", "json").stdout)
    assert sorted(done["swept"]["deleted"]) == sorted([*replaced, *dead]) == sorted(shown["swept"]["deleted"])
    assert done["swept"]["bytesReclaimed"] == shown["swept"]["bytesReclaimed"]
    assert (done["swept"]["blocked"], done["swept"]["waiting"]) == ([], 0)
    assert not any((log / name).is_symlink() for name in replaced)
    assert content(log) == before


def test_a_compaction_keeps_to_its_bytes_per_second(run: Run, log: Path) -> None:
    before, began = content(log), time.monotonic()
    result = json.loads(run("compact", log, "--max-bytes-per-second", "10k", "-o", "json").stdout)
    seconds = time.monotonic() - began
    moved = sum(2 * receipt["bytesAfter"] for receipt in result["receipts"])
    assert moved > 5000
    assert seconds >= moved / 10_000
    assert content(log) == before


def test_compact_table_shows_the_receipt(run: Run, log: Path) -> None:
    lines = run("compact", log).stdout.splitlines()
    assert lines[0].split()[:4] == ["OUTPUT", "REPLACED", "ENTRIES", "BEFORE"]


def test_a_sweep_shows_what_waits_until_when(run: Run, log: Path) -> None:
    assert run("sweep", log).stdout == (
        "0 names to delete, 0; 0 wait for their grace; nothing is changed without --apply\n"
    )
    result = json.loads(run("compact", log, "-o", "json").stdout)
    names = {n for r in result["receipts"] for n in r["replaced"]} | {u["segment"] for u in result["unreferenced"]}
    before = sorted(log.rglob("*"))
    shown = json.loads(run("sweep", log, "-o", "json").stdout)
    assert {item["name"] for item in shown["waits"]} == names
    assert all(item["since"] < item["due"] for item in shown["waits"])
    assert (shown["swept"]["deleted"], shown["swept"]["waiting"]) == ([], len(names))
    table = run("sweep", log).stdout.splitlines()
    assert table[0].split() == ["NAME", "ACTION", "BYTES", "DETAIL"]
    assert all(line.split()[1:4:2] == ["wait", "until"] for line in table[1:-1])
    assert table[-1].startswith(f"0 names to delete, 0; {len(names)} wait for their grace")
    due = run("sweep", log, "--grace", "0").stdout.splitlines()
    assert all(line.split()[1] == "delete" for line in due[1:-1])
    assert due[-1].startswith(f"{len(names)} names to delete, ")
    waiting = run("sweep", log, "--apply").stdout.splitlines()
    assert waiting == ["nothing is half-done", f"swept: 0 names deleted, 0; {len(names)} wait for their grace"]
    assert sorted(log.rglob("*")) == before


def test_what_is_settled_is_shown_when_the_sweep_fails(run: Run, log: Path) -> None:
    assert run("compact", log).exit_code == 0
    (log / "0000000000000001.compacting").write_bytes(b"torn")
    (log / "0000000000000001.job.1.partial").touch()
    newest = sorted(path for path in log.glob("*.segment") if not path.is_symlink())[-1]
    newest.write_bytes(b"RASX" + newest.read_bytes()[4:])
    for options, settled in (((), "would undo"), (("--apply",), "discarded")):
        result = run("sweep", log, "--grace", "0", *options)
        assert result.exit_code == 1
        assert result.stdout.splitlines()[0] == f"{settled}: 0000000000000001"
        assert newest.name in result.stderr


def test_phases_one_by_one(run: Run, log: Path) -> None:
    before = content(log)
    first = json.loads(run("compact", log, "--phase", "1", "-o", "json").stdout)
    assert first["receipts"] == []
    assert first["unreferenced"]
    assert all(item["reason"] == "Overwritten" for item in first["unreferenced"])
    second = json.loads(run("compact", log, "--phase", "3", "-o", "json").stdout)
    assert second["unreferenced"] == []
    assert second["receipts"]
    assert content(log) == before


def test_a_log_without_snapshot_needs_snapshot_and_live(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=10) as writer:
        for index in range(1, 41):
            writer.append(index, 1, b"x" * 50)
    assert "NoSnapshot" in run("plan", directory).stdout
    assert run("plan", directory, "--live", "1-5").exit_code == 2
    unknown = run("plan", directory, "--snapshot", "30")
    assert unknown.exit_code == 1
    assert "--live" in unknown.stderr
    live = LiveSet.parse("1,12,23-30")
    before = content(directory, snapshot_index=30, live=live)
    options = ("--snapshot", "30", "--live", str(live))
    assert run("compact", directory, *options).exit_code == 0
    assert run("sweep", directory, "--live", "1-5").exit_code == 2
    assert run("sweep", directory, *options, "--apply", "--grace", "0").exit_code == 0
    assert content(directory, snapshot_index=30, live=live) == before
    assert len(regular(directory)) == 3


def test_missing_indexes_are_refused_until_the_user_decides(run: Run, log: Path) -> None:
    next(log.glob("snapshots/*/indexes")).unlink()
    refused = run("compact", log)
    assert refused.exit_code == 1
    assert "unknown (not empty)" in refused.stderr
    assert run("compact", log, "--when-indexes-missing", "TreatAsEmpty").exit_code == 0


def test_a_damaged_segment_is_named_and_its_siblings_are_compacted(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    generated = generate_log(directory, segments=9, entries_per_segment=32, payload_bytes=64, sync=False)
    live = next(i for i in range(32) if i + 1 in generated.live)
    place = corrupt_entry(directory, segment=2, record=live)
    result = run("compact", directory, "--max-sources", "2", "-o", "json")
    assert result.exit_code == 1
    assert f"{directory / place.file}: corrupt entry at index" in result.stderr
    assert len(json.loads(result.stdout)["receipts"]) == 3
    assert "Traceback" not in result.output


def test_half_done_logs_are_recovered_first(run: Run, log: Path) -> None:
    (log / "0000000000000001.compacting").write_bytes(b"torn")
    planned = run("plan", log)
    assert planned.exit_code == 1
    assert f"`compactor segments sweep {log} --apply` first" in planned.stderr
    shown = run("sweep", log)
    assert (shown.exit_code, shown.stdout.splitlines()[0]) == (0, "would undo: 0000000000000001")
    assert json.loads(run("sweep", log, "-o", "json").stdout)["recovered"]["discarded"] == ["0000000000000001"]
    swept = "swept: 0 names deleted, 0; 0 wait for their grace"
    assert run("sweep", log, "--apply").stdout.splitlines() == ["discarded: 0000000000000001", swept]
    assert run("sweep", log, "--apply").stdout.splitlines() == ["nothing is half-done", swept]
    assert json.loads(run("sweep", log, "--apply", "-o", "json").stdout)["recovered"]["discarded"] == []
    (log / "0000000000000001.compacting").write_bytes(b"torn")
    result = json.loads(run("compact", log, "-o", "json").stdout)
    assert result["recovered"]["discarded"] == ["0000000000000001"]


def half_done(log: Path, call: str) -> list[str]:
    """A compaction that died before the first system call of this pattern; the sources of the group it was at."""
    with DyingFilesystem() as counter:
        compact_log(shutil.copytree(log, log.with_name("rehearsal")), SegmentLimits(), job="j", now=1.0)
    at = next(number for number, made in enumerate(counter.calls) if re.match(call, made))
    with DyingFilesystem(at=at), pytest.raises(SuddenDeath):
        compact_log(log, SegmentLimits(), job="j", now=1.0)
    return list(group_sources(next(name for name in map(parse_compacting, os.listdir(log)) if name)))


def test_a_segment_that_somebody_changed_since_is_shown_and_left(run: Run, log: Path) -> None:
    """Shown by `plan`, `inspect` and `sweep` before, by `sweep --apply` when it is left alone."""
    sources = half_done(log, "symlink")
    state = open_log(log)
    ref = state.ref(sources[1])
    assert state.live is not None
    assert ref is not None
    segment, other, rows = state.segment(ref.name), log / ref.name, state.readable(ref)
    data = bytearray(other.read_bytes())
    data[int(segment.offset[rows[state.live.mask(segment.idx[rows])]][0])] ^= 1
    (log / "copy").write_bytes(data)
    os.replace(log / "copy", other)
    said = f"but {sources[1]} stays: the output does not provably hold what must survive of it"
    assert said in run("plan", log).stderr
    assert said in run("inspect", log).stdout
    assert said in json.loads(run("inspect", log, "-o", "json").stdout)["halfDone"][0]
    shown = run("sweep", log)
    assert (shown.exit_code, f"would leave: {sources[1]} NotCovered" in shown.stdout) == (0, True)
    recovered = run("sweep", log, "--apply")
    assert recovered.exit_code == 0
    assert f"stayed: {sources[1]} NotCovered" in recovered.stdout
    assert not other.is_symlink()
    assert json.loads(run("inspect", log, "-o", "json").stdout)["halfDone"] == []


def test_the_only_copy_is_kept_and_named(run: Run, log: Path) -> None:
    sources = half_done(log, r"unlink .*\.compacting")
    (log / sources[0]).unlink()
    for command in (("plan",), ("inspect",), ("sweep",), ("sweep", "--apply", "--grace", "0"), ("compact",)):
        result = run(*command, log)
        assert "which no segment of the log provides" in result.output, command
        assert "Traceback" not in result.output
        assert (result.exit_code == 0) == (command == ("inspect",))
    for options in ((), ("--apply",)):
        found = json.loads(run("sweep", log, *options, "-o", "json").stdout)
        assert found["recovered"]["kept"][0]["name"].endswith(".compacting")
        assert found["swept"] is None, "nothing is deleted while something has to be kept"


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["compact", "/nonexistent"],
        ["compact", ".", "--phase", "2"],
        ["compact", ".", "--max-bytes-per-second", "0"],
        ["plan", ".", "--max-entries", "65536"],
    ],
)
def test_wrong_usage_ends_with_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_a_directory_that_is_no_log_ends_with_1(run: Run, tmp_path: Path) -> None:
    result = run("plan", tmp_path)
    assert result.exit_code == 1
    assert "not a segment log directory" in result.stderr


@pytest.mark.parametrize("command", ["plan", "compact", "sweep", "sweep --apply"])
def test_nothing_is_made_in_a_directory_that_is_no_log(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    result = run(*command.split(), tmp_path)
    assert result.exit_code == 1
    assert "not a segment log directory" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("command", ["plan", "compact"])
@pytest.mark.parametrize("step", [-1, 1])
def test_treat_as_empty_says_nothing_about_another_snapshot(run: Run, log: Path, command: str, step: int) -> None:
    snapshot, before = open_log(log).snapshot_index, content(log)
    assert snapshot is not None
    empty = ("--when-indexes-missing", "TreatAsEmpty")
    result = run(command, log, "--snapshot", snapshot + step, *empty)
    assert result.exit_code == 1
    assert "--live" in result.stderr
    assert content(log) == before


def test_a_sweep_by_hand_leaves_a_living_workers_output(run: Run, log: Path) -> None:
    state = open_log(log)
    assert state.live is not None
    sources = plan_log(state, SegmentLimits()).groups[0].sources
    fence.claim(log, job="workers-job", token=1, holder="worker")
    done = kernel.rewrite_group(
        log, sources=sources, live=state.live, limits=SegmentLimits(), job="workers-job", token=1
    )
    assert run("compact", log, "--phase", "1").exit_code == 0
    assert run("sweep", log, "--apply", "--grace", "0").exit_code == 0
    commit.commit_group(log, job="workers-job", token=1, group=done, holder="worker")


def test_the_owners_next_segment_does_not_stop_anything(run: Run, log: Path) -> None:
    (log / "0000000000000099.segment").touch()
    for command in ("inspect", "list", "plan", "compact", "sweep"):
        result = run(command, log)
        assert (result.exit_code, result.stderr) == (0, "")


# `compactor segments plan --clump` and `compact --clump` as a user meets them: plan, refusals, receipts.


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """Five segments of 32 entries of 50 bytes; every 4th of 1..128 is live; the fifth segment is the newest."""
    directory = tmp_path / "log"
    generate_log(directory, segments=5, entries_per_segment=32, payload_bytes=50, seed=1, sync=False)
    return directory


def test_a_plan_says_what_and_what_not_and_changes_nothing(run: Run, sparse: Path) -> None:
    before = sorted(sparse.rglob("*"))
    plan = json.loads(run("plan", sparse, "--clump", "--budget", "500", "-o", "json").stdout)
    assert (plan["entries"], plan["rangesBefore"], plan["rangesAfter"]) == (0, 32, 32)
    assert [left["reason"] for left in plan["leftOut"]] == ["OverBudget", "TooLittleGain"]
    plan = json.loads(run("plan", sparse, "--clump", "--max-entries", "20", "-o", "json").stdout)
    assert [(part["entries"], part["first"], part["last"]) for part in plan["segments"]] == [
        (20, 161, 180),
        (12, 181, 192),
    ]
    assert (plan["entries"], plan["payloadBytes"], plan["rangesAfter"], plan["refused"]) == (32, 1600, 1, None)
    assert (plan["freedSegments"], plan["leftOut"]) == (4, [])
    text = run("plan", sparse, "--clump").stdout
    assert "Live:        32 entries in 32 ranges" in text
    assert "Afterwards:  1 range at the owner's next snapshot" in text
    assert yaml.safe_load(run("plan", sparse, "--clump", "-o", "yaml").stdout)["entries"] == 32
    assert sorted(sparse.rglob("*")) == before


def test_a_plan_says_what_would_refuse_it(run: Run, sparse: Path) -> None:
    (sparse.parent / "0001.wal").write_bytes(b"RAWA\x01" + sparse.name.encode())
    assert "but it would be refused now" in run("plan", sparse, "--clump").stdout
    assert "0001.wal" in json.loads(run("plan", sparse, "--clump", "-o", "json").stdout)["refused"]


def test_nobody_said_that_the_owner_is_stopped(run: Run, sparse: Path) -> None:
    before = sorted(sparse.rglob("*"))
    result = run("compact", sparse, "--clump")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"error: {sparse}: its live entries are not re-written at the head: the log's owner"
    )
    assert "--owner-stopped" in result.stderr
    assert sorted(sparse.rglob("*")) == before


def test_receipts_name_the_maps(run: Run, sparse: Path) -> None:
    before = live_payloads(sparse)
    done = json.loads(run("compact", sparse, "--clump", "--owner-stopped", "--max-entries", "20", "-o", "json").stdout)
    assert (done["entries"], done["payloadBytes"], done["rangesBefore"], done["rangesAfter"]) == (32, 1600, 32, 1)
    assert [receipt["map"] for receipt in done["receipts"]] == [
        "00000000000000000161.moves",
        "00000000000000000181.moves",
    ]
    assert [moves.receipt.job for moves in read_moves(sparse)] == [done["job"]] * 2
    assert under_the_maps(sparse, before) == before
    assert fence.read(sparse).claimed(done["job"]) is None
    again = run("compact", sparse, "--clump", "--owner-stopped")
    assert (again.exit_code, again.stdout) == (0, "nothing to re-write\n")
    assert "Live:      nothing" in run("inspect", sparse).stdout


def test_it_keeps_to_its_bytes_per_second(run: Run, sparse: Path) -> None:
    before, began = live_payloads(sparse), time.monotonic()
    (receipt,) = json.loads(
        run("compact", sparse, "--clump", "--owner-stopped", "--max-bytes-per-second", "5k", "-o", "json").stdout
    )["receipts"]
    moved = receipt["payloadBytes"] + 2 * receipt["outputBytes"]
    assert time.monotonic() - began >= moved / 5000 >= 0.5
    assert under_the_maps(sparse, before) == before


def test_table_of_receipts(run: Run, sparse: Path) -> None:
    write = run("compact", sparse, "--clump", "--owner-stopped", "--budget", "1000")
    lines = write.stdout.splitlines()
    assert lines[0].split()[:5] == ["SEGMENT", "FIRST", "LAST", "ENTRIES", "BYTES"]
    assert lines[1].split()[0] == "0000000000000006.segment"
    assert "20 entries re-written, 1000; live ranges 32 before, 13 after" in lines
    assert lines[-1].startswith("OverBudget")


def test_a_corrupt_entry_is_named(run: Run, sparse: Path) -> None:
    damaged = corrupt_entry(sparse, segment=2, record=0)
    result = run("compact", sparse, "--clump", "--owner-stopped")
    assert result.exit_code == 1
    assert f"{damaged.file}: corrupt entry at index {damaged.index}, offset" in result.stderr
    assert read_moves(sparse) == ()


def test_wrong_usage_and_wrong_places(run: Run, sparse: Path, tmp_path: Path) -> None:
    assert run("compact", tmp_path / "absent", "--clump").exit_code == 2
    assert run("compact", sparse, "--clump", "--shorter-than", "1").exit_code == 2
    (tmp_path / "empty").mkdir()
    result = run("compact", tmp_path / "empty", "--clump", "--owner-stopped")
    assert (result.exit_code, "not a segment log directory" in result.stderr) == (1, True)
    assert list((tmp_path / "empty").iterdir()) == []
    write_snapshot(sparse, index=150, term=9, live=None, sync=False)
    result = run("plan", sparse, "--clump")
    assert (result.exit_code, "unknown (not empty)" in result.stderr) == (1, True)


@pytest.mark.parametrize("command", ["plan", "compact"])
def test_each_option_belongs_to_a_clump_or_not(run: Run, sparse: Path, command: str) -> None:
    before = sorted(sparse.rglob("*"))
    for option in (("--owner-reads-maps",), ("--shorter-than", "3"), ("--min-ranges", "3"), ("--budget", "9")):
        result = run(command, sparse, *option)
        assert (result.exit_code, f"{option[0]} needs --clump" in result.stderr) == (2, True), option
    others = [("--snapshot", "9"), ("--live", "1"), ("--wal-dir", sparse), ("--max-sources", "2")]
    others += [("--when-indexes-missing", "TreatAsEmpty"), *([("--phase", "1")] if command == "compact" else [])]
    for name, value in others:
        result = run(command, sparse, "--clump", name, value)
        assert (result.exit_code, f"{name} cannot be used with --clump" in result.stderr) == (2, True), name
    assert sorted(sparse.rglob("*")) == before


def test_a_half_done_log_is_not_planned(run: Run, sparse: Path) -> None:
    (sparse / "0000000000000001.compacting").write_bytes(b"torn")
    result = run("plan", sparse, "--clump")
    assert (result.exit_code, f"`compactor segments sweep {sparse} --apply` first" in result.stderr) == (1, True)


def test_a_sweep_names_what_is_decided_when_it_is_settled(run: Run, sparse: Path) -> None:
    (sparse / "0000000000000006.clump").write_bytes(b"torn")
    assert run("sweep", sparse).stdout.splitlines()[0] == "would finish or undo: 0000000000000006.clump"
    assert json.loads(run("sweep", sparse, "-o", "json").stdout)["undecided"] == ["0000000000000006.clump"]
    assert run("sweep", sparse, "--apply").stdout.splitlines()[0] == "discarded: 0000000000000006.clump"
    assert json.loads(run("sweep", sparse, "-o", "json").stdout)["undecided"] == []
