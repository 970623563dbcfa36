"""Active transactions: the minimum steps from version to version as they end, and none is ever missed."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.commands.zone_commands import AlterZone, CreateZone
from compaction.catalogs.errors import CatalogError
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
from compaction.catalogs.participants.watermark import ActiveTransactions, CatalogVersions
from support.catalogs.participants import Clock, Versions
from support.catalogs.rounds import World, table


def tracker(*activations: int) -> tuple[ActiveTransactions, Clock, Versions]:
    clock, versions = Clock(activations[-1] + 1), Versions(dict(enumerate(activations)))
    return ActiveTransactions(clock, versions), clock, versions


def test_five_versions_of_a_hundred_transactions_each() -> None:
    """Finishing in order, the minimum steps to the next version's time every 100."""
    clock, versions = Clock(0), Versions({})
    active = ActiveTransactions(clock, versions)
    begun: list[int] = []
    for version in range(5):
        versions.add(version, 1000 * (version + 1))
        clock.now = 1000 * (version + 1)
        begun += [active.begin() for _ in range(100)]
    assert active.minimum().required == 1000
    for finished, timestamp in enumerate(begun, 1):
        assert active.minimum().oldest == timestamp
        assert active.finish(timestamp)
        if finished < len(begun):
            assert active.minimum().required == 1000 * (finished // 100 + 1)
    assert len(active) == 0
    before = clock.now = 9000
    found = active.minimum()
    clock.now = 9002
    assert before <= found.required <= clock.now, "with none: between two reads of the clock"
    assert (found.oldest, found.clock) == (UNDEFINED, found.required)


def test_finishing_in_any_order_keeps_the_lowest_version() -> None:
    active, clock, versions = tracker(10, 20)
    first = active.begin()
    versions.add(2, 100)
    clock.now = 200
    second = active.begin()
    assert active.finish(second)
    assert active.minimum().required == 20
    assert active.finish(first)
    assert active.minimum().required > 200


def test_a_second_end_and_an_unknown_begin_time_change_nothing() -> None:
    active, _, _ = tracker(10)
    one, two = active.begin(), active.begin()
    assert active.finish(one)
    assert not active.finish(one)
    assert not active.finish(12345)
    assert (len(active), active.minimum().oldest) == (1, two)


def test_begin_times_differ_while_the_clock_stands_or_goes_back() -> None:
    active, clock, _ = tracker(10)
    begun = [active.begin(), active.begin()]
    promised = active.minimum().clock
    clock.now = 10
    begun.append(active.begin())
    assert begun == sorted(set(begun))
    assert begun[-1] > promised


def test_a_transaction_that_no_version_is_active_for_does_not_begin() -> None:
    active, clock, _ = tracker(10)
    clock.now = -100
    fresh = ActiveTransactions(clock, Versions({0: 50}))
    clock.now = 20
    with pytest.raises(CatalogError):
        fresh.begin()
    assert len(fresh) == 0
    assert active.begin() > 0


def test_all_before_a_version_have_finished() -> None:
    active, clock, versions = tracker(10, 20)
    old = active.begin()
    assert not active.finished_before(2), "a transaction may still begin below it"
    versions.add(2, 100)
    assert not active.finished_before(2), "known and not yet active"
    clock.now = 200
    new = active.begin()
    assert not active.finished_before(2)
    assert active.finished_before(1)
    active.finish(old)
    assert active.finished_before(2)
    active.finish(new)
    assert active.finished_before(2)
    assert not active.finished_before(3)


def test_a_restart_forgets_transactions() -> None:
    active, clock, _ = tracker(10)
    begun = active.begin()
    active.forget()
    clock.now = 500
    assert active.minimum().required >= 500
    assert not active.finish(begun)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=60))
def test_the_minimum_is_that_of_the_open_transactions(steps: list[tuple[int, int]]) -> None:
    clock, versions = Clock(100), Versions({0: 1})
    active = ActiveTransactions(clock, versions)
    open_: dict[int, int] = {}
    last = 0
    for kind, number in steps:
        clock.now += number
        if kind == 0:
            _, activation = versions.active(begun := active.begin())
            open_[begun] = activation
        elif kind == 1 and open_:
            chosen = sorted(open_)[number % len(open_)]
            del open_[chosen]
            assert active.finish(chosen)
        elif kind == 2:
            versions.add(len(versions.activations), clock.now + 1)
            clock.now += 1
        found = active.minimum()
        assert found.required == min(open_.values(), default=found.clock)
        assert found.oldest == min(open_, default=UNDEFINED)
        _, needed = versions.active(found.required)
        assert needed >= last, "the version that is needed never becomes older, so what was promised holds"
        last = needed


def test_no_transaction_begins_below_a_minimum_that_was_answered() -> None:
    """Threads begin and end while another asks: what is open at an answer, or begins after it, is not below it."""
    counter = itertools.count(1000)
    versions = Versions({0: 1})
    active = ActiveTransactions(lambda: next(counter), versions)
    wrong, answered = list[str](), [0]

    def work() -> None:
        for _ in range(500):
            promised = answered[0]
            begun = active.begin()
            if begun <= promised:
                wrong.append(f"{begun} began below {promised}")
            active.finish(begun)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    version = 0
    while any(worker.is_alive() for worker in workers):
        version += 1
        versions.activations = {0: 1, version: next(counter)}
        answered[0] = active.minimum().clock
    for worker in workers:
        worker.join()
    assert wrong == []
    assert len(active) == 0


def test_versions_of_a_catalog_that_the_process_keeps() -> None:
    """As its manager answers: the last version whose activation time is not after the timestamp."""
    world = World.started()
    active = ActiveTransactions(Clock(world.catalog.activation_time + 5), CatalogVersions(lambda _: world.catalog))
    active.begin()
    assert active.minimum().required == world.catalog.activation_time
    assert active.finished_before(world.catalog.version)


# Rebalances, scenario by scenario: what a zone whose partitions move still needs of the catalog.

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
