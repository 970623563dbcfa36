"""Texts hashed many at once are hashed as each would be by itself, whatever lies beside it in memory."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from compaction.blocks.fingerprint import values as module
from compaction.blocks.fingerprint.values import SHORT, text_hashes

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
    return text_hashes(array).tolist()


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
