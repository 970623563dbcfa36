"""Sets of indexes against Python's own sets, and the `indexes` file to the byte."""

from __future__ import annotations

import pickle
import struct
import zlib
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.errors import CorruptIndexesError, LiveSetSyntaxError, TermFormatError
from compaction.segments.format import etf
from compaction.segments.model import MAX_INDEX
from compaction.segments.snapshot.live_indexes import (
    LiveSet,
    decode_indexes,
    decode_sequence,
    encode_indexes,
    encode_sequence,
)

# Written by Ra 3.1.10.
GOLDEN = {
    "": "5241534901fc105131836a",
    "7": "52415349015b3ce9bf836b000107",
    "7-8": "5241534901923d4a4c836b00020807",
    "100-102,500-501,600": "5241534901d9c9aba7836c00000004620000025862000001f562000001f46802616461666a",
    "4294967296-4294967298,9007199254740993,18446744073709551615": (
        "5241534901e6ce4ddc836c000000036e0800ffffffffffffffff6e07000100000000002068026e050000000000016e050002000000016a"
    ),
    "1-3,9,255": "5241534901cb6e1dcd836c0000000361ff61096802610161036a",
    "10-300,400,1000-5000": "52415349013b5ccf81836c00000003680262000003e8620000138862000001906802610a620000012c6a",
}
RA_LEGACY = bytes.fromhex("836c00000002610a6802610161036a")

SMALL = st.integers(0, 60)
INDEX = SMALL | st.integers(0, 2**64 - 1)


def wrap(body: bytes, *, version: int = 1) -> bytes:
    return struct.pack(">4sBI", b"RASI", version, zlib.crc32(body)) + body


@pytest.mark.parametrize(("text", "file_hex"), GOLDEN.items())
def test_golden_files(text: str, file_hex: str) -> None:
    live = LiveSet.parse(text)
    assert encode_indexes(live).hex() == file_hex
    assert decode_indexes(bytes.fromhex(file_hex)) == live
    assert str(live) == text


def test_legacy_file_is_the_bare_term() -> None:
    assert decode_indexes(RA_LEGACY) == LiveSet.parse("1-3,10")
    assert encode_sequence(LiveSet.parse("1-3,10")) == RA_LEGACY


def test_two_neighbours_stay_two_integers_and_small_ones_become_a_string() -> None:
    assert encode_sequence(LiveSet.parse("300-301")).hex() == "836c00000002620000012d620000012c6a"
    assert encode_sequence(LiveSet.parse("254-255,1")).hex() == "836b0003fffe01"
    assert encode_sequence(LiveSet.parse("255-256")).hex() == "836c00000002620000010061ff6a"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cut off"),
        (b"RASI", "header is cut off"),
        (b"RASI\x01\x00\x00\x00", "header is cut off"),
        (wrap(b"\x83\x6a", version=2), "version 2"),
        (wrap(b"\x83\x6a")[:-1] + b"\x6b", "checksum"),
        (wrap(b"\x82\x6a"), "begins with byte 131"),
        (wrap(b"\x83\x61\x05"), "list of indexes"),
        (wrap(b"\x83\x6a\x00"), "follow"),
        (wrap(b"\x83\x6c\xff\xff\xff\xff\x6a"), "elements claimed"),
        (wrap(b"\x83\x6c\x00\x00\x00\x01\x61\x07\x61\x06"), "improper tail"),
        (wrap(b"\x83\x6c\x00\x00\x00\x01\x6d\x00\x00\x00\x00\x6a"), "tag 109"),
        (wrap(b"\x83\x6c\x00\x00\x00\x01\x68\x03\x61\x01\x61\x02\x61\x03\x6a"), "pair"),
        (wrap(b"\x83\x6c\x00\x00\x00\x01\x68\x02\x61\x05\x61\x02\x6a"), "range 5-2"),
        (wrap(b"\x83\x6c\x00\x00\x00\x01\x62\xff\xff\xff\xff\x6a"), "range -1"),
        (wrap(b"\x83\x6c\x00\x00\x00\x01\x6e\x09\x00" + b"\xff" * 9 + b"\x6a"), "not within"),
        (wrap(b"\x83\x6c\x00\x00\x00\x01\x6f\x7f\xff\xff\xff\x00\x6a"), "larger than any index"),
        (wrap(b"\x83\x6c\x00\x00\x00\x01\x68\x02\x61\x00\x6e\x08\x00" + b"\xff" * 8 + b"\x6a"), "more than"),
    ],
)
def test_bad_files_are_named(data: bytes, says: str) -> None:
    with pytest.raises(CorruptIndexesError, match=says) as caught:
        decode_indexes(data, file="/log/snapshots/x/indexes")
    assert str(caught.value).startswith("/log/snapshots/x/indexes: ")


@given(st.binary(max_size=80))
def test_any_bytes_give_a_set_or_a_named_error(data: bytes) -> None:
    for attempt in (data, b"RASI" + data, wrap(data), wrap(b"\x83" + data), wrap(b"\x83\x6c\x00\x00\x00\x02" + data)):
        live = None
        with suppress(CorruptIndexesError):
            live = decode_indexes(attempt, file="indexes")
        assert live is None or decode_indexes(encode_indexes(live)) == live


ITEM = st.tuples(INDEX, st.integers(0, 5), st.booleans())


