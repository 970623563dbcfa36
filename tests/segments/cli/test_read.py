"""`compactor segments list` and `inspect` as a user meets them: output, exit codes, errors without tracebacks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.segments.generate import corrupt_entry, generate_log
from compaction.segments.model import segment_name
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.segments.segment_logs import Run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Five segments of 32 entries of 50 bytes; every 4th of 1..128 is live; the fifth segment is the newest."""
    directory = tmp_path / "log"
    generate_log(directory, segments=5, entries_per_segment=32, payload_bytes=50, seed=1, sync=False)
    return directory


def forget_snapshot(log: Path) -> None:
    for path in sorted((log / "snapshots").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def inspect(run: Run, *args: str | Path, code: int = 0) -> dict[str, Any]:
    result = run("inspect", *args, "-o", "json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_inspect_shows_every_fact(run: Run, log: Path) -> None:
    (log / segment_name(2)).rename(log / "away")
    (log / segment_name(2)).symlink_to(segment_name(1))
    live = open_log(log).live
    assert live is not None
    write_snapshot(log, index=128, term=1, live=live.without(LiveSet.parse("33-64")))
    found = inspect(run, log)
    first, link, *_, newest = found["segments"]
    assert first == {
        "name": segment_name(1),
        "state": "Unverified",
        "version": 2,
        "maxCount": 32,
        "entries": 32,
        "range": [1, 32],
        "readable": [1, 32],
        "liveEntries": 8,
        "liveBytes": 400,
        "dataBytes": 1600,
        "fileBytes": 8 + 32 * 32 + 1600,
        "linkTarget": None,
    }
    assert (link["name"], link["state"], link["linkTarget"]) == (segment_name(2), "Link", segment_name(1))
    assert link["entries"] is None
    # Everything above the snapshot is live.
    assert (newest["liveEntries"], newest["liveBytes"]) == (32, 1600)
    assert found["snapshot"]["index"] == 128
    assert found["snapshot"]["source"] == "directory"
    assert found["live"]["ranges"].startswith("1,5,9,")
    assert (found["live"]["entries"], found["live"]["missing"]) == (24, 0)
    assert found["errors"] == []
    plan = plan_log(open_log(log), SegmentLimits())
    assert found["debt"]["bytes"] == plan.debt_bytes > 0
    assert found["debt"]["segments"] == plan.debt_segments == 3
    assert found["debt"]["reason"] is None


def test_yaml_and_table_say_the_same(run: Run, log: Path) -> None:
    found = inspect(run, log)
    assert yaml.safe_load(run("inspect", log, "-o", "yaml").stdout) == found
    table = run("inspect", log).stdout.splitlines()
    assert table[0].split() == [
        *["SEGMENT", "STATE", "VERSION", "MAXCOUNT", "ENTRIES", "RANGE", "READABLE", "LIVE"],
        *["LIVE", "BYTES", "DATA", "BYTES", "LINK", "TARGET"],
    ]
    assert table[1].split()[:8] == [segment_name(1), "Unverified", "2", "32", "32", "1-32", "1-32", "8"]
    text = "\n".join(table)
    assert "Snapshot:  index 128, term 1 (directory)" in text
    assert "Live:      32 at 1,5,9," in text
    assert "Ranges:    32, of 1.0 neighbours on average" in text
    assert "Debt:" in text
    assert "in 4 segments" in text


def test_options_describe_a_log_without_snapshot(run: Run, log: Path) -> None:
    forget_snapshot(log)
    assert inspect(run, log)["snapshot"] is None
    assert inspect(run, log)["live"] is None
    found = inspect(run, log, "--snapshot", "64", "--live", "1-5,9,20-30")
    assert found["snapshot"] == {"index": 64, "term": None, "path": None, "source": "option"}
    assert (found["live"]["ranges"], found["live"]["source"]) == ("1-5,9,20-30", "option")
    assert (found["live"]["rangeCount"], found["live"]["meanRun"]) == (3, 5.667)
    assert [row["liveEntries"] for row in found["segments"]] == [17, 0, 32, 32, 32]
    nothing = inspect(run, log, "--snapshot", "128", "--live", "")
    assert [row["liveEntries"] for row in nothing["segments"]] == [0, 0, 0, 0, 32]
    assert "Live:      nothing" in run("inspect", log, "--snapshot", "128", "--live", "").stdout


def test_unknown_live_set_is_said_not_guessed(run: Run, log: Path) -> None:
    next((log / "snapshots").rglob("indexes")).unlink()
    found = inspect(run, log)
    assert found["live"]["known"] is False
    assert {found["live"][key] for key in ("entries", "ranges", "rangeCount", "meanRun", "source")} == {None}
    assert [row["liveEntries"] for row in found["segments"]] == [None] * 5
    assert found["debt"]["bytes"] is None
    assert "unknown (not empty)" in found["debt"]["reason"]
    assert "UNKNOWN" in run("inspect", log).stdout
    result = run("list", log, "--live-only")
    assert result.exit_code == 1
    assert "say what is live with --live" in result.stderr
    assert inspect(run, log, "--live", "1-3")["segments"][0]["liveEntries"] == 3


def test_inspect_with_a_corrupt_segment_shows_the_others(run: Run, log: Path) -> None:
    bad = log / segment_name(3)
    bad.write_bytes(b"RASGjunk")
    found = inspect(run, log, code=1)
    seen = "Unverified"
    assert [row["state"] for row in found["segments"]] == [seen, seen, "Corrupt", seen, seen]
    assert str(bad) in found["errors"][0]
    assert found["debt"]["reason"] == "the log has corrupt files"
    result = run("inspect", log)
    assert result.exit_code == 1
    assert segment_name(4) in result.stdout
    assert result.stderr.startswith(f"error: {bad}: corrupt segment: version")


def test_inspect_with_corrupt_indexes(run: Run, log: Path) -> None:
    path = next((log / "snapshots").rglob("indexes"))
    path.write_bytes(path.read_bytes()[:-1])
    found = inspect(run, log, code=1)
    assert str(path) in found["errors"][0]
    assert found["live"]["known"] is False
    assert run("list", log, "--live-only").exit_code == 1
    assert run("list", log, "--live-only", "--live", "1").exit_code == 0


def test_torn_records_and_bad_payloads(run: Run, log: Path) -> None:
    corrupt_entry(log, segment=2, record=0)
    assert inspect(run, log)["errors"] == []
    found = inspect(run, log, "--verify", code=1)
    assert "index 33" in found["errors"][0]
    path = log / segment_name(5)
    path.write_bytes(path.read_bytes()[:-60])
    found = inspect(run, log, code=1)
    assert "2 readable record(s) point outside" in found["errors"][0]


def test_rejected_snapshot_is_shown(run: Run, log: Path) -> None:
    path = next((log / "snapshots").rglob("snapshot.dat"))
    path.write_bytes(b"torn")
    assert str(path) in inspect(run, log)["rejectedSnapshots"][0]
    assert "Ignored snapshot:" in run("inspect", log).stdout


def test_entries_in_every_format(run: Run, log: Path) -> None:
    expected = [
        {
            "index": entry.index,
            "term": entry.term,
            "length": entry.length,
            "crc32": entry.crc32,
            "sha256": hashlib.sha256(entry.payload).hexdigest(),
            "file": entry.file,
        }
        for entry in iter_entries(open_log(log))
    ]
    lines = run("list", log, "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == expected
    assert run("list", log).stdout.splitlines() == lines
    assert json.loads(run("list", log, "-o", "json").stdout) == expected
    assert yaml.safe_load(run("list", log, "-o", "yaml").stdout) == expected
    table = run("list", log, "-o", "table").stdout.splitlines()
    assert table[0].split("\t") == ["INDEX", "TERM", "LENGTH", "CRC32", "SHA256", "FILE"]
    assert table[1].split("\t") == [str(value) for value in expected[0].values()]
    assert len(table) == 161


def test_entries_live_only(run: Run, log: Path) -> None:
    lines = run("list", log, "--live-only").stdout.splitlines()
    assert [json.loads(line)["index"] for line in lines] == [*range(1, 129, 4), *range(129, 161)]
    lines = run("list", log, "--live-only", "--snapshot", "160", "--live", "7").stdout.splitlines()
    assert [json.loads(line)["index"] for line in lines] == [7]
    nothing = run("list", log, "--live-only", "--snapshot", "160", "--live", "", "-o", "json")
    assert json.loads(nothing.stdout) == []
    nothing = run("list", log, "--live-only", "--snapshot", "160", "--live", "", "-o", "yaml")
    assert yaml.safe_load(nothing.stdout) == []


def test_entries_names_a_bad_one_and_prints_the_others(run: Run, log: Path) -> None:
    corrupt_entry(log, segment=2, record=0)
    result = run("list", log)
    assert result.exit_code == 1
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [*range(1, 33), *range(34, 161)]
    assert "corrupt entry at index 33" in result.stderr


@pytest.mark.parametrize("command", ["inspect", "list"])
def test_usage_errors_are_exit_code_2(run: Run, log: Path, command: str) -> None:
    for args in (
        [log / "nowhere"],
        [log, "--live", "5-3", "--snapshot", "9"],
        [log, "--snapshot", "-1"],
        [log, "-o", "xml"],
        [],
    ):
        assert run(command, *args).exit_code == 2
    forget_snapshot(log)
    result = run(command, log, "--live", "1-3")
    assert result.exit_code == 2
    assert "--snapshot" in result.stderr


@pytest.mark.parametrize("command", ["inspect", "list"])
def test_data_errors_are_exit_code_1(run: Run, tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: {tmp_path}: not a segment log directory: it holds no segment file (NNNNNNNNNNNNNNNN.segment)\n"
    )
    (tmp_path / segment_name(1)).write_bytes(b"RASG")
    assert run(command, tmp_path).exit_code == 1


def test_help_lists_all_commands(run: Run) -> None:
    text = run("--help").stdout
    for name in ("list", "inspect", "plan", "compact", "verify", "sweep", "debug"):
        assert name in text
    assert run("nothing").exit_code == 2
