"""The appender: full rule, bytes, continuing what is there."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from pathlib import Path

import pytest

from compaction.segments.errors import CorruptSegmentError, InvalidEntryError, InvalidSegmentFormatError
from compaction.segments.format.segment_file import MAX_PENDING_ENTRIES, LogWriter, encode_header, read_segment
from compaction.segments.model import segment_name
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log


def test_bytes_of_a_small_segment(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "new", max_count=3) as writer:
        writer.append(5, 1, b"first")
        writer.append(6, 2, b"x")
    data = (tmp_path / "new" / segment_name(1)).read_bytes()
    expected = b"RASG\x00\x02\x00\x03"
    expected += struct.pack(">QQQII", 5, 1, 104, 5, zlib.crc32(b"first"))
    expected += struct.pack(">QQQII", 6, 2, 109, 1, zlib.crc32(b"x"))
    assert data == expected + bytes(32) + b"firstx"


def test_without_checksums_the_crc_is_zero(tmp_path: Path) -> None:
    with LogWriter(tmp_path, checksums=False) as writer:
        writer.append(1, 1, b"abc")
    assert read_segment(tmp_path / segment_name(1)).crc.tolist() == [0]


def test_order_of_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Header, sync; then payloads before their index slots; the file's sync before the directory's."""
    calls: list[tuple[str, int, int]] = []
    pwrite, fsync = os.pwrite, os.fsync

    def traced_pwrite(fd: int, data: memoryview, offset: int) -> int:
        calls.append(("write", offset, len(data)))
        return pwrite(fd, data, offset)

    def traced_fsync(fd: int) -> None:
        calls.append(("sync directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync", 0, 0))
        fsync(fd)

    monkeypatch.setattr(os, "pwrite", traced_pwrite)
    monkeypatch.setattr(os, "fsync", traced_fsync)
    with LogWriter(tmp_path, max_count=4) as writer:
        writer.append_many([1, 2], 1, [b"aa", b"bb"])
        writer.flush()
        writer.append(3, 1, b"cc")
    assert calls == [
        ("write", 0, 8),
        ("sync", 0, 0),
        ("write", 136, 4),
        ("write", 8, 64),
        ("write", 140, 2),
        ("write", 72, 32),
        ("sync", 0, 0),
        ("sync directory", 0, 0),
    ]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3], offset))
    with LogWriter(tmp_path, max_count=4) as writer:
        writer.append(1, 1, b"a longer payload")
    assert [entry.payload for entry in iter_entries(open_log(tmp_path))] == [b"a longer payload"]


def test_full_by_count_and_header_only_successor(tmp_path: Path) -> None:
    with LogWriter(tmp_path, max_count=4) as writer:
        writer.append_many(range(1, 9), 1, [b"p"] * 8)
        writer.roll()
    assert [segment.count for segment in open_log(tmp_path).segments] == [4, 4, 0]
    assert (tmp_path / segment_name(3)).stat().st_size == 8


def test_full_by_size_is_strictly_greater_before_the_append(tmp_path: Path) -> None:
    with LogWriter(tmp_path, max_count=100, max_size=10) as writer:
        # 10 bytes are not more than 10, so a third entry still goes in, of any size.
        for idx, payload in enumerate([b"12345", b"12345", b"x" * 50, b"y"], start=1):
            writer.append(idx, 1, payload)
    assert [segment.data_bytes for segment in open_log(tmp_path).segments] == [60, 1]


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_flushes_do_not_change_the_bytes(tmp_path: Path, step: int) -> None:
    def write(directory: Path, flush_every: int) -> list[bytes]:
        with LogWriter(directory, max_count=7, max_size=40, sync=False) as writer:
            for idx in range(1, 60):
                writer.append(idx, 1, bytes(1 + idx * 7 % 11))
                if idx % flush_every == 0:
                    writer.flush()
        return [path.read_bytes() for path in sorted(directory.glob("*.segment"))]

    assert write(tmp_path / "a", step) == write(tmp_path / "b", 10**6)


def test_reopening_continues_at_the_last_record_not_at_the_file_end(tmp_path: Path) -> None:
    with LogWriter(tmp_path, max_count=4) as writer:
        writer.append(1, 1, b"one")
    path = tmp_path / segment_name(1)
    with path.open("ab") as file:
        file.write(b"data without index, left by a crash")
    with LogWriter(tmp_path, max_count=9) as writer:
        writer.append(2, 1, b"two")
    segment = read_segment(path)
    assert (segment.max_count, segment.offset.tolist()) == (4, [136, 139])
    assert [entry.payload for entry in iter_entries(open_log(tmp_path))] == [b"one", b"two"]


