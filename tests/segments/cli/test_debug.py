"""`compactor segments debug follow`, `verify --rules --while`, `verify` beside an owner that writes and a compactor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.segments.checking.facts import CHECKLIST, SeenFacts
from compaction.segments.directory.fs import regular_segments
from compaction.segments.memtable import LogEntry
from compaction.segments.wal.codec import HEADER
from compaction.segments.wal.files import STOP_FILE, WRITERS_FILE, wal_files
from support.clocks import eventually
from support.segments.log_owners import OwnerProcess, owner_process
from support.segments.segment_logs import Run, varied_system, write_wal
from support.timing import at_depth

SMALL = ("--wal-entries", "50", "--max-entries", "16", "--snapshot-grace", "0")


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_once_is_what_is_there(run: Run, tmp_path: Path) -> None:
    log = varied_system(tmp_path / "system")
    result = run("debug", "follow", tmp_path / "system", "--once", "-o", "jsonl")
    assert result.exit_code == 0
    found = lines(result.stdout)
    assert {"Written", "Rolled", "LogCreated", "Snapshot", "Live", "Flushed", "Linked"} == {
        row["change"] for row in found
    }
    written = {(row["log"], row["detail"]) for row in found if row["change"] == "Written"}
    assert ("a", "indexes 65-70, term 2, 6 entries, 108") in written
    assert [row["detail"] for row in found if row["change"] == "Live"] == ["4 entries at 3,9,20,30"]
    flushed = [row["file"] for row in found if row["change"] == "Flushed"]
    assert flushed == regular_segments(log)
    table = run("debug", "follow", log, "--once").stdout.splitlines()
    assert table[0].split() == ["TIME", "LOG", "CHANGE", "FILE", "DETAIL"]
    assert {line.split()[1] for line in table[1:]} == {"a", "-"}
    assert {
        row["log"]
        for row in lines(run("debug", "follow", tmp_path / "system", "--once", "--log", "b", "-o", "jsonl").stdout)
    } == {"b"}
    assert run("debug", "follow", tmp_path / "system", "--once", "--for", "1s").exit_code == 2
    assert run("debug", "follow", log, "--for", "0s").exit_code == 0


@contextmanager
def following(directory: Path) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, Any]]]]:
    """The command as a process, and the changes that it has printed so far."""
    command = [
        sys.executable,
        "-m",
        "compaction.cli.main",
        "segments",
        "debug",
        "follow",
        str(directory),
        "-o",
        "jsonl",
    ]
    process = subprocess.Popen([*command, "--every", "50ms"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found: list[dict[str, Any]] = []
    assert process.stdout is not None
    stdout = process.stdout
    reader = threading.Thread(target=lambda: found.extend(json.loads(line) for line in stdout))
    reader.start()
    try:
        yield process, found
    finally:
        process.kill()
        process.wait()
        reader.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def test_each_change_is_a_line_until_ctrl_c(run: Run, tmp_path: Path) -> None:
    """What an owner and a compactor do is seen as they do it, and neither waits."""
    system = tmp_path / "system"
    with owner_process(system, *SMALL) as owner:
        owner.ask("open", log="a")
        with following(system) as (process, found):

            def seen(change: str, words: str) -> bool:
                return any(row["change"] == change and words in row["detail"] for row in list(found))

            eventually(lambda: seen("LogCreated", ""), "the log")
            # Fewer than a file takes: one that is full may be emptied and gone before it is looked at.
            owner.ask("append", log="a", index=1, term=1, payload="x", repeat=40)
            eventually(lambda: seen("Written", "term 1, 40 entries"), "the first write")
            owner.ask("append", log="a", index=41, term=1, payload="x", repeat=40)
            owner.ask("append", log="a", index=70, term=2, payload="y", repeat=10)
            eventually(lambda: seen("Overwritten", "indexes 70-79, term 2"), "an overwrite")
            owner.ask("roll")
            owner.ask("drain")
            eventually(lambda: seen("Rolled", "") and seen("Emptied", ""), "rolled and emptied files")
            eventually(lambda: seen("Flushed", "indexes 1-16, 16 entries"), "segments")
            owner.ask("snapshot", log="a", index=64, term=1, live="3,20-22,50")
            eventually(lambda: seen("Snapshot", "index 64, term 1"), "the snapshot")
            assert seen("Live", "5 entries at 3,20-22,50")
            compacted = run("compact", system / "a", "--owner-stopped")
            assert compacted.exit_code == 0, compacted.stderr
            swept = run("sweep", system / "a", "--owner-stopped", "--apply", "--grace", "0")
            assert swept.exit_code == 0, swept.stderr
            eventually(lambda: seen("Compacted", "16 ->"), "a rewritten segment")
            eventually(lambda: seen("Linked", "now a link to") or seen("Deleted", ""), "replaced names")
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
        assert [entry["index"] for entry in owner.ask("read", log="a", to=69)["entries"]] == [
            3,
            20,
            21,
            22,
            50,
            *range(65, 70),
        ]


@contextmanager
def busy(system: Path) -> Iterator[list[int]]:
    """An owner that appends, overwrites, rolls and takes snapshots a hundred times a second, and a compactor behind it,
    whose exit codes these are. Without any pause most of what the test costs is an owner that writes for nothing.
    """
    stop = threading.Event()
    failures: list[BaseException] = []
    codes: list[int] = []

    def write(owner: OwnerProcess) -> None:
        last, term = 0, 1
        for step in range(1, 1_000_000):
            if stop.wait(0.005):
                return
            owner.ask("append", log="a", index=last + 1, term=term, payload="x" * (step % 50 + 1), repeat=9)
            last += 9
            if step % 7 == 0:
                owner.ask("snapshot", log="a", index=last - 20, term=term, live=[*range(5, last - 19, 40)][-6:])
            if step % 5 == 0:
                term += 1
                owner.ask("append", log="a", index=last - 3, term=term, payload="z")
                last -= 3

    def compact() -> None:
        command = [sys.executable, "-m", "compaction.cli.main", "segments", "compact", str(system / "a")]
        while not stop.wait(0.5):
            done = subprocess.run([*command, "--owner-stopped"], capture_output=True, text=True, check=False)
            # Where the owner was faster than a plan, its groups are left for the next time: an error, and no harm.
            assert "Traceback" not in done.stderr
            codes.append(done.returncode)

    def guarded(act: Any, *args: Any) -> None:
        try:
            act(*args)
        except BaseException as error:  # noqa: BLE001 - reported by the test itself
            failures.append(error)

    with owner_process(system, *SMALL) as owner:
        owner.ask("open", log="a")
        owner.ask("append", log="a", index=0, term=1, payload="first")
        threads = [threading.Thread(target=guarded, args=args) for args in ((write, owner), (compact,))]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: (system / "a").is_dir() and regular_segments(system / "a"), "the first segment")
            yield codes
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == []


def test_beside_a_busy_owner_and_a_compactor_all_rules_hold(run: Run, tmp_path: Path) -> None:
    system = tmp_path / "system"
    seconds = at_depth(short="3s", deep="60s")
    with busy(system) as codes:
        result = run("verify", system, "--rules", "--while", seconds, "--every", "200ms", "-o", "json")
        found = {load["rule"]: load for load in json.loads(result.stdout)}
        broken = {rule: item["problems"] for rule, item in found.items() if item["problems"]}
        assert result.exit_code == 0, broken
        assert {found[rule]["result"] for rule in CHECKLIST if CHECKLIST[rule].seen is SeenFacts.WHILE} == {"pass"}
        for _ in range(at_depth(short=2, deep=20)):
            verified = run("verify", system)
            assert verified.exit_code == 0, verified.output
        eventually(lambda: 0 in codes, "a compaction")
    assert run("verify", system).exit_code == 0


def test_a_rule_of_two_readings_that_is_broken_meanwhile_is_named(run: Run, tmp_path: Path) -> None:
    """An owner that writes its write-ahead log anew, again and again."""
    system = tmp_path / "system"
    varied_system(system)
    path, stop = wal_files(system)[-1], threading.Event()
    records = path.read_bytes()[len(HEADER) :]

    def write_again() -> None:
        temporary, turn = tmp_path / "again", 0
        while not stop.wait(0.01):
            turn += 1
            temporary.write_bytes(HEADER + (records if turn % 2 else b""))
            os.replace(temporary, path)

    writer = threading.Thread(target=write_again)
    writer.start()
    try:
        result = run("verify", system, "--rules", "--while", "2s", "--every", "30ms", "-o", "json")
    finally:
        stop.set()
        writer.join()
    assert result.exit_code == 1
    found = {load["rule"]: load for load in json.loads(result.stdout)}
    assert found["wal-grows"]["result"] == "fail"
    assert "which were whole records, are others now" in found["wal-grows"]["problems"][0]["sentence"]


def test_what_is_no_directory_of_logs_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("debug", "follow", tmp_path / "none", "--once").exit_code == 2
    (tmp_path / "file").write_text("")
    assert run("debug", "follow", tmp_path / "file", "--once").exit_code == 2
    assert run("debug", "follow", tmp_path, "--once", "--every", "0").exit_code == 2
    assert run("debug", "follow", tmp_path, "--once").stdout == ""


@pytest.mark.parametrize("damage", ["header", "record"])
def test_a_file_that_cannot_be_read_is_a_line(run: Run, tmp_path: Path, damage: str) -> None:
    log = varied_system(tmp_path / "system")
    if damage == "header":
        segment = log / regular_segments(log)[0]
        segment.write_bytes(b"RASX" + segment.read_bytes()[4:])
    else:
        path = wal_files(tmp_path / "system")[-1]
        data = bytearray(path.read_bytes())
        data[40] ^= 0xFF
        path.write_bytes(data)
        (tmp_path / "system" / "0000000000009999.wal").write_bytes(HEADER)
    found = lines(run("debug", "follow", tmp_path / "system", "--once", "-o", "jsonl").stdout)
    (unreadable,) = [row for row in found if row["change"] == "Unreadable"]
    expected = "begins with" if damage == "header" else "nothing is read from offset 5 on: the checksum of index 65"
    assert expected in unreadable["detail"]


# `compactor segments debug wal`: files, writers, records and damage of a write-ahead log, as a user sees them.


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
