"""Active transactions: the minimum steps from version to version as they end, and none is ever missed."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.errors import CatalogError
from compaction.catalogs.participants.watermark import ActiveTransactions, CatalogVersions
from support.catalogs.participants import Clock, Versions
from support.catalogs.worlds import World


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
