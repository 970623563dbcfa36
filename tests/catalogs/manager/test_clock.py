"""Hybrid clocks: later each time, whatever the source of milliseconds does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.manager.clock import HybridClock, system_milliseconds
from compaction.catalogs.model.descriptors import MAX_LOGICAL, MAXIMUM, hybrid, logical, physical


def test_a_timestamp_is_the_millisecond_and_a_counter() -> None:
    clock = HybridClock(lambda: 1000)
    assert [clock.now() for _ in range(3)] == [hybrid(1000), hybrid(1000, 1), hybrid(1000, 2)]


@given(
    st.lists(
        st.tuples(st.integers(-5, 1 << 40), st.none() | st.integers(1, MAXIMUM >> 1)),
        min_size=1,
        max_size=30,
    )
)
def test_timestamps_only_grow(steps: list[tuple[int, int | None]]) -> None:
    """A source that steps back, and timestamps of other clocks, in any order."""
    milliseconds = 0
    clock = HybridClock(lambda: milliseconds)
    last = 0
    for milliseconds, remote in steps:
        found = clock.now() if remote is None else clock.update(remote)
        assert found > last
        assert found >= max(milliseconds, 0) << 16
        assert remote is None or found > remote
        last = found
        assert clock.read() == max(last, milliseconds << 16)


def test_a_full_counter_moves_the_millisecond() -> None:
    clock = HybridClock(lambda: 1000)
    assert clock.update(hybrid(1000, MAX_LOGICAL)) == hybrid(1001)
    assert (physical(clock.now()), logical(clock.read())) == (1001, 1)


@pytest.mark.parametrize("remote", [0, -1, MAXIMUM, MAXIMUM + 1])
def test_what_no_timestamp_can_follow(remote: int) -> None:
    with pytest.raises(ValueError, match="no timestamp"):
        HybridClock(lambda: 1000).update(remote)


def test_threads_never_get_the_same() -> None:
    clock = HybridClock(lambda: 1000)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: [clock.now() for _ in range(500)], range(8)))
    assert len({item for each in found for item in each}) == 4000
    assert all(each == sorted(each) for each in found)


def test_the_source_is_the_time_of_day() -> None:
    assert system_milliseconds() > 1_700_000_000_000
    assert physical(HybridClock().now()) > 1_700_000_000_000
