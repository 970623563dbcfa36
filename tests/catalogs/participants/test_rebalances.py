"""Rebalances, scenario by scenario: what a zone whose partitions move still needs of the catalog."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.catalogs.commands.zone_commands import AlterZone, CreateZone
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.participants.rebalances import (
    ZoneAssignments,
    ZoneHistory,
    moves_partitions,
    rebalance_of,
    rebalances,
    zone_histories,
)
from compaction.catalogs.participants.reports import Rebalance
from support.catalogs.worlds import World, table

NOW = hybrid(100_000)
BEFORE, ALTER, LATEST = 100, 200, 300
ZONE = ZoneHistory(7, (BEFORE, ALTER))
FOUR = range(4)


def at(timestamp: int, partitions: range = FOUR) -> dict[int, int]:
    return dict.fromkeys(partitions, timestamp)


def minimum(history: ZoneHistory, assignments: ZoneAssignments, now: int = LATEST) -> int:
    """The clock stands for "up to now"."""
    found = rebalance_of(history, assignments, now)
    return now if found is None else found.minimum


@pytest.mark.parametrize(
    ("name", "history", "assignments", "least", "below"),
    [
        ("no assignments and a filter change", ZONE, ZoneAssignments(4), BEFORE, ALTER),
        ("stable old", ZONE, ZoneAssignments(4, at(BEFORE)), BEFORE, ALTER),
        ("not all stable new", ZONE, ZoneAssignments(4, at(BEFORE) | {0: ALTER}), BEFORE, ALTER),
        ("all stable new", ZONE, ZoneAssignments(4, at(ALTER)), LATEST, LATEST + 1),
        ("dropped with stable", replace(ZONE, dropped=250), ZoneAssignments(4, at(ALTER)), BEFORE, LATEST),
        ("dropped without", replace(ZONE, dropped=250), ZoneAssignments(4), LATEST, LATEST + 1),
        ("partial pending", ZONE, ZoneAssignments(4, at(BEFORE), {0: ALTER, 2: ALTER}), BEFORE, ALTER),
        ("full pending", ZONE, ZoneAssignments(4, at(BEFORE), at(ALTER)), LATEST, LATEST + 1),
        ("partial pending, rest never assigned", ZONE, ZoneAssignments(4, {}, {1: ALTER}), BEFORE, ALTER),
        ("pending of an older change", replace(ZONE, changes=(BEFORE, ALTER, 250)),
         ZoneAssignments(4, at(BEFORE), at(ALTER)), ALTER, 250),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_window(name: str, history: ZoneHistory, assignments: ZoneAssignments, least: int, below: int) -> None:
    assert least <= minimum(history, assignments) < below, name


def test_a_change_that_is_not_active_yet_moves_nothing() -> None:
    assert rebalance_of(ZONE, ZoneAssignments(4, at(BEFORE)), now=ALTER - 1) is None
    assert rebalance_of(replace(ZONE, dropped=400), ZoneAssignments(4, at(ALTER)), now=LATEST) is None


def test_a_rebalance_says_since_when() -> None:
    assert rebalance_of(ZONE, ZoneAssignments(4, at(BEFORE)), LATEST) == Rebalance(7, ALTER - 1, since=ALTER)


def test_zones_of_a_catalog() -> None:
    """no tables -> nothing is held; harmless alter then filter alter -> [intermediate, latest)."""
    world = World.started()
    versions = [world.catalog]

    def run(*commands: object) -> Catalog:
        world.run(*commands)  # type: ignore[arg-type]
        versions.append(world.catalog)
        return world.catalog

    created = run(CreateZone("Z", ("p",), partitions=4))
    run(CreateZone("EMPTY", ("p",), partitions=4))
    zone, empty = world.catalog.zone("Z"), world.catalog.zone("EMPTY")
    assert zone is not None
    assert empty is not None
    run(AlterZone("EMPTY", filter="$[?(@.a == 1)]"))
    assert zone_histories(versions) == {}, "no table, nothing to move"
    run(table("T", zone="Z"))
    intermediate = run(AlterZone("Z", scale_up=5))
    assert zone_histories(versions)[zone.id].changes == (created.activation_time,)
    latest = run(AlterZone("Z", filter="$[?(@.a == 1)]"))
    histories = zone_histories(versions)
    assert list(histories) == [zone.id], "a zone without tables has nothing to move"
    (found,) = rebalances(histories, {}, NOW)
    assert intermediate.activation_time <= found.minimum < latest.activation_time
    assert rebalances(histories, {zone.id: ZoneAssignments(4, at(latest.activation_time))}, NOW) == ()


def test_which_settings_move_partitions() -> None:
    world = World.started()
    world.run(CreateZone("Z", ("p", "q"), partitions=4))
    before = world.catalog.zone("Z")
    assert before is not None
    for changed, moves in (
        (replace(before, partitions=5), True),
        (replace(before, replicas=2), True),
        (replace(before, quorum_size=2), True),
        (replace(before, filter="$..x"), True),
        (replace(before, storage_profiles=("p",)), True),
        (replace(before, scale_up=9, scale_down=9), False),
        (replace(before, name="Y", update_timestamp=9), False),
    ):
        assert moves_partitions(before, changed) is moves
