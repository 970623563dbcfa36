"""From a command to its answer: attempts, order, batches, and when the answer comes."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event, Thread

import pytest

from compaction.catalogs.commands.schema_commands import CreateSchema
from compaction.catalogs.commands.table_commands import DropTable
from compaction.catalogs.errors import (
    CatalogClosedError,
    CatalogConflictError,
    CatalogStoppedError,
    CatalogValidationError,
)
from compaction.catalogs.log.port import LogEvent, Renewal
from compaction.catalogs.manager import futures
from compaction.catalogs.manager.events import Readiness
from compaction.catalogs.manager.futures import InlineRunner, Runner, ThreadRunner
from compaction.catalogs.manager.manager import Executed
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.descriptors import hybrid, later, physical
from compaction.catalogs.model.entries import VersionedUpdate
from support.catalogs.logs import START, stage
from support.catalogs.memory_log import ListLog, LosingLog
from support.catalogs.rounds import table
from support.clocks import PATIENCE_SECONDS

ABSENT = DropTable("PUBLIC", "ABSENT", if_exists=True)


def test_manager_gives_up_after_ten_appends() -> None:
    """Manager: exactly 10 appends under constant CAS loss."""
    log = LosingLog(since=2)
    one = stage(log)
    error = one.manager.execute(table("T")).exception(0)
    assert isinstance(error, CatalogConflictError)
    assert "in each of 10 attempts" in str(error)
    assert log.lost == 10


def test_each_attempt_is_checked_against_the_newer_version() -> None:
    """The table appears between the read and the write: the second attempt is refused."""
    log = ListLog()
    one, other = stage(log), stage(log)
    log.held = True
    other.manager.execute(table("T"))
    refused = one.manager.execute(table("T"))
    log.pump()
    one.time.advance(5000)
    assert "table PUBLIC.T already exists" in str(refused.exception(0))
    assert log.version == 2


def test_manager_delay_of_a_year() -> None:
    """Manager: delay 365 days: latest inactive, activates after clock moves."""
    year = 365 * 24 * 3600 * 1000
    one = stage(ListLog(), delay=year)
    answer = one.manager.execute(table("T"))
    manager = one.manager
    assert manager.latest.version == 2
    assert manager.active_version(manager.clock.now()) == 1
    one.time.advance(year - 1)
    assert manager.active_version(manager.clock.now()) == 1
    one.time.advance(2)
    assert manager.active_version(manager.clock.now()) == 2
    assert not answer.done()
    one.time.advance(500)
    assert answer.result(0) == Executed((True,), 2, manager.latest.activation_time)


def test_manager_an_execute_without_a_new_version_waits_too() -> None:
    """Manager: second execute with no new version also waits."""
    one = stage(ListLog())
    first = one.manager.execute(table("T"))
    second = one.manager.execute(ABSENT)
    one.time.advance(900)
    assert (first.done(), second.done(), one.manager.latest.version) == (False, False, 2)
    one.time.advance(200)
    assert first.result(0) == Executed((True,), 2, one.manager.latest.activation_time)
    assert second.result(0) == Executed((False,), 2, one.manager.latest.activation_time)


@pytest.mark.parametrize(("delay", "skew"), [(500, 500), (1, 0), (0, 7)])
def test_manager_a_user_waits_for_delay_and_skew(delay: int, skew: int) -> None:
    """Manager: user wait >= delay + skew; rounded up to the next whole millisecond."""
    one = stage(ListLog(), delay=delay, skew=skew)
    one.manager.clock.now()
    began = one.time.milliseconds
    answer = one.manager.execute(table("T"))
    answered = []
    answer.add_done_callback(lambda _: answered.append(one.time.milliseconds))
    one.time.advance(10_000)
    time = one.manager.latest.activation_time
    assert answered == [physical(later(time, skew)) + 1], "the counter is not zero"
    assert answered[0] - began >= delay + skew


def test_a_refusal_waits_for_the_version_it_was_decided_on() -> None:
    """No user reads "already exists" of a table before it is readable."""
    one = stage(ListLog())
    one.manager.execute(table("T"))
    refused = one.manager.execute(table("T"))
    one.time.advance(999)
    assert not refused.done()
    one.time.advance(1)
    assert isinstance(refused.exception(0), CatalogValidationError)


def test_manager_a_batch_is_all_or_nothing() -> None:
    """Manager: batch [ok, ok, fail] all or nothing; batch = +1 version."""
    one = stage(ListLog())
    one.run(table("A"))
    refused = one.manager.execute([table("B"), table("C"), table("A")])
    one.time.advance(5000)
    assert isinstance(refused.exception(0), CatalogValidationError)
    assert one.manager.latest.version == 2
    done = one.run(table("B"), table("C"), CreateSchema("S"))
    assert (done.version, done.applied) == (3, (True, True, True))


def test_manager_bits_of_a_batch() -> None:
    """Manager: [empty, ok, empty, ok, empty] => bits 0,1,0,1,0."""
    one = stage(ListLog())
    done = one.run(ABSENT, table("A"), ABSENT, table("B"), ABSENT)
    assert done == Executed((False, True, False, True, False), 2, one.manager.latest.activation_time)


def test_no_commands_have_no_answer() -> None:
    log = ListLog()
    one = stage(log)
    calls = list(log.calls)
    assert one.manager.execute([]).result(0) is None
    assert log.calls == calls


def test_a_failure_does_not_reach_the_next() -> None:
    """Calls of one process are chained on the save, not on the wait, and the failure of one is its own."""
    one = stage(ListLog())
    answers = [one.manager.execute(command) for command in (table("A"), table("A"), table("B"))]
    assert one.manager.latest.version == 3
    one.time.advance(5000)
    assert [answer.exception(0) is None for answer in answers] == [True, False, True]


def test_the_next_begins_when_the_one_before_was_read() -> None:
    """The second does not lose its attempt to the first."""
    log = ListLog(held=True)
    one = stage(log, start=False)
    one.manager.start()
    log.pump()
    appends = log.calls.count("append")
    first, second = one.manager.execute(table("A")), one.manager.execute(table("B"))
    assert log.calls.count("append") == appends + 1
    log.pump()
    assert log.calls.count("append") == appends + 2
    log.pump()
    one.time.advance(10_000)
    assert [done.version for item in (first, second) if (done := item.result(0))] == [2, 3]


class BrokenLog(ListLog):
    """Every append but the first fails with `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        if self.version:
            raise self.error
        return super().append(update, timestamp)


def test_errors_of_the_log_come_at_once() -> None:
    one = stage(BrokenLog(error=ConnectionError("no answer")))
    answers = [one.manager.execute(table(name)) for name in ("A", "B")]
    assert [type(answer.exception(0)) for answer in answers] == [ConnectionError, ConnectionError]
    assert one.manager.latest.version == 1


@pytest.mark.parametrize("version", [2, 4])
def test_a_log_that_contradicts_itself_stops_the_catalog(version: int) -> None:
    """A gap, or an update that names what is not there: reads answer, changes fail with the version, once reported."""
    log = ListLog()
    one = stage(log)
    ready = one.manager.ready(2)
    broken = VersionedUpdate(version, 0, (model.DropTableEntry(99),))
    (watch,) = log.watches
    watch.deliver(LogEvent(broken, hybrid(START + 9000), 9))
    watch.deliver(LogEvent(broken, hybrid(START + 9001), 10))
    for future in (ready, one.manager.execute(table("T")), one.manager.ready(9), one.manager.compact(1, 1)):
        error = future.exception(0)
        assert isinstance(error, CatalogStoppedError)
        assert f"the catalog stopped at version 1: catalog version {version}" in str(error)
    assert len(one.reported) == 1
    assert one.manager.active_version(one.manager.clock.now()) == 1


def test_a_watch_that_fails_stops_the_catalog() -> None:
    log = ListLog()
    one = stage(log)
    (failed,) = log.failures
    failed(ConnectionError("gone for good"))
    error = one.manager.execute(table("T")).exception(0)
    assert isinstance(error, CatalogStoppedError)
    assert "gone for good" in str(error)
    assert one.reported == [error]


# Steps that follow one another.


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
        assert go.wait(PATIENCE_SECONDS)

    first = runner.submit(long)
    second = runner.submit(lambda: 1)
    third = futures.then(second, lambda _: runner.submit(lambda: 2))
    assert began.wait(PATIENCE_SECONDS)
    closing = Thread(target=runner.close)
    closing.start()
    while not isinstance(runner.submit(lambda: 3).exception(60) if runner._closed else None, CatalogClosedError):
        assert closing.is_alive()
    go.set()
    closing.join(PATIENCE_SECONDS)
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
