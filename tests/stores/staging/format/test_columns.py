"""Operations on whole columns do what the same operations on single values do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.errors import RangeRecordError
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
from support.depth import examples

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
