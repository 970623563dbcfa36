"""Steps that follow one another."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event, Thread

import pytest

from compaction.catalogs.errors import CatalogClosedError
from compaction.catalogs.manager import futures
from compaction.catalogs.manager.events import Readiness
from compaction.catalogs.manager.futures import InlineRunner, Runner, ThreadRunner


def test_results_and_errors_go_on() -> None:
    def fails(_: int) -> Future[int]:
        raise KeyError("step")

    assert futures.then(futures.done(1), lambda item: futures.done(item + 1)).result(0) == 2
    assert isinstance(futures.then(futures.done(1), fails).exception(0), KeyError)
    error = ValueError("first")
    assert futures.then(futures.failed(error), fails).exception(0) is error


def test_an_interrupt_is_nobodys_result() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        futures.outcome_of(interrupted)


def test_no_caller_cancels_what_happens_anyway() -> None:
    future: Future[int] = futures.pending()
    assert not future.cancel()
    future.set_result(1)
    assert future.result(0) == 1


def test_a_chain_waits_for_the_one_before() -> None:
    chain = futures.Chain()
    ran: list[int] = []
    gates: list[Future[int]] = [futures.pending() for _ in range(3)]

    def action(number: int) -> Future[int]:
        ran.append(number)
        return gates[number]

    answers = [chain.add(lambda number=number: action(number)) for number in range(3)]  # type: ignore[misc]
    assert ran == [0]
    gates[1].set_result(11)
    gates[0].set_exception(ValueError("the first fails"))
    assert ran == [0, 1, 2]
    assert answers[1].result(0) == 11
    assert not answers[2].done()


def test_a_long_chain_needs_no_deep_stack() -> None:
    chain = futures.Chain()
    gate: Future[int] = futures.pending()
    chain.add(lambda: gate)
    answers = [chain.add(lambda: futures.done(1)) for _ in range(20_000)]
    gate.set_result(0)
    assert sum(answer.result(0) for answer in answers) == 20_000


@pytest.mark.parametrize("make", [ThreadRunner, InlineRunner])
def test_runners_keep_the_order_and_return_errors(make: type[ThreadRunner] | type[InlineRunner]) -> None:
    runner: Runner = make()
    ran: list[int] = []

    def action(number: int) -> int:
        ran.append(number)
        if number == 3:
            raise KeyError(number)
        return number

    answers = [runner.submit(lambda number=number: action(number)) for number in range(6)]  # type: ignore[misc]
    assert [answer.exception(60) is None for answer in answers] == [True, True, True, False, True, True]
    assert ran == list(range(6))
    runner.close()
    assert isinstance(runner.submit(lambda: 1).exception(60), CatalogClosedError)


def test_actions_that_wait_do_not_run_after_close() -> None:
    runner = ThreadRunner()
    began, go = Event(), Event()

    def long() -> None:
        began.set()
        assert go.wait(60)

    first = runner.submit(long)
    second = runner.submit(lambda: 1)
    third = futures.then(second, lambda _: runner.submit(lambda: 2))
    assert began.wait(60)
    closing = Thread(target=runner.close)
    closing.start()
    while not isinstance(runner.submit(lambda: 3).exception(60) if runner._closed else None, CatalogClosedError):
        assert closing.is_alive()
    go.set()
    closing.join(60)
    assert first.result(0) is None
    assert [type(each.exception(0)) for each in (second, third)] == [CatalogClosedError, CatalogClosedError]


def test_an_action_that_submits_ends_before_the_next() -> None:
    runner = InlineRunner()
    ran: list[str] = []

    def outer() -> None:
        runner.submit(lambda: ran.append("inner"))
        ran.append("outer")

    runner.submit(outer)
    assert ran == ["outer", "inner"]


def test_versions_become_ready_in_any_order_of_waits() -> None:
    ready = Readiness()
    waiting = {version: ready.until(version) for version in (5, 1, 3, 3, 2)}
    ready.reach(3)
    assert {version for version, future in waiting.items() if future.done()} == {1, 2, 3}
    ready.reach(2)
    assert ready.version == 3
    error = ValueError("stopped")
    ready.stop(error)
    ready.stop(KeyError("later"))
    assert waiting[5].exception(0) is error
    assert ready.until(4).exception(0) is error
    assert ready.until(3).result(0) is None