def test_version_1_is_continued_and_rolls_to_version_2(tmp_path: Path) -> None:
    (tmp_path / segment_name(1)).write_bytes(encode_header(max_count=2, version=1))
    with LogWriter(tmp_path, max_count=2) as writer:
        writer.append_many([1, 2, 3], 1, [b"a", b"b", b"c"])
    log = open_log(tmp_path)
    assert [(segment.version, segment.count) for segment in log.segments] == [(1, 2), (2, 1)]
    assert log.segments[0].offset.tolist() == [64, 65]


def test_version_1_rolls_before_its_offsets_overflow(tmp_path: Path) -> None:
    slot = struct.pack(">QQIII", 1, 1, 0xFFFFFFF0, 0x20, 0)
    (tmp_path / segment_name(1)).write_bytes(encode_header(max_count=9, version=1) + slot)
    with LogWriter(tmp_path, max_size=2**40) as writer:
        writer.append(2, 1, b"b")
    assert [segment.count for segment in open_log(tmp_path).segments] == [1, 1]


def test_a_compacted_segment_is_full_and_a_link_is_never_written_through(tmp_path: Path) -> None:
    with LogWriter(tmp_path, max_count=1) as writer:
        writer.append(1, 1, b"a")
    before = (tmp_path / segment_name(1)).read_bytes()
    (tmp_path / segment_name(2)).symlink_to(segment_name(1))
    with LogWriter(tmp_path) as writer:
        writer.append(2, 1, b"b")
    assert (tmp_path / segment_name(1)).read_bytes() == before
    assert [segment.name for segment in open_log(tmp_path).segments] == [segment_name(1), segment_name(3)]


def test_an_empty_file_is_made_again(tmp_path: Path) -> None:
    (tmp_path / segment_name(1)).write_bytes(b"")
    with LogWriter(tmp_path) as writer:
        writer.append(1, 1, b"a")
    assert [entry.index for entry in iter_entries(open_log(tmp_path))] == [1]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"RASG\x00", InvalidSegmentFormatError),
        (b"RASG\x00\x02\x00\x04" + struct.pack(">QQQII", 21, 0, 0, 0, 0), CorruptSegmentError),
    ],
)
def test_a_segment_that_cannot_be_continued_is_named_and_untouched(
    tmp_path: Path, data: bytes, error: type[CorruptSegmentError]
) -> None:
    path = tmp_path / segment_name(1)
    path.write_bytes(data)
    writer = LogWriter(tmp_path)
    writer.append(1, 1, b"a")
    with pytest.raises(error, match=path.name):
        writer.close()
    assert path.read_bytes() == data


def test_a_last_record_far_away_makes_the_segment_full(tmp_path: Path) -> None:
    slot = struct.pack(">QQQII", 1, 1, 2**64 - 1, 2**32 - 1, 0)
    (tmp_path / segment_name(1)).write_bytes(b"RASG\x00\x02\x00\x04" + slot)
    with LogWriter(tmp_path) as writer:
        writer.append(2, 1, b"b")
    assert [segment.count for segment in open_log(tmp_path).segments] == [1, 1]


def test_refused_entries_and_limits(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    for idx, term, payload in ((1, 1, b""), (-1, 1, b"a"), (2**64, 1, b"a"), (1, -1, b"a"), (1, 2**64, b"a")):
        with pytest.raises(InvalidEntryError):
            writer.append(idx, term, payload)
    with pytest.raises(ValueError, match="argument"):
        writer.append_many([1, 2], 1, [b"a"])
    with pytest.raises(ValueError, match="max_count"):
        LogWriter(tmp_path, max_count=0)
    with pytest.raises(ValueError, match="max_size"):
        LogWriter(tmp_path, max_size=0)


def test_pending_entries_reach_the_file_in_bounded_batches(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    writer.append_many(range(1, MAX_PENDING_ENTRIES + 10), 1, [b"p"] * (MAX_PENDING_ENTRIES + 9))
    assert read_segment(tmp_path / segment_name(1)).count == MAX_PENDING_ENTRIES
    writer.close()
    assert read_segment(tmp_path / segment_name(1)).count == MAX_PENDING_ENTRIES + 9
