"""Ranges end where lakeFS ends them, metaranges list them, and both have the ids of their content."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.errors import CorruptRangeError, RangeRecordError
from compaction.staging.format.blocks import (
    TRAILER,
    EntryError,
    common_prefix,
    decode_small_block,
    encode_small_block,
    first_not_ascending,
    padded,
    shared_prefixes,
    stored_prefixes,
)
from compaction.staging.format.columns import (
    BINARY,
    EMPTY_COLUMNS,
    RecordColumns,
    concatenated,
    content_of,
    data_of,
    decode_varint,
    decode_varints,
    encode_varint,
    encode_varints,
    joined,
    offsets_of,
    pieces_of,
    varint_lengths,
)
from compaction.staging.format.identity import (
    FramingError,
    ValueColumns,
    frame_value,
    frame_values,
    split_value,
    split_values,
)
from compaction.staging.format.messages import RangeData
from compaction.staging.format.ranges import (
    BreakRule,
    RangeInfo,
    RangeWriter,
    TableKind,
    break_points,
    read_metarange,
    table_id,
    write_metarange,
    write_ranges,
)
from compaction.staging.format.table_reader import BytesSource, TableReader
from support.staging.staging_tables import ANY_RECORDS, SHAPES, PlainTableWriter, Record, numbered, records_of, table
from support.staging.staging_trees import fnv
from support.timing import examples

RANGE_IDS = {
    0: "5105eaf20d56aa444d5402b4eab9d952aecff97791980db9141ca8e2590ce149",
    1: "d7eb61915af2b4e654b0af709e33cec957bde322ed511f5d1353b22453b2c822",
    17: "08d7c94a70ab8d6ae052906db746e017949106024b53a6fd4435e1476ddc59e8",
    100: "6bece21dbf4ec0c35c5b8f37c6632ab28c02e3d32891ebafba6ce078186cf012",
    5000: "c6782425b0d459135305c191cc479d8e9099f70a0da513d7645b67557c756e62",
    40000: "2995638001ae5e003c0e632cd7b9a1d85eabd5d8157346834d55843fe018356e",
}


class Stored(io.BytesIO):
    """A sink that keeps what it was closed with."""

    def __init__(self, every: list[tuple[RangeInfo, bytes]]) -> None:
        super().__init__()
        self.every = every

    def store(self, info: RangeInfo) -> None:
        self.every.append((info, self.getvalue()))


def cut(records: list[Record], rule: BreakRule, step: int) -> list[tuple[RangeInfo, bytes]]:
    """The ranges of these records, given in batches of `step`."""
    every: list[tuple[RangeInfo, bytes]] = []
    batches = (RecordColumns.of(records[at : at + step]) for at in range(0, len(records), step))
    infos = list(write_ranges(batches, lambda: Stored(every), rule))
    assert infos == [info for info, _ in every]
    return every


def plainly_cut(records: list[Record], rule: BreakRule) -> list[list[Record]]:
    """The same, record by record."""
    found: list[list[Record]] = []
    writer: PlainTableWriter | None = None
    for key, value in records:
        if writer is None:
            writer = PlainTableWriter()
            found.append([])
        writer.add(key, value)
        found[-1].append((key, value))
        size = writer.estimate
        if size >= rule.min_bytes and (size >= rule.max_bytes or fnv(key) % rule.raggedness == 0):
            writer = None
    return found


@pytest.mark.parametrize("count", RANGE_IDS)
def test_a_range_has_the_id_of_its_content(count: int) -> None:
    out = io.BytesIO()
    writer = RangeWriter(out)
    for at in range(0, count, 999):
        writer.add(RecordColumns.of(numbered(count)[at : at + 999]))
    info = writer.finish()
    assert info.id == RANGE_IDS[count]
    assert out.getvalue() == table(numbered(count))
    assert table_id(TableReader(BytesSource(out.getvalue())), TableKind.RANGES) == info.id


@pytest.mark.parametrize("raggedness", [1, 3, 16, 1000, 1024, 50_000])
def test_break_points_are_where_the_hash_says(raggedness: int) -> None:
    for records in (numbered(3000), *SHAPES.values()):
        columns = RecordColumns.of(records)
        expected = [place for place, (key, _) in enumerate(records) if fnv(key) % raggedness == 0]
        assert break_points(columns.keys, raggedness) == expected
        assert break_points(columns.slice(5, 9).keys, raggedness) == [item - 5 for item in expected if 5 <= item < 9]


@settings(max_examples=examples(100))
@given(ANY_RECORDS, st.integers(0, 9000), st.integers(9, 9000), st.integers(1, 30), st.integers(1, 70))
def test_ranges_end_where_the_rule_says(records: list[Record], low: int, high: int, raggedness: int, step: int) -> None:
    rule = BreakRule(low, high, raggedness)
    found = cut(records, rule, step)
    expected = plainly_cut(records, rule)
    assert [records_of(TableReader(BytesSource(data))) for _, data in found] == expected
    for (info, data), part in zip(found, expected, strict=True):
        assert (info.min_key, info.max_key, info.count) == (part[0][0], part[-1][0], len(part))
        assert data == table(part)


def test_ranges_are_cut_by_size_within_a_batch() -> None:
    records = SHAPES["sizes"]
    rule = BreakRule(10_000, 30_000, 7)
    found = cut(records, rule, 10_000)
    assert [info.count for info, _ in found] == [len(part) for part in plainly_cut(records, rule)]
    assert len(found) > 4


@pytest.mark.parametrize("size", [1, 5 << 20], ids=["in one batch", "from batch to batch"])
@pytest.mark.parametrize("raggedness", [1, 1 << 40], ids=["two ranges", "one range"])
@pytest.mark.parametrize("second", [b"a", b"b"])
def test_ranges_do_not_overlap(size: int, raggedness: int, second: bytes) -> None:
    """Whether a range ends between the two keys or not."""
    batches = [RecordColumns.of([(b"b", b"x" * size)]), RecordColumns.of([(second, b"")])]
    with pytest.raises(RangeRecordError, match="not greater") as refused:
        list(write_ranges(batches, lambda: Stored([]), BreakRule(raggedness=raggedness)))
    assert refused.value.key == second


def test_a_metarange_lists_ranges_by_their_keys() -> None:
    found = [info for info, _ in cut(numbered(3000), BreakRule(0, 1 << 20, 300), 10_000)]
    out = io.BytesIO()
    info = write_metarange(reversed(found), out)
    assert (info.count, info.min_key, info.max_key) == (len(found), found[0].max_key, found[-1].max_key)
    reader = TableReader(BytesSource(out.getvalue(), "meta"))
    assert reader.properties.user[b"type"] == b"metaranges"
    assert list(read_metarange(reader, "meta")) == found
    assert list(read_metarange(reader, "meta", found[3].min_key)) == found[3:]
    assert table_id(reader, TableKind.METARANGES) == info.id


def test_ranges_that_overlap_have_no_metarange() -> None:
    one, other = RangeInfo("1" * 64, b"a", b"c", 2, 10), RangeInfo("2" * 64, b"c", b"d", 2, 10)
    with pytest.raises(RangeRecordError, match="overlaps range 1111"):
        write_metarange([one, other], io.BytesIO())


def test_an_empty_metarange_is_a_table_without_records() -> None:
    out = io.BytesIO()
    info = write_metarange([], out)
    assert (info.count, info.min_key, info.estimated_size) == (0, b"", 8)
    assert list(read_metarange(TableReader(BytesSource(out.getvalue())), "meta")) == []


def listed(**change: Any) -> tuple[bytes, bytes]:
    fields: dict[str, Any] = {"min_key": b"a", "max_key": b"c", "estimated_size": 1, "count": 1} | change
    return b"c", frame_value(b"1" * 64, RangeData(**fields).encode())


@pytest.mark.parametrize(
    "record",
    [listed(max_key=b"d"), listed(min_key=b"d"), (b"c", b""), (b"c", frame_value(b"1", b"\xff")), (b"c", b"\x01\x01")],
)
def test_records_that_list_no_range_are_refused(record: Record) -> None:
    with pytest.raises(CorruptRangeError, match="meta: damaged"):
        list(read_metarange(TableReader(BytesSource(table([record]), "meta")), "meta"))


def test_listed_ranges_that_overlap_are_refused() -> None:
    later = (b"e", listed(min_key=b"b", max_key=b"e")[1])
    with pytest.raises(CorruptRangeError, match="contradict"):
        list(read_metarange(TableReader(BytesSource(table([listed(), later]), "meta")), "meta"))


# Operations on whole columns do what the same operations on single values do.

NUMBERS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**35 - 1)), max_size=40)
KEYS = st.lists(st.lists(st.sampled_from((0, 1, 2)), max_size=20).map(bytes), min_size=1, max_size=40)


@given(NUMBERS, NUMBERS)
def test_numbers_are_written_and_read_by_the_column(one: list[int], other: list[int]) -> None:
    rows = min(len(one), len(other))
    columns = [np.array(numbers[:rows], dtype=np.int64) for numbers in (one, other)]
    encoded = encode_varints(*columns)
    expected = [encode_varint(a) + encode_varint(b) for a, b in zip(one[:rows], other[:rows], strict=True)]
    assert encoded.to_pylist() == expected
    assert varint_lengths(columns[0]).tolist() == [len(encode_varint(number)) for number in one[:rows]]
    data = np.concatenate((data_of(encoded), np.zeros(16, dtype=np.uint8)))
    values, ends = decode_varints(data, offsets_of(encoded)[:-1])
    assert values.tolist() == one[:rows]
    assert decode_varints(data, ends)[0].tolist() == other[:rows]


def test_numbers_that_are_none_are_refused() -> None:
    assert decode_varints(np.full(16, 255, dtype=np.uint8), np.array([0]))[0].tolist() == [-1]
    with pytest.raises(IndexError):
        decode_varint(b"\xff", 0)
    with pytest.raises(ValueError, match="64 bits"):
        decode_varint(b"\xff" * 9 + b"\x02", 0)
    assert decode_varint(b"\xff" * 9 + b"\x01", 0) == (2**64 - 1, 10)


@settings(max_examples=examples(300))
@given(KEYS, st.booleans())
def test_shared_prefixes_and_order(keys: list[bytes], known: bool) -> None:
    array = pa.array(keys, BINARY)
    data, offsets = padded(data_of(array)), offsets_of(array)
    pairs = list(pairwise(keys))
    expected = [common_prefix(item, other) for item, other in pairs]
    half = np.array([item // 2 for item in expected], dtype=np.int64) if known else None
    shared = shared_prefixes(data, offsets, half)
    assert shared.tolist() == expected
    wrong = [place for place, (item, other) in enumerate(pairs, 1) if item >= other]
    assert first_not_ascending(data, offsets, shared) == (wrong[0] if wrong else None)
    stored = [common_prefix(item + TRAILER, other) for item, other in pairs]
    assert stored_prefixes(data, offsets, shared).tolist() == stored


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20), st.binary(max_size=3))
def test_pieces_and_joins(steps: list[tuple[int, int]], part: bytes) -> None:
    data = bytes(range(250))
    begins, ends, at = [], [], 0
    for gap, size in steps:
        begins.append(at + gap)
        at += gap + size
        ends.append(at)
    pieces = pieces_of(data, np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64))
    expected = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert pieces.to_pylist() == expected
    assert joined(pieces, part, pieces).to_pylist() == [item + part + item for item in expected]
    assert bytes(content_of(pieces)) == b"".join(expected)


def test_pieces_of_batches_are_bounded() -> None:
    records = RecordColumns.of((b"%d" % number, b"x" * (number % 7 * 100)) for number in range(100)).slice(3, 90)
    pieces = list(records.pieces(1000))
    assert concatenated(pieces).pairs() == records.pairs()
    assert all(len(piece) == 1 or piece.nbytes <= 1000 for piece in pieces)
    assert len(pieces) > 10
    assert concatenated([]) is EMPTY_COLUMNS
    assert list(EMPTY_COLUMNS.pieces(10)) == []
    assert [len(piece) for piece in records.pieces(1)] == [1] * 87


@given(st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=200)), max_size=20), st.binary(max_size=3))
def test_values_are_split_as_they_were_framed(parts: list[tuple[bytes, bytes]], behind: bytes) -> None:
    columns = ValueColumns(*(pa.array([part[side] for part in parts], BINARY) for side in (0, 1)))
    values = frame_values(columns)
    assert values.to_pylist() == [frame_value(*part) for part in parts]
    records = RecordColumns(values, joined(values, behind))
    found = split_values(records)
    assert list(zip(found.identities.to_pylist(), found.data.to_pylist(), strict=True)) == parts
    assert [split_value(value + behind) for value in values.to_pylist()] == parts


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x02",
        b"\x01a",
        b"\x02a",
        b"\x02a\x04b",
        b"\x02a\x01",
        b"\xff\xff\xff\xff\x0f",
        b"\x02a\x80",
        b"\xff" * 11,
    ],
)
def test_values_without_two_parts_are_refused(value: bytes) -> None:
    """A length that is cut off, negative, or larger than what is there; the same by the column."""
    with pytest.raises(FramingError):
        split_value(value)
    good = frame_value(b"i", b"d")
    with pytest.raises(RangeRecordError) as refused:
        split_values(RecordColumns.of([(b"a", good), (b"b", value), (b"c", good)]))
    assert refused.value.key == b"b"


@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=20), st.integers(1, 20))
def test_small_blocks_are_read_as_written(entries: list[tuple[bytes, bytes]], interval: int) -> None:
    block = encode_small_block(entries, restart_interval=interval)
    assert [(item.key, item.value) for item in decode_small_block(block)] == entries


@pytest.mark.parametrize(
    "block",
    [
        b"",
        bytes(7),
        bytes(4) + b"\x00\x00\x00\x00",
        bytes(4) + b"\xff\xff\xff\xff",
        b"\x00\x05" + bytes(4) + b"\x01\0\0\0",
        b"\x01\x00\x00" + bytes(4) + b"\x01\0\0\0",
    ],
)
def test_small_blocks_that_are_none_are_refused(block: bytes) -> None:
    with pytest.raises(EntryError):
        decode_small_block(block)
