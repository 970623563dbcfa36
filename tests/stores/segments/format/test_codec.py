"""Segment files byte by byte: golden files, every way a file can be wrong, and the overwrite rule."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.errors import (
    CorruptSegmentError,
    InvalidSegmentFormatError,
    MissingSegmentHeaderError,
    SegmentIsLinkError,
)
from compaction.segments.format.segment_file import (
    decode_records,
    decode_segment,
    encode_header,
    encode_records,
    read_segment,
)
from compaction.segments.model import FileIdentity, SegmentIndex, effective_records, segment_name, segment_number

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
