"""Many payloads at once: what is read, how it is laid side by side, and its checksums, against the obvious way."""

from __future__ import annotations

import importlib.util
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments import model
from compaction.segments.model import ADLER32S, CRC32S, crc32_each
from compaction.segments.reading.reader import pack, plan_reads

FILE = bytes(index * 7 % 251 for index in range(600))
SPANS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=25)
EQUAL = st.tuples(st.lists(st.integers(0, 500), max_size=25), st.integers(1, 60)).map(
    lambda drawn: [(offset, drawn[1]) for offset in drawn[0]]
)


def arrays(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.array([span[side] for span in spans], dtype=np.int64) for side in (0, 1))


@given(SPANS | EQUAL | EQUAL.map(sorted), st.integers(1, 200), st.integers(0, 60))
def test_the_reads_bring_exactly_the_payloads(spans: list[tuple[int, int]], chunk: int, gap: int) -> None:
    """Any order, overlaps, empty ones: every payload in one batch, in order, and no batch above its bound."""
    offsets, lengths = arrays(spans)
    got: list[bytes] = []
    for reads in plan_reads(offsets, lengths, chunk_bytes=chunk, gap_bytes=gap):
        assert reads.begin == len(got)
        data = memoryview(b"".join(FILE[at : at + size] for at, size in zip(reads.offsets, reads.sizes, strict=True)))
        assert len(data) == reads.size
        assert reads.size <= chunk or reads.end == reads.begin + 1
        mine = lengths[reads.begin : reads.end]
        packed = pack(data, reads.starts, mine)
        assert len(packed) == mine.sum()
        ends = np.cumsum(mine)
        got += [bytes(packed[end - size : end]) for end, size in zip(ends.tolist(), mine.tolist(), strict=True)]
        assert crc32_each(packed, mine).tolist() == [zlib.crc32(payload) for payload in got[reads.begin :]]
    assert got == [FILE[offset : offset + length] for offset, length in spans]


def test_neighbours_are_one_read_and_what_is_far_is_not() -> None:
    offsets, lengths = arrays([(0, 10), (10, 10), (25, 10), (100, 10), (90, 10)])
    (reads,) = plan_reads(offsets, lengths, chunk_bytes=1000, gap_bytes=5)
    assert (reads.offsets, reads.sizes) == ([0, 100, 90], [35, 10, 10])
    assert reads.starts.tolist() == [0, 10, 25, 35, 45]


def test_what_lies_side_by_side_is_not_copied() -> None:
    buffer = bytearray(FILE)
    packed = pack(memoryview(buffer), *arrays([(10, 5), (15, 7)]))
    buffer[10] ^= 0xFF
    assert packed[0] == buffer[10]


@pytest.mark.parametrize("crc", CRC32S.values(), ids=CRC32S)
@given(st.lists(st.binary(max_size=40), max_size=12) | st.lists(st.binary(min_size=9, max_size=9), max_size=12))
def test_checksums_are_zlibs(crc: model.Checksum, payloads: list[bytes]) -> None:
    lengths = np.array([len(payload) for payload in payloads], dtype=np.int64)
    assert crc32_each(memoryview(b"".join(payloads)), lengths, crc).tolist() == [zlib.crc32(p) for p in payloads]


@pytest.mark.parametrize("adler", ADLER32S.values(), ids=ADLER32S)
@given(st.binary(max_size=9000), st.binary(max_size=40))
def test_adler_checksums_are_zlibs(adler: model.Checksum, payload: bytes, before: bytes) -> None:
    assert adler(memoryview(payload), adler(before)) == zlib.adler32(before + payload)


def test_without_isal_zlib_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    spec = importlib.util.spec_from_file_location("checksums_without_isal", model.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert module.CRC32S["fastest"] is zlib.crc32
    assert module.ADLER32S["fastest"] is zlib.adler32
    assert module.crc32_each(memoryview(b"abcdef"), np.array([3, 3])).tolist() == [
        zlib.crc32(b"abc"),
        zlib.crc32(b"def"),
    ]
