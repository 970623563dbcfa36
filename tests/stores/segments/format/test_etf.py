"""The external term subset: known bytes, round trips, hostile bytes."""

from __future__ import annotations

import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.errors import TermFormatError
from compaction.segments.format import etf
from compaction.segments.format.etf import Atom, Term

# As erlang:term_to_binary/1 of OTP 27 writes them.
KNOWN: list[tuple[Term, str]] = [
    (0, "836100"),
    (255, "8361ff"),
    (256, "836200000100"),
    (-1, "8362ffffffff"),
    (2**31 - 1, "83627fffffff"),
    (2**31, "836e040000000080"),
    (-(2**31), "836280000000"),
    (-(2**31) - 1, "836e040101000080"),
    (2**64 - 1, "836e0800ffffffffffffffff"),
    ([], "836a"),
    ([7], "836b000107"),
    ([0, 255], "836b000200ff"),
    ([256], "836c00000001620000010" + "06a"),
    ([Atom("a")], "836c000000017701616a"),
    ((1, [2]), "8368026101" + "6b000102"),
    ((), "836800"),
    (b"ab", "836d000000026162"),
    (Atom("index"), "837705696e646578"),
    ({Atom("a"): 1}, "8374000000017701616101"),
    (
        [b"0000000000000001.segment"],
        "836c000000016d00000018" + b"0000000000000001.segment".hex() + "6a",
    ),
]

scalars = st.integers(-(2**70), 2**70) | st.binary(max_size=10) | st.builds(Atom, st.text(max_size=20))
terms = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.integers(-5, 5) | st.builds(Atom, st.text(max_size=3)), inner, max_size=3)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(("term", "expected"), KNOWN)
def test_known_bytes(term: Term, expected: str) -> None:
    assert etf.encode(term).hex() == expected
    assert etf.decode(bytes.fromhex(expected)) == term


@given(terms)
def test_round_trip(term: Term) -> None:
    assert etf.decode(etf.encode(term)) == term


def test_long_forms() -> None:
    long_tuple = tuple(range(300))
    assert etf.encode(long_tuple)[1] == etf.LARGE_TUPLE
    assert etf.decode(etf.encode(long_tuple)) == long_tuple
    wide = Atom("ä" * 200)
    assert etf.encode(wide)[1] == etf.ATOM_UTF8
    assert etf.decode(etf.encode(wide)) == wide
    many: list[Term] = [1] * 70_000
    assert etf.encode(many)[1] == etf.LIST
    assert etf.decode(etf.encode(many)) == many
    assert etf.decode(b"\x83\x64\x00\x01\xe4") == Atom("ä")
    assert etf.decode(b"\x83\x73\x01\xe4") == Atom("ä")
    with pytest.raises(TermFormatError, match="255"):
        etf.encode(Atom("a" * 256))
    with pytest.raises(TermFormatError, match="larger than any index"):
        etf.encode(2**512)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cut off"),
        (b"\x83", "cut off"),
        (b"\x00\x61\x01", "begins with byte 131"),
        (b"\x83\x61", "cut off"),
        (b"\x83\x62\x00", "cut off"),
        (b"\x83\x61\x01\x00", "follow"),
        (b"\x83\x6d\xff\xff\xff\xffab", "cut off"),
        (b"\x83\x6c\xff\xff\xff\xff", "claimed"),
        (b"\x83\x69\xff\xff\xff\xff", "claimed"),
        (b"\x83\x74\xff\xff\xff\xff", "claimed"),
        (b"\x83\x6c\x00\x00\x00\x01\x61\x01\x61\x02", "improper"),
        (b"\x83\x6f\xff\xff\xff\xff\x00", "larger than any index"),
        (b"\x83\x77\x02\xff\xff", "UTF-8"),
        (b"\x83\x74\x00\x00\x00\x01\x6a\x61\x01", "map key"),
        (b"\x83\x46" + bytes(8), "outside the supported subset"),
        (b"\x83\x50\x13\x88\x00\x00" + zlib.compress(b"\x6d" + bytes(100)), "outside the supported subset"),
        (b"\x83" + b"\x68\x01" * 100_000 + b"\x6a", "nested deeper"),
    ],
)
def test_bad_bytes(data: bytes, says: str) -> None:
    with pytest.raises(TermFormatError, match=says):
        etf.decode(data)


@given(st.binary(max_size=120))
def test_any_bytes_give_a_term_or_a_named_error(data: bytes) -> None:
    for attempt in (data, b"\x83" + data, b"\x83\x6c\x00\x00\x00\x03" + data, b"\x83\x74\x00\x00\x00\x02" + data):
        with suppress(TermFormatError):
            etf.decode(attempt)
