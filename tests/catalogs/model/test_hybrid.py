"""Hybrid timestamps: 48 bits of milliseconds, 16 bits of a counter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.model import descriptors


@given(st.integers(0, descriptors.MAX_PHYSICAL), st.integers(0, descriptors.MAX_LOGICAL))
def test_parts_return(milliseconds: int, counter: int) -> None:
    if not milliseconds and not counter:
        return
    timestamp = descriptors.hybrid(milliseconds, counter)
    assert (descriptors.physical(timestamp), descriptors.logical(timestamp)) == (milliseconds, counter)
    assert descriptors.MINIMUM <= timestamp <= descriptors.MAXIMUM
    assert descriptors.next_millisecond(timestamp) == milliseconds + (counter > 0)


def test_order_is_the_order_of_the_parts() -> None:
    stamps = [descriptors.hybrid(1), descriptors.hybrid(1, 1), descriptors.hybrid(1, 65535), descriptors.hybrid(2)]
    assert stamps == sorted(stamps)
    assert descriptors.later(stamps[1], 3) == descriptors.hybrid(4, 1)


@pytest.mark.parametrize(("milliseconds", "counter"), [(0, 0), (-1, 0), (1, 65536), (1, -1), (2**47, 0)])
def test_what_is_no_timestamp(milliseconds: int, counter: int) -> None:
    with pytest.raises(ValueError, match="no hybrid timestamp"):
        descriptors.hybrid(milliseconds, counter)


def test_moves_beyond_the_range() -> None:
    for timestamp, by in ((descriptors.MAXIMUM, 1), (descriptors.MINIMUM, -1)):
        with pytest.raises(ValueError, match="no hybrid timestamp"):
            descriptors.later(timestamp, by)