@given(st.lists(ITEM | ITEM.map(lambda item: (item[0] % 70_000, *item[1:])), max_size=40), st.integers(0, 3))
def test_elements_of_any_shape_and_order_are_understood(items: list[tuple[int, int, bool]], junk: int) -> None:
    """Runs of one shape are read at once: the same as one by one, wherever a run begins and ends."""
    terms: list[etf.Term] = []
    expected: set[tuple[int, int]] = set()
    for low, more, pair in items:
        high = min(low + more, MAX_INDEX) if pair else low
        terms.append((low, high) if pair else low)
        expected.add((low, high))
    body = b"".join(etf.encode(term)[1:] for term in terms)
    data = b"\x83\x6c" + len(terms).to_bytes(4, "big") + body + b"\x6a"
    assert decode_sequence(data) == LiveSet.from_ranges(expected)
    if terms and junk:
        with pytest.raises(TermFormatError):
            decode_sequence(data[: -1 - junk])


@given(st.lists(INDEX))
def test_round_trip(indexes: list[int]) -> None:
    live = LiveSet.from_indexes(indexes)
    assert decode_indexes(encode_indexes(live)) == live
    assert LiveSet.parse(str(live)) == live
    assert pickle.loads(pickle.dumps(live)) == live
    assert hash(live) == hash(LiveSet.from_indexes(reversed(indexes)))


@given(st.lists(INDEX), st.lists(INDEX, max_size=20), INDEX, INDEX)
def test_behaves_as_a_python_set(indexes: list[int], probes: list[int], low: int, high: int) -> None:
    live, model = LiveSet.from_indexes(indexes), set(indexes)
    assert (len(live), bool(live), list(live)) == (len(model), bool(model), sorted(model))
    probes = probes + indexes[:5]
    mask = live.mask(np.array(probes, dtype=np.uint64))
    assert mask.tolist() == [probe in model for probe in probes]
    assert [probe in live for probe in probes] == mask.tolist()
    inside = {index for index in model if low <= index <= high}
    assert live.count_in(low, high) == len(inside)
    assert set(live.clip(low, high)) == inside
    if model:
        assert (live.smallest, live.largest) == (min(model), max(model))


@given(st.lists(st.tuples(SMALL, SMALL)))
def test_ranges_merge_and_stay_apart(pairs: list[tuple[int, int]]) -> None:
    pairs = [(min(pair), max(pair)) for pair in pairs]
    live = LiveSet.from_ranges(pairs)
    assert set(live) == {index for low, high in pairs for index in range(low, high + 1)}
    ranges = live.ranges
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))
    assert LiveSet.from_ranges(reversed(ranges)) == live


@given(st.lists(st.tuples(SMALL, SMALL)), st.lists(st.tuples(SMALL, SMALL)), st.booleans())
def test_difference_is_that_of_python_sets(one: list[tuple[int, int]], two: list[tuple[int, int]], top: bool) -> None:
    """At both ends of the number space."""
    shift = MAX_INDEX - 30 if top else 0
    left, right = (
        LiveSet.from_ranges((shift + min(pair), shift + max(pair)) for pair in pairs if max(pair) <= 30)
        for pairs in (one, two)
    )
    assert set(left.without(right)) == set(left) - set(right)
    starts, ends = left.bounds
    assert left.ranges == tuple(zip(starts.tolist(), ends.tolist(), strict=True))


def test_ends_of_the_number_space() -> None:
    live = LiveSet.from_ranges([(0, 0), (2**64 - 2, 2**64 - 1)])
    assert (len(live), live.count_in(0, 2**64 - 1), live.count_in(-5, 2**70)) == (3, 3, 3)
    assert live.mask(np.array([0, 1, 2**64 - 1], dtype=np.uint64)).tolist() == [True, False, True]
    assert live.clip(5, 3) == LiveSet.empty()
    assert "a" not in live
    for bad in ([(5, 4)], [(0, 2**64 - 1)], [(0, 2**64)], [(-1, 4)]):
        with pytest.raises(ValueError, match=r"range|index|indexes"):
            LiveSet.from_ranges(bad)
    for empty in (LiveSet.empty(), LiveSet.parse(" ")):
        assert not empty
        assert (str(empty), len(empty), list(empty), repr(empty)) == ("", 0, [], "LiveSet(0 indexes in 0 ranges)")
        with pytest.raises(ValueError, match="empty"):
            _ = empty.smallest
        with pytest.raises(ValueError, match="empty"):
            _ = empty.largest


@pytest.mark.parametrize(
    "text", ["x", "1-", "-1", "5-3", "1,,2", "1;2", "0-18446744073709551616", "0-9999999999999999999"]
)
def test_bad_text_is_named(text: str) -> None:
    with pytest.raises(LiveSetSyntaxError):
        LiveSet.parse(text)


@given(st.text(alphabet="0123456789-, ", max_size=30) | st.text(max_size=20))
def test_any_text_gives_a_set_or_a_named_error(text: str) -> None:
    with suppress(LiveSetSyntaxError):
        live = LiveSet.parse(text)
        assert LiveSet.parse(str(live)) == live


def test_sequence_alone_reports_the_term_error() -> None:
    with pytest.raises(TermFormatError):
        decode_sequence(b"\x83\x61\x05")
