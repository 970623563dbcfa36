"""The logs of an owner that follows compactions are compacted while it runs; of any other evidence, none counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.clump.clump_run import require_stopped_owner
from compaction.segments.directory.owner import (
    MARKER_FILE,
    NAMES_FILE,
    TEMPORARY_FILE,
    Marker,
    look_for_owner,
    require_stopped,
)
from compaction.segments.errors import ClumpRefusedError, OwnerRunningError
from compaction.segments.memtable import LogEntry
from compaction.segments.reading.view import open_log
from compaction.segments.scan.sense import SenseSettings, sense_root
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.system import LogSystem
from support.stores.ra_system import META, WAL, killed, running, stopped

WAIT = 120.0


def written(system: LogSystem) -> Path:
    """A log with a segment, and live entries that are in the write-ahead log alone."""
    log = system.open_log("a")
    log.append([LogEntry(index, 1, b"entry %d" % index) for index in range(1, 9)]).result(WAIT)
    system.roll().result(WAIT)
    assert system.drain(WAIT)
    log.append([LogEntry(index, 1, b"entry %d" % index) for index in range(9, 13)]).result(WAIT)
    log.snapshot(10, 1, b"\x83j", LiveSet.parse("2,9-10")).result(WAIT)
    return log.directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a system that was closed."""
    with LogSystem(tmp_path / "data") as system:
        written(system)
    return tmp_path / "data"


def test_a_running_owner_that_follows_is_no_reason_to_wait(tmp_path: Path) -> None:
    with LogSystem(tmp_path / "data") as system:
        log = written(system)
        signs = look_for_owner(log)
        assert (signs.marker, signs.is_ra_system, signs.doubt(), len(signs.wals)) == (Marker.FOLLOWS, False, "", 1)
        require_stopped(log, Ownership.DETECT)
        found = sense_root(tmp_path, SenseSettings())
        assert ([log.path for log in found.logs], found.errors, found.running) == ([log], (), frozenset())
        # Entries 9 and 10 are live, and wait in the write-ahead log: nothing is missing.
        assert found.logs[0].missing.entries == 0
        with pytest.raises(ClumpRefusedError, match=r"its owner runs: .*system of logs, pid"):
            require_stopped_owner(open_log(log), owner_stopped=True)
    require_stopped(log, Ownership.DETECT)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is not JSON"),
        (b"[" * 4000, "it is not JSON"),
        (b"[1]", "it is not of rules 1"),
        (b'{"owner": "LogSystem"}', "it is not of rules 1"),
        (b'{"rules": 2}', "it is not of rules 1"),
        (b'{"rules": true}', "it is not of rules 1"),
    ],
)
def test_a_marker_that_says_something_else_is_no_evidence(data: Path, content: bytes, said: str) -> None:
    (data / MARKER_FILE).write_bytes(content)
    with pytest.raises(OwnerRunningError, match=f"{MARKER_FILE} does not say that its owner follows .*{said}"):
        require_stopped(data / "a", Ownership.DETECT)
    with LogSystem(data):
        require_stopped(data / "a", Ownership.DETECT)


def test_what_is_no_file_is_no_evidence_and_never_waited_for(data: Path) -> None:
    marker, elsewhere = data / MARKER_FILE, data.parent / "elsewhere"
    marker.rename(elsewhere)
    for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to(elsewhere)):
        make(marker)
        with pytest.raises(OwnerRunningError, match="does not say that its owner follows"):
            require_stopped(data / "a", Ownership.DETECT)
        marker.rmdir() if marker.is_dir() and not marker.is_symlink() else marker.unlink()
    with pytest.raises(OwnerRunningError, match=r"lies there without meta.dets"):
        require_stopped(data / "a", Ownership.DETECT)


def test_a_ra_server_in_the_same_directory_stays_as_protected_as_without_the_marker(data: Path) -> None:
    with running(data, idle=True), pytest.raises(OwnerRunningError, match="open for writing"):
        require_stopped(data / "a", Ownership.DETECT)
    killed(data)
    with pytest.raises(OwnerRunningError, match="or was killed"):
        require_stopped(data / "a", Ownership.DETECT)
    stopped(data)
    require_stopped(data / "a", Ownership.DETECT)
    (data / META).unlink()
    (data / NAMES_FILE).touch()
    with pytest.raises(OwnerRunningError, match=f"{WAL} lies there without meta.dets"):
        require_stopped(data / "a", Ownership.DETECT)


def test_the_marker_is_written_before_the_first_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the two leaves no write-ahead log without it; a leftover of its writing is replaced."""
    data = tmp_path / "data"
    data.mkdir()
    (data / TEMPORARY_FILE).touch()
    rename, at_rename = os.rename, list[list[str]]()

    def renamed(source: Path, target: Path) -> None:
        rename(source, target)
        at_rename.append(sorted(os.listdir(data)))

    monkeypatch.setattr(os, "rename", renamed)
    with LogSystem(data):
        pass
    assert at_rename[0] == ["compaction.lock", MARKER_FILE]
