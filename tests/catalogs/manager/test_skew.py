"""Clocks that are further off than `max_skew`: they move no other, write nothing, and are named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from compaction.catalogs.errors import CatalogClockError, CatalogLateError, CatalogStoppedError
from compaction.catalogs.log.port import LogTime
from compaction.catalogs.model.descriptors import hybrid, physical
from support.catalogs.immediate_logs import ListLog
from support.catalogs.managers import START, ManualTime, Stage, stage
from support.catalogs.worlds import table

HOUR = 3_600_000


@dataclass
class DatedLog(ListLog):
    """A log whose server has a clock."""

    server: ManualTime

    def __post_init__(self) -> None:
        super().__init__()

    def time(self) -> LogTime:
        """Cut to the second, as a header of HTTP is."""
        second = self.server.milliseconds // 1_000 * 1_000
        return LogTime(second, second + 1_000, "the server")


def refusal(one: Stage) -> CatalogClockError:
    error = one.manager.execute(table("REFUSED")).exception(0)
    assert isinstance(error, CatalogClockError)
    return error


@pytest.mark.parametrize("off", [HOUR, 2_000, -2_000, -10_000])
def test_a_writer_whose_clock_is_off_that_of_the_log_writes_nothing(off: int) -> None:
    log = DatedLog(ManualTime())
    one = stage(log, time=log.server)
    one.run(table("A"))
    other = stage(log, time=ManualTime(log.server.milliseconds + off), start=False)
    other.manager.start()
    error = refusal(other)
    direction = "ahead of" if off > 0 else "behind"
    assert f"{direction} that of the server, and 500 ms are allowed" in str(error)
    assert "this process (in memory)" in str(error)
    assert 0 < abs(error.off) <= abs(off)
    assert log.version == 2
    one.run(table("B"))


def test_a_log_that_answers_slowly_is_no_clock_that_is_behind() -> None:
    """The time that its answer takes passes before the writer's clock is read."""
    log = DatedLog(ManualTime())
    one = stage(log, time=log.server)

    def slow() -> LogTime:
        log.server.milliseconds += 5_000
        return DatedLog.time(log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "time", slow)
        assert one.run(table("A")).version == 2


@pytest.mark.parametrize("off", [400, -400])
def test_a_writer_whose_clock_is_off_by_less_writes(off: int) -> None:
    log = DatedLog(ManualTime())
    one = stage(log, time=ManualTime(START + off), start=False)
    one.manager.start()
    one.time.advance(10_000)
    log.server.advance(10_000)
    assert one.run(table("A")).version == 2


def test_an_empty_log_is_not_begun_by_a_clock_that_is_off() -> None:
    log = DatedLog(ManualTime())
    one = stage(log, time=ManualTime(START + HOUR), start=False)
    one.manager.start()
    assert isinstance(one.manager.initialization.exception(0), CatalogClockError)
    assert log.version == 0


def test_a_version_from_an_hour_ahead_moves_no_clock_and_holds_up_no_statement() -> None:
    """A log without a clock of its own takes it. It is active in an hour; the next statement is refused at once, and
    names the writer, instead of waiting for that hour.
    """
    log = ListLog()
    one, other = stage(log), stage(log)
    other.time.milliseconds += HOUR
    other.manager.execute(table("A"))
    assert log.version == 2
    assert physical(one.manager.clock.now()) < START + HOUR
    (reported,) = one.reported
    assert "in memory, which wrote version 2, is 3,6" in str(reported)
    assert one.manager.latest.version == 2
    assert one.manager.active_version(one.manager.clock.now()) == 1
    error = refusal(one)
    assert (error.who, error.allowed) == ("in memory, which wrote the last version,", 500)
    assert error.off > HOUR - 20_000
    one.time.advance(HOUR)
    assert one.run(table("B")).version == 3


def test_a_version_that_is_active_before_a_time_that_was_complete_is_not_applied() -> None:
    """Its writer's clock is behind by more than `max_skew`: `active` at that time has been answered."""
    log = ListLog()
    one, other = stage(log), stage(log)
    one.time.advance(20_000)
    at = hybrid(one.time.milliseconds)
    complete = one.manager.wait_complete(at)
    one.time.advance(2_000)
    assert complete.done()
    before = one.manager.active(at)
    other.manager.execute(table("A"))
    (stopped,) = one.reported
    assert isinstance(stopped, CatalogStoppedError)
    assert isinstance(stopped.__cause__, CatalogLateError)
    assert "version 2 of in memory has a time " in str(stopped)
    assert "synchronize the clocks of both processes, or raise slowest_append" in str(stopped)
    assert one.manager.active(at) is before


def test_a_version_after_a_complete_time_is_applied() -> None:
    log = ListLog()
    one, other = stage(log), stage(log)
    complete = one.manager.wait_complete(hybrid(one.time.milliseconds))
    one.time.advance(2_000)
    other.time.advance(2_000)
    assert complete.done()
    other.manager.execute(table("A"))
    assert one.manager.latest.version == 2
    assert one.reported == []
