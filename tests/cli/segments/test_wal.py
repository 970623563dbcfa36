"""`compactor segments debug wal`: files, writers, records and damage of a write-ahead log, as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from cli.commands import Run
from compaction.segments.memtable import LogEntry
from compaction.segments.wal.codec import HEADER
from compaction.segments.wal.files import STOP_FILE, WRITERS_FILE, wal_files
from support.stores.log_systems import varied_system, write_wal


@pytest.fixture
def system(tmp_path: Path) -> Path:
    varied_system(tmp_path / "system")
    return tmp_path / "system"


def test_files_and_writers_in_three_formats(run: Run, system: Path) -> None:
    (path,) = wal_files(system)
    found = json.loads(run("debug", "wal", system, "-o", "json").stdout)
    size = path.stat().st_size
    assert found["files"] == [
        {
            "file": path.name,
            "bytes": size,
            "records": 11,
            "writers": 2,
            "state": "Whole",
            "offset": None,
            "reason": None,
        }
    ]
    a, b = found["writers"]
    assert (a["log"], a["records"], a["first"], a["last"], a["term"]) == ("a", 6, 65, 70, 2)
    assert (a["payloadBytes"], a["files"], a["directory"], a["atRoll"]) == (108, 1, "present", "64 in_seq")
    assert (b["log"], b["records"], b["atRoll"]) == ("b", 5, None)
    assert yaml.safe_load(run("debug", "wal", system, "-o", "yaml").stdout) == found
    table = run("debug", "wal", system).stdout.splitlines()
    assert table[0].split() == ["FILE", "BYTES", "RECORDS", "WRITERS", "STATE", "OFFSET", "REASON"]
    assert table[-1] == "11 records in 1 file"
    assert [
        row["log"] for row in json.loads(run("debug", "wal", system, "--log", "b", "-o", "json").stdout)["writers"]
    ] == ["b"]


def test_every_record(run: Run, system: Path) -> None:
    rows = [json.loads(line) for line in run("debug", "wal", system, "--records", "-o", "jsonl").stdout.splitlines()]
    assert [(row["log"], row["index"], row["term"]) for row in rows] == [
        *(("a", index, 2) for index in range(65, 71)),
        *(("b", index, 1) for index in range(1, 6)),
    ]
    assert rows[0] == {
        "file": wal_files(system)[0].name,
        "offset": 5,
        "log": "a",
        "index": 65,
        "term": 2,
        "length": 18,
        "truncate": False,
    }
    assert json.loads(run("debug", "wal", system, "--records", "-o", "json").stdout) == rows
    assert len(run("debug", "wal", system, "--records", "--log", "b").stdout.splitlines()) == 6


def test_a_torn_end_is_damage_after_a_clean_stop_and_shown_after_a_kill(run: Run, system: Path) -> None:
    (path,) = wal_files(system)
    path.write_bytes(path.read_bytes()[:-1])
    for option, rows in (((), 1), (("--records",), 10)):
        result = run("debug", "wal", system, *option, "-o", "json")
        assert result.exit_code == 1
        assert f"error: {path}: damaged write-ahead log at offset " in result.stderr
        assert f"delete {system / STOP_FILE}" in result.stderr
        found = json.loads(result.stdout)
        assert len(found if option else found["files"]) == rows
    assert json.loads(run("debug", "wal", system, "-o", "json").stdout)["files"][0]["state"] == "Damaged"
    (system / STOP_FILE).unlink()
    result = run("debug", "wal", system, "-o", "json")
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)["files"]
    assert (row["state"], row["records"], row["reason"]) == (
        "TornEnd",
        10,
        "the record of 17 bytes is cut off after 16",
    )
    result = run("debug", "wal", system, "--records")
    assert result.exit_code == 0
    assert "does not count: the record of 17 bytes is cut off" in result.stderr


@pytest.mark.parametrize("option", [(), ("--records",)])
def test_damage_is_an_error_and_what_precedes_it_is_shown(run: Run, system: Path, option: tuple[str, ...]) -> None:
    (path,) = wal_files(system)
    data = bytearray(path.read_bytes())
    third = json.loads(run("debug", "wal", system, "--records", "-o", "jsonl").stdout.splitlines()[2])
    data[third["offset"] + 10] ^= 1
    path.write_bytes(data)
    write_wal(system, 99, [(b"gone", LogEntry(7, 1, b"x"))])
    result = run("debug", "wal", system, *option, "-o", "json")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {path}: damaged write-ahead log at offset {third['offset']}: ")
    found = json.loads(result.stdout)
    if option:
        assert [(row["log"], row["index"]) for row in found] == [("a", 65), ("a", 66), ("gone", 7)]
    else:
        assert [(row["state"], row["records"]) for row in found["files"]] == [("Damaged", 2), ("Whole", 1)]
        assert [(row["log"], row["directory"]) for row in found["writers"]] == [("a", "present"), ("gone", "gone")]


@pytest.mark.parametrize("option", [(), ("--records",)])
def test_a_write_ahead_log_that_is_gone_since_a_clean_stop_is_an_error(
    run: Run, system: Path, option: tuple[str, ...]
) -> None:
    (path,) = wal_files(system)
    path.unlink()
    result = run("debug", "wal", system, *option)
    assert result.exit_code == 1
    assert f"{path}: damaged write-ahead log at offset 0: it is gone" in result.stderr
    (system / STOP_FILE).write_bytes(b"{}")
    result = run("debug", "wal", system, *option)
    assert result.exit_code == 1
    assert f"{system / STOP_FILE}: not a record of a clean stop" in result.stderr


def test_a_file_of_another_kind_and_a_broken_writers_snapshot_are_named(run: Run, system: Path) -> None:
    (system / WRITERS_FILE).write_bytes(b"\x83x")
    (system / "0000000000000099.wal").write_bytes(b"RAWX" + HEADER[4:])
    result = run("debug", "wal", system)
    assert result.exit_code == 1
    assert "writers.snapshot: not a write-ahead log file" in result.stderr
    assert "the owner writes it again when it starts" in result.stderr
    assert "0000000000000099.wal: not a write-ahead log file: the file begins with b'RAWX'" in result.stderr
    assert "Damaged" in result.stdout
