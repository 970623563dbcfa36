"""A segment that grows while it is read: its slots are copied into the file after its data, and not at one moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.segments.directory import fs
from compaction.segments.errors import CorruptEntryError
from compaction.segments.format import segment_file
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.memtable import LogEntry
from compaction.segments.model import SLOT_BYTES, segment_name
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log, read_segments
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments

SLOT = SLOT_BYTES[2]
PARTS = (8, 16, 24)
"""Bytes of a slot that are there before the rest: the kernel copies it in words of eight or more."""


def write(directory: Path, *indexes: int) -> Path:
    """Appends to the log; returns its last segment."""
    with LogWriter(directory, max_count=4) as writer:
        for index in indexes:
            writer.append(index, 1, b"payload %d" % index)
        return writer._writable().path


def tear(path: Path, part: int) -> Callable[[], None]:
    """Leave only the first `part` bytes of the last slot, under the file's own time; the result puts them back."""
    row = segment_file.read_segment(path).count - 1
    begin = 8 + row * SLOT
    slot = path.read_bytes()[begin : begin + SLOT]

    def put(data: bytes) -> None:
        before = path.stat()
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    put(slot[:part].ljust(SLOT, b"\0"))
    return lambda: put(slot)


@pytest.mark.parametrize("part", PARTS)
def test_half_a_slot_is_read_again(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, 1, 2, 3)
    whole = tear(path, part)
    monkeypatch.setattr(segment_file.time, "sleep", lambda _seconds: whole())
    segment = segment_file.read_segment(path, newest=True)
    assert segment.idx.tolist() == [1, 2, 3]
    assert segment.length.tolist() == [9, 9, 9]
    assert [entry.payload for entry in iter_entries(open_log(tmp_path))] == [b"payload 1", b"payload 2", b"payload 3"]


@pytest.mark.parametrize("part", PARTS)
def test_what_was_read_of_the_newest_segment_is_not_kept(tmp_path: Path, part: int) -> None:
    """Not while it is the newest, and not when it is the newest no longer."""
    path = write(tmp_path, 1, 2, 3)
    whole = tear(path, part)
    before = {segment.name: segment for segment in read_segments(tmp_path).segments}
    whole()
    assert path.stat().st_mtime_ns == before[path.name].identity.mtime_ns
    again = read_segments(tmp_path, known=before)
    assert again.segments[0].length.tolist() == [9, 9, 9]

    write(tmp_path, 4, 5)
    now = read_segments(tmp_path, known=before)
    assert [segment.name for segment in now.segments] == [segment_name(1), segment_name(2)]
    assert now.segments[0].length.tolist() == [9, 9, 9, 9]
    kept = read_segments(tmp_path, known={segment.name: segment for segment in now.segments})
    assert kept.segments[0] is now.segments[0]
    assert kept.segments[1] is not now.segments[1]


def test_a_segment_that_becomes_older_while_the_directory_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, 1, 2, 3, 4)
    whole = tear(path, 24)
    read = segment_file.read_segment

    def read_and_roll(at: Path, *, newest: bool = False) -> object:
        found = read(at, newest=newest)
        if at == path and newest:
            whole()
            write(tmp_path, 5)
        return found

    monkeypatch.setattr("compaction.segments.reading.view.read_segment", read_and_roll)
    found = read_segments(tmp_path).segments
    assert [item.idx.tolist() for item in found] == [[1, 2, 3, 4], [5]]
    assert found[0].length.tolist() == [9, 9, 9, 9]


def test_a_record_without_bytes_is_damage_and_no_entry(tmp_path: Path) -> None:
    path = write(tmp_path, 1, 2, 3)
    tear(path, 24)
    with pytest.raises(CorruptEntryError, match=r"index 3, .*no bytes, and no entry is empty"):
        list(iter_entries(open_log(tmp_path)))
    handed_over: list[CorruptEntryError] = []
    assert [entry.index for entry in iter_entries(open_log(tmp_path), on_corrupt=handed_over.append)] == [1, 2]
    assert len(handed_over) == 1


def test_a_reader_beside_a_flush_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked at each moment at which the slots were half there; what is read afterwards is what was written."""
    write_at, logs = fs.write_at, list[Log]()

    def in_parts(fd: int, data: bytes, offset: int) -> None:
        if not logs or offset < 8 or len(data) % SLOT or offset % SLOT != 8:
            return write_at(fd, data, offset)
        reader = threading.Thread(target=logs[0].refresh)
        write_at(fd, data[: len(data) - 8], offset)
        reader.start()
        reader.join()
        before = os.fstat(fd)
        write_at(fd, data, offset)
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
        return None

    monkeypatch.setattr(fs, "write_at", in_parts)
    limits = SystemLimits(wal=WalLimits(max_size=4096), segments=NewSegments(max_count=64))
    entries = [LogEntry(index, 1, b"%d " % index * 40) for index in range(1, 201)]
    with LogSystem(tmp_path, limits=limits) as system:
        log = system.open_log("log")
        logs.append(log)
        for begin in range(0, 200, 20):
            log.append(entries[begin : begin + 20]).result(60)
        system.roll().result(60)
        assert system.drain(60)
        assert not log.waiting
        assert log.read(range(1, 201)) == entries
