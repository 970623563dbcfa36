"""Segment files byte by byte: golden files, every way a file can be wrong, and the overwrite rule."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.errors import (
    CorruptSegmentError,
    InvalidEntryError,
    InvalidSegmentFormatError,
    MissingSegmentHeaderError,
    SegmentIsLinkError,
)
from compaction.segments.format.segment_file import (
    MAX_PENDING_ENTRIES,
    LogWriter,
    decode_records,
    decode_segment,
    encode_header,
    encode_records,
    read_segment,
)
from compaction.segments.model import FileIdentity, SegmentIndex, effective_records, segment_name, segment_number
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log

# First two records of a version 1 segment continued by Ra 3.1.10 (max_count 64, first entry index 10, term 2).
RA_V1_HEAD = bytes.fromhex(
    "5241534700010040"
    "000000000000000a00000000000000020000070800000097fa2fae91"
    "000000000000000b00000000000000020000079f000000c742d7b02e"
)
IDENTITY = FileIdentity(device=1, inode=2, size=1 << 40, mtime_ns=3)
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


def decode(data: bytes, size: int | None = None) -> SegmentIndex:
    identity = FileIdentity(device=1, inode=2, size=len(data) if size is None else size, mtime_ns=3)
    return decode_segment(data, path=Path("0000000000000001.segment"), identity=identity)


def record(idx: int, term: int = 1, offset: int = 72, length: int = 5, crc: int = 9) -> bytes:
    return struct.pack(">QQQII", idx, term, offset, length, crc)


def test_version_1_golden() -> None:
    segment = decode(RA_V1_HEAD)
    assert (segment.version, segment.max_count, segment.data_start) == (1, 64, 1800)
    assert segment.idx.tolist() == [10, 11]
    assert segment.term.tolist() == [2, 2]
    assert segment.offset.tolist() == [1800, 1951]
    assert segment.length.tolist() == [151, 199]
    assert segment.crc.tolist() == [0xFA2FAE91, 0x42D7B02E]
    again = encode_header(max_count=64, version=1) + encode_records(
        idx=segment.idx, term=segment.term, offset=segment.offset, length=segment.length, crc=segment.crc, version=1
    )
    assert again == RA_V1_HEAD


def test_version_2_layout() -> None:
    data = encode_header(max_count=2) + record(7, 3, 72, 5, 0xDEADBEEF)
    assert data.hex() == "5241534700020002" + "0000000000000007" + "0000000000000003" + (
        "0000000000000048" + "00000005" + "deadbeef"
    )
    segment = decode(data)
    assert (segment.first, segment.last, segment.end_of_data, segment.data_bytes) == (7, 7, 77, 5)


def test_names() -> None:
    assert segment_name(1) == "0000000000000001.segment"
    assert segment_number("0000000000000012.segment") == 12
    with pytest.raises(ValueError, match="not a segment name"):
        segment_number("00000012.segment")


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", MissingSegmentHeaderError, "0 bytes"),
        (b"R", InvalidSegmentFormatError, "1 of 8"),
        (b"RASG\x00\x02\x00", InvalidSegmentFormatError, "7 of 8"),
        (b"RASH\x00\x02\x00\x10", InvalidSegmentFormatError, "RASH"),
        (b"RASG\x00\x00\x00\x10", InvalidSegmentFormatError, "version 0"),
        (b"RASG\x00\x03\x00\x10", InvalidSegmentFormatError, "version 3"),
        (b"RASG\xff\xff\x00\x10", InvalidSegmentFormatError, "version 65535"),
    ],
)
def test_bad_headers_name_the_file(tmp_path: Path, data: bytes, error: type[CorruptSegmentError], says: str) -> None:
    path = tmp_path / "0000000000000001.segment"
    path.write_bytes(data)
    with pytest.raises(error, match=says) as caught:
        read_segment(path)
    assert str(path) in str(caught.value)


def test_header_only_file_is_an_empty_segment() -> None:
    segment = decode(encode_header(max_count=4096))
    assert (segment.count, segment.first, segment.last) == (0, 0, -1)
    assert segment.end_of_data == segment.data_start == 8 + 4096 * 32
    assert segment.data_bytes == 0


def test_index_ends_at_the_first_zero_slot_and_at_a_cut_off_slot() -> None:
    head = encode_header(max_count=5)
    assert decode(head + record(1) + bytes(32) + record(2)).idx.tolist() == [1]
    assert decode(head + record(1) + record(2)[:31]).idx.tolist() == [1]
    assert decode(head + b"".join(record(i) for i in range(1, 6)) + b"payload...").idx.tolist() == [1, 2, 3, 4, 5]


def test_a_slot_with_any_non_zero_byte_is_a_record() -> None:
    half_written = struct.pack(">QQQII", 21, 0, 0, 0, 0)
    segment = decode(encode_header(max_count=5) + record(20) + half_written)
    assert segment.idx.tolist() == [20, 21]
    assert segment.inside.tolist() == [False, False]
    assert segment.data_bytes == 0


def test_index_zero_is_a_legal_record() -> None:
    segment = decode(encode_header(max_count=2) + record(0, 0, 72, 20), size=92)
    assert (segment.first, segment.last, segment.inside.tolist()) == (0, 0, [True])


@pytest.mark.parametrize(
    ("offset", "length", "inside"),
    [
        (72, 28, True),
        (72, 29, False),
        (71, 1, False),
        (0, 10, False),
        (100, 0, True),
        (101, 0, False),
        (2**64 - 1, 1, False),
        (2**64 - 1, 2**32 - 1, False),
        (2**63, 8, False),
    ],
)
def test_records_outside_the_file_are_known_without_overflow(offset: int, length: int, inside: bool) -> None:
    segment = decode(encode_header(max_count=2) + record(1, 1, offset, length), size=100)
    assert segment.inside.tolist() == [inside]
    assert segment.end_of_data == offset + length


def test_a_link_or_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0000000000000001.segment").write_bytes(encode_header(max_count=1))
    link = tmp_path / "0000000000000002.segment"
    link.symlink_to("0000000000000001.segment")
    with pytest.raises(SegmentIsLinkError, match=r"0000000000000002\.segment"):
        read_segment(link)
    pipe = tmp_path / "0000000000000003.segment"
    os.mkfifo(pipe)
    with pytest.raises(CorruptSegmentError, match="not a regular file"):
        read_segment(pipe)
    directory = tmp_path / "0000000000000004.segment"
    directory.mkdir()
    with pytest.raises(CorruptSegmentError, match="not a regular file"):
        read_segment(directory)


def test_limits_of_what_can_be_written() -> None:
    for max_count in (0, 65536):
        with pytest.raises(ValueError, match="max_count"):
            encode_header(max_count=max_count)
    with pytest.raises(ValueError, match="version 3"):
        encode_header(max_count=1, version=3)
    one = np.array([1], dtype=np.uint64)
    large = np.array([2**32], dtype=np.uint64)
    small = np.array([1], dtype=np.uint32)
    with pytest.raises(ValueError, match="4 GiB"):
        encode_records(idx=one, term=one, offset=large, length=small, crc=small, version=1)
    assert len(encode_records(idx=one, term=one, offset=large, length=small, crc=small)) == 32


@given(st.sampled_from([1, 2]), st.lists(st.tuples(U64, U64, U64, U32, U32), max_size=30))
def test_records_survive_a_round_trip(version: int, rows: list[tuple[int, int, int, int, int]]) -> None:
    rows = [row for row in rows if any(row)]
    columns = list(zip(*rows, strict=True)) or [()] * 5
    limit = 2**32 if version == 1 else 2**64
    offset = np.array([value % limit for value in columns[2]], dtype=np.uint64)
    idx, term = np.array(columns[0], dtype=np.uint64), np.array(columns[1], dtype=np.uint64)
    # An all-zero slot cannot be told from an unused one.
    idx = np.maximum(idx, np.uint64(1))
    length, crc = np.array(columns[3], dtype=np.uint32), np.array(columns[4], dtype=np.uint32)
    area = encode_records(idx=idx, term=term, offset=offset, length=length, crc=crc, version=version)
    records = decode_records(area + bytes(100), version)
    for name, expected in (("idx", idx), ("term", term), ("offset", offset), ("length", length), ("crc", crc)):
        assert records[name].tolist() == expected.tolist()


def naive_effective(indexes: list[int]) -> list[bool]:
    """The rule of docs/design/segment-files.md#overwritten-indexes, record by record."""
    keys: dict[int, int] = {}
    previous: int | None = None
    for position, idx in enumerate(indexes):
        if previous is not None and idx < previous:
            keys = {key: at for key, at in keys.items() if key <= idx}
        keys[idx] = position
        previous = idx
    alive = set(keys.values())
    return [position in alive for position in range(len(indexes))]


