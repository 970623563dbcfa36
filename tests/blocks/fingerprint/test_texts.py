"""Texts hashed many at once are hashed as each would be by itself, whatever lies beside it in memory."""

from __future__ import annotations

import io
import pickle
import struct
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from compaction.blocks.errors import BlockVerificationError, UnreadableBlockError
from compaction.blocks.fingerprint import values as module
from compaction.blocks.fingerprint.proof import read_back, verify
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.fingerprint.values import SHORT, text_hashes
from support.blocks.blocks import parquet_of

ALL = (1 << 64) - 1
FIRST = 0x9E3779B185EBCA87
KINDS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]

VALUES = st.lists(
    st.one_of(
        st.binary(max_size=20), st.integers(0, SHORT + 9).map(lambda size: bytes(n * 7 % 251 for n in range(size)))
    ),
    max_size=40,
)


def by_itself(value: bytes) -> int:
    """The definition: eight bytes after the other, or xxh3 of a long one."""
    if len(value) > SHORT:
        return xxhash.xxh3_64_intdigest(value)
    hashed = len(value) * FIRST & ALL
    for start in range(0, len(value), 8):
        hashed ^= int.from_bytes(value[start : start + 8], "little")
        hashed = (hashed ^ hashed >> 32) * FIRST & ALL
    return hashed


def hashes_of(array: pa.Array) -> list[int]:
    hashes: list[int] = text_hashes(array).tolist()
    return hashes


@given(VALUES, st.integers(0, 9), st.integers(1, 5))
def test_together_as_by_itself(values: list[bytes], skipped: int, block: int) -> None:
    """`skipped`: the array begins behind so many others; `block`: values at a time."""
    with mock.patch.object(module, "_BLOCK", block):
        for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
            array = pa.array([b"x" * skipped, *values, b"end"], kind).slice(1, len(values))
            assert hashes_of(array) == [by_itself(value) for value in values]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_text_is_alike(kind: pa.DataType) -> None:
    texts = ["", "a", "ä", "12345678", "123456789", "x" * SHORT, "x" * (SHORT + 1), "\0", "a\0"]
    data = [text.encode() for text in texts]
    array = pa.array(texts if kind in KINDS[:3] else data, kind)
    assert hashes_of(array) == [by_itself(item) for item in data]


@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 33])
def test_of_fixed_size_too(width: int) -> None:
    values = [bytes(range(n, n + width)) for n in range(20)]
    for start in range(4):
        assert hashes_of(pa.array(values, pa.binary(width)).slice(start)) == [
            by_itself(value) for value in values[start:]
        ]


def test_where_the_memory_ends_and_begins_at_any_place() -> None:
    """Without a byte behind the last value, and at an address that no word begins at."""
    data = bytes(range(200))
    for begin in range(8):
        for size in (1, 7, 8, 9, 64, 190):
            buffer = pa.py_buffer(data).slice(begin, size)
            offsets = pa.py_buffer(np.array([0, size // 3, size], np.int32))
            array = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, buffer])
            part = data[begin : begin + size]
            assert hashes_of(array) == [by_itself(part[: size // 3]), by_itself(part[size // 3 :])]


def test_nothing_at_all() -> None:
    assert hashes_of(pa.array([], pa.string())) == []
    assert hashes_of(pa.array(["", ""])) == [by_itself(b"")] * 2


# What was written is proved by reading it again.

ROWS = pa.table({"service": ["a", "b", None], "value": [1.5, None, 2.0], "list": [[1], None, [2, 3]]})


@pytest.mark.parametrize("dictionary", [True, False])
def test_file_reads_back_as_its_rows(dictionary: bool) -> None:
    data = parquet_of(ROWS, use_dictionary=dictionary, row_group_size=2)
    assert read_back("block", lambda: io.BytesIO(data)) == fingerprint(ROWS)


def test_parts_add_up() -> None:
    verify("job", [fingerprint(ROWS.slice(0, 1)), fingerprint(ROWS.slice(1))], expected=fingerprint(ROWS))


@pytest.mark.parametrize("change", ["lost", "twice", "changed"])
def test_any_difference_is_an_error_with_both_fingerprints(change: str) -> None:
    rows = {
        "lost": ROWS.slice(1),
        "twice": pa.concat_tables([ROWS, ROWS.slice(0, 1)]),
        "changed": ROWS.set_column(1, "value", pa.array([1.5, None, 2.5])),
    }[change]
    with pytest.raises(BlockVerificationError) as caught:
        verify("job", [fingerprint(rows)], expected=fingerprint(ROWS))
    assert str(fingerprint(ROWS)) in str(caught.value)
    assert str(fingerprint(rows)) in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_bit_that_flipped_in_a_page_is_found() -> None:
    data = bytearray(parquet_of(ROWS, use_dictionary=False, write_statistics=False, compression="none"))
    data[data.index(struct.pack("<d", 1.5))] ^= 1
    with pytest.raises(BlockVerificationError):
        verify("block", [read_back("block", lambda: io.BytesIO(bytes(data)))], expected=fingerprint(ROWS))


def nested(count: int, *, values: int) -> pa.Table:
    """Lists of structs of texts; `values`: different ones."""
    entries = [
        [{"key": f"k{n % 7}", "value": f"value-{(n * 7919 + k) % values}"} for k in range(n % 4)] for n in range(count)
    ]
    return pa.table({"ts": pa.array(range(count), pa.int64()), "attributes": entries})


@pytest.mark.parametrize("values", [50, 1 << 30])
@pytest.mark.parametrize("limit", [1 << 20, 2_000])
def test_nested_texts_read_back_whatever_became_of_their_dictionaries(values: int, limit: int) -> None:
    """Of few values, of many, and given up half way; each row group has dictionaries of its own."""
    table = nested(20_000, values=values)
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=6_000, dictionary_pagesize_limit=limit, write_batch_size=100)
    assert read_back("block", lambda: io.BytesIO(sink.getvalue())) == fingerprint(table)


def test_a_nested_page_that_is_damaged_is_an_error_all_the_same() -> None:
    sink = io.BytesIO()
    pq.write_table(nested(5_000, values=50), sink, write_page_checksum=True)
    chunk = pq.read_metadata(sink).row_group(0).column(2)
    data = bytearray(sink.getvalue())
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 0x55
    with pytest.raises(UnreadableBlockError, match="block"):
        read_back("block", lambda: io.BytesIO(bytes(data)))
