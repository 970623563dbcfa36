"""Versions by number and by time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.errors import CatalogNotFoundError, InapplicableEntryError
from compaction.catalogs.manager.history import START, CatalogHistory
from compaction.catalogs.model.catalog import EMPTY, Catalog


def version(number: int, time: int) -> Catalog:
    return replace(EMPTY, version=number, activation_time=time)


def grown(*times: int) -> CatalogHistory:
    """Versions 1, 2, ... active at these times."""
    history = START
    for number, time in enumerate(times, 1):
        history = history.appended(version(number, time))
    return history


def numbers(history: CatalogHistory) -> list[int]:
    return [item.version for item in history]


@pytest.mark.parametrize(("at", "found"), [(0, None), (1, 1), (2, 1), (3, 3), (4, 3)])
def test_by_index_map_floor_on_keys_1_and_3(at: int, found: int | None) -> None:
    """By-index map: floor on keys {1,3}: 0 none, 1->1, 2->1, 3->3, 4->3."""
    history = CatalogHistory([version(1, 1), version(2, 3)])
    if found is None:
        with pytest.raises(CatalogNotFoundError, match="no catalog found for the time 0"):
            history.active(at)
    else:
        assert history.active(at).activation_time == found


def test_by_index_map_clear_head_keeps_the_key_itself() -> None:
    """By-index map: clearHead keeps the key itself."""
    history = grown(10, 20, 30, 40)
    cut = history.snapshotted(version(2, 20))
    assert numbers(cut) == [2, 3, 4]
    assert (cut.active(20).version, cut.active(19 + 11).version) == (2, 3)
    with pytest.raises(CatalogNotFoundError, match="version 1 not found: versions 2 to 4 are retained"):
        cut.catalog(1)
    with pytest.raises(CatalogNotFoundError, match="the earliest retained version 2 is active from 20 on"):
        cut.active(19)
    assert numbers(history) == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(0, 600), st.data())
def test_reads_are_those_of_a_list(steps: list[int], at: int, data: st.DataObject) -> None:
    times = [1]
    for step in steps:
        times.append(times[-1] + step)
    history = grown(*times[1:])
    cut = data.draw(st.integers(0, len(times) - 1))
    history = history.snapshotted(version(cut, times[cut]))
    assert (history.earliest.version, history.latest.version, len(history)) == (cut, len(steps), len(times) - cut)
    for number in range(-1, len(times) + 2):
        found = history.find(number)
        assert (found is not None and found.version == number) == (cut <= number < len(times))
    expected = [number for number in range(cut, len(times)) if times[number] <= at]
    if expected:
        assert history.active(at).version == expected[-1]
    else:
        with pytest.raises(CatalogNotFoundError):
            history.active(at)


def test_two_histories_may_grow_from_one() -> None:
    """A history does not change, whatever is appended to it, also when it is appended to twice."""
    base = grown(10, 20)
    one, other = base.appended(version(3, 30)), base.appended(version(3, 31))
    longer = one.appended(version(4, 40))
    assert [each.latest.activation_time for each in (base, one, other, longer)] == [20, 30, 31, 40]
    assert (numbers(base), numbers(other), numbers(longer)) == ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4])
    assert base.active(1000).version == 2
    assert base.find(3) is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (version(2, 30), "version 2: the version cannot be applied: version 2 is the one before it"),
        (version(4, 30), "version 4: the version cannot be applied"),
        (version(3, 20), "20 is not after 20, that of version 2"),
        (version(3, 19), "19 is not after 20"),
    ],
)
def test_a_version_follows_the_latest_and_is_active_later(wrong: Catalog, reason: str) -> None:
    with pytest.raises(InapplicableEntryError, match=reason):
        grown(10, 20).appended(wrong)
    with pytest.raises(InapplicableEntryError, match=reason):
        CatalogHistory([*grown(10, 20), wrong])


def test_a_snapshot_jumps_over_what_was_never_read() -> None:
    history = grown(10, 20).snapshotted(version(7, 70))
    assert numbers(history) == [7]
    assert numbers(history.appended(version(8, 80))) == [7, 8]


def test_an_old_snapshot_changes_nothing() -> None:
    history = grown(10, 20, 30).snapshotted(version(3, 30))
    assert history.snapshotted(version(2, 20)) is history
    assert numbers(history.snapshotted(version(3, 30))) == [3]
