"""A reader is the bytes it stands for, fetches little, and keeps less."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.storage.objects.reader import ObjectReader

DATA = bytes(range(251)) * 4

STEPS = st.lists(
    st.tuples(
        st.sampled_from([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END]), st.integers(-1100, 1100), st.integers(-1, 1200)
    ),
    max_size=20,
)


def reader_of(data: bytes, *, window: int, windows: int) -> tuple[ObjectReader, list[tuple[int, int]]]:
    fetched: list[tuple[int, int]] = []

    def fetch(start: int, length: int) -> bytes:
        assert 0 <= start < start + length <= len(data)
        fetched.append((start, length))
        return data[start : start + length]

    return ObjectReader("o", len(data), fetch, window=window, windows=windows), fetched


@given(STEPS, st.integers(1, 300), st.integers(1, 4))
def test_it_reads_like_a_file(steps: list[tuple[int, int, int]], window: int, windows: int) -> None:
    reader, _ = reader_of(DATA, window=window, windows=windows)
    model = io.BytesIO(DATA)
    for whence, offset, size in steps:
        place = {io.SEEK_SET: 0, io.SEEK_CUR: model.tell(), io.SEEK_END: len(DATA)}[whence] + offset
        if place < 0:
            with pytest.raises(ValueError, match="before the beginning"):
                reader.seek(offset, whence)
            continue
        assert reader.seek(offset, whence) == model.seek(place)
        assert reader.read(size) == model.read(size)
        assert reader.tell() == model.tell() or model.tell() > len(DATA)
        assert len(reader._kept) <= windows


def test_small_reads_share_a_request_and_large_ones_go_through() -> None:
    reader, fetched = reader_of(DATA, window=100, windows=2)
    for _ in range(20):
        reader.read(5)
    assert fetched == [(0, 100)]
    reader.seek(50)
    assert reader.read(500) == DATA[50:550]
    assert fetched[1:] == [(50, 500)]
    buffer = bytearray(7)
    reader.seek(-7, io.SEEK_END)
    assert reader.readinto(buffer) == 7
    assert bytes(buffer) == DATA[-7:]
    assert reader.bytes_fetched == sum(length for _, length in fetched)


def test_an_empty_object_and_a_closed_reader() -> None:
    reader, fetched = reader_of(b"", window=10, windows=1)
    assert reader.read() == b""
    assert reader.size() == 0
    assert fetched == []
    reader, _ = reader_of(DATA, window=10, windows=1)
    reader.close()
    with pytest.raises(ValueError, match="after close"):
        reader.read(1)
