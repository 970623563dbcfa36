"""Hybrid timestamps: 48 bits of milliseconds, 16 bits of a counter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.model import hybrid


@given(st.integers(0, hybrid.MAX_PHYSICAL), st.integers(0, hybrid.MAX_LOGICAL))
def test_parts_return(milliseconds: int, counter: int) -> None:
    if not milliseconds and not counter:
        return
    timestamp = hybrid.hybrid(milliseconds, counter)
    assert (hybrid.physical(timestamp), hybrid.logical(timestamp)) == (milliseconds, counter)
    assert hybrid.MINIMUM <= timestamp <= hybrid.MAXIMUM
    assert hybrid.next_millisecond(timestamp) == milliseconds + (counter > 0)


def test_order_is_the_order_of_the_parts() -> None:
    stamps = [hybrid.hybrid(1), hybrid.hybrid(1, 1), hybrid.hybrid(1, 65535), hybrid.hybrid(2)]
    assert stamps == sorted(stamps)
    assert hybrid.later(stamps[1], 3) == hybrid.hybrid(4, 1)


@pytest.mark.parametrize(("milliseconds", "counter"), [(0, 0), (-1, 0), (1, 65536), (1, -1), (2**47, 0)])
def test_what_is_no_timestamp(milliseconds: int, counter: int) -> None:
    with pytest.raises(ValueError, match="no hybrid timestamp"):
        hybrid.hybrid(milliseconds, counter)


def test_moves_beyond_the_range() -> None:
    for timestamp, by in ((hybrid.MAXIMUM, 1), (hybrid.MINIMUM, -1)):
        with pytest.raises(ValueError, match="no hybrid timestamp"):
            hybrid.later(timestamp, by)
