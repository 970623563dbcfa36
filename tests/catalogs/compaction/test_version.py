"""The version to cut to, as a table: the one before the version that is active at the required time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.commands.schema_commands import CreateSchema
from compaction.catalogs.compaction.round import history_of, is_shortest, snapshot_candidate
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.manager.history import START, CatalogHistory
from compaction.catalogs.model.catalog import EMPTY
from compaction.catalogs.model.entries import VersionedUpdate
from support.catalogs.rounds import Story, timeline

WHOLE = timeline(10, 20, 30, 40)
AFTER_2 = CatalogHistory(list(WHOLE)[1:])
AFTER_3 = CatalogHistory(list(WHOLE)[2:])


@pytest.mark.parametrize(
    ("history", "required", "candidate"),
    [
        # No snapshot yet: the one to version 1 would cut nothing.
        (WHOLE, 1, None), (WHOLE, 9, None), (WHOLE, 10, None), (WHOLE, 19, None), (WHOLE, 20, None), (WHOLE, 29, None),
        (WHOLE, 30, 2), (WHOLE, 39, 2), (WHOLE, 40, 3), (WHOLE, 10**9, 3),
        # The snapshot is version 2.
        (AFTER_2, 1, None), (AFTER_2, 19, None), (AFTER_2, 20, None), (AFTER_2, 29, None), (AFTER_2, 30, None),
        (AFTER_2, 39, None), (AFTER_2, 40, 3), (AFTER_2, 10**9, 3),
        # As short as it gets.
        (AFTER_3, 10**9, None), (START, 10**9, None),
    ],
)  # fmt: skip
def test_the_version_before_the_active_one_is_the_candidate(
    history: CatalogHistory, required: int, candidate: int | None
) -> None:
    found = snapshot_candidate(history, required)
    assert (None if found is None else found.version) == candidate


def test_a_history_knows_its_ends() -> None:
    assert (WHOLE.earliest.version, WHOLE.latest.version, is_shortest(WHOLE)) == (1, 4, False)
    assert (AFTER_3.earliest.version, AFTER_3.latest.version, is_shortest(AFTER_3)) == (3, 4, True)
    assert (START.earliest.version, START.latest.version, is_shortest(START)) == (0, 0, True)
    assert [WHOLE.find_active(at) for at in (1, 9)] == [None, None]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30, unique=True).map(sorted), st.integers(0, 1100))
def test_what_is_active_from_the_required_time_on_stays(times: list[int], required: int) -> None:
    """Never the latest, never the active version: also the version before that one is kept, as the snapshot."""
    history = timeline(*times)
    found = snapshot_candidate(history, required)
    if found is None:
        return
    active = history.find_active(required)
    assert active is not None
    assert found.version == active.version - 1 < history.latest.version
    assert found.activation_time < active.activation_time <= required
    kept = CatalogHistory(list(history)[found.version - 1 :])
    assert kept.earliest is found
    for at in range(required, 1101, 7):
        assert kept.find_active(at) is history.find_active(at)


def test_versions_come_from_the_log_and_go_on_from_a_snapshot() -> None:
    story = Story()
    for name in ("A", "B", "C"):
        story.run(CreateSchema(name))
    snapshot = story.versions[1].snapshot()
    updates = [
        LogEvent(VersionedUpdate(1, 5, ()), 100, 1),
        LogEvent(snapshot, snapshot.activation_time, 2),
        LogEvent(VersionedUpdate(3, 5, ()), snapshot.activation_time + 1, 3),
    ]
    history = history_of(updates)
    assert [item.version for item in history] == [2, 3]
    assert history.earliest.schema("A") is not None
    assert history_of(updates[:1]).earliest.version == EMPTY.version + 1