@given(st.lists(st.integers(0, 12), max_size=40) | st.lists(U64, max_size=40))
def test_effective_records_follow_the_rule(indexes: list[int]) -> None:
    mask = effective_records(np.array(indexes, dtype=np.uint64))
    assert mask.tolist() == naive_effective(indexes)
    alive = np.array(indexes, dtype=np.uint64)[mask]
    assert bool(np.all(alive[1:] > alive[:-1]))


def test_range_ends_at_the_last_record_even_when_it_is_lower() -> None:
    segment = decode(encode_header(max_count=4) + record(5, 1) + record(2, 2))
    assert (segment.first, segment.last) == (2, 2)
    assert segment.effective.tolist() == [False, True]


@given(st.binary(max_size=300), st.sampled_from([b"", b"RASG\x00\x01\x00\x05", b"RASG\x00\x02\x00\x05"]))
def test_any_bytes_give_a_segment_or_a_named_error(data: bytes, prefix: bytes) -> None:
    with suppress(CorruptSegmentError):
        segment = decode(prefix + data)
        assert segment.count <= segment.max_count
        assert segment.data_bytes >= 0
        assert segment.last >= -1
        assert segment.inside.shape == segment.effective.shape == segment.idx.shape


# The appender: full rule, bytes, continuing what is there.


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
