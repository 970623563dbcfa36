"""A process that starts on a log that others wrote."""

from __future__ import annotations

import gc

import pytest

from compaction.catalogs.errors import CatalogNotFoundError, CatalogStoppedError
from compaction.catalogs.log.port import Recovered
from compaction.catalogs.manager.events import EventKind
from compaction.catalogs.model.entries import Snapshot
from support.catalogs.immediate_logs import ListLog
from support.catalogs.managers import ManualTime, stage
from support.catalogs.worlds import table


def test_recovery_keeps_activation_times_with_the_clock_a_day_ahead() -> None:
    """Recovery: activation times kept with clock +1 day, 3 updates replayed."""
    log = ListLog()
    one = stage(log)
    for name in "AB":
        one.run(table(name))
    restarted = stage(log, start=False, time=ManualTime(one.time.milliseconds + 86_400_000))
    heard = restarted.heard(EventKind.TABLE_CREATE)
    restarted.manager.start()
    assert list(restarted.manager.history) == list(one.manager.history)
    assert len(log.recover().events) == 3
    assert [event.version for event in heard] == [2, 3], "listeners of before the start get events of recovery"
    assert restarted.manager.ready(3).done()
    assert restarted.manager.initialization.done()
    later = restarted.run(table("C"))
    assert later.time > restarted.manager.catalog(3).activation_time + (86_400_000 << 16)


def test_recovery_from_a_snapshot_and_an_update() -> None:
    """Recovery: with snapshot events dropped at run time earliest stays 0, after restart earliest = snapshot version,
    exactly 1 snapshot + 1 update replayed.
    """
    log = ListLog()
    one = stage(log)
    for name in "AB":
        one.run(table(name))
    one.manager.close()
    snapshot = one.manager.catalog(2).snapshot()
    log.save_snapshot(snapshot, 1)
    assert one.manager.earliest.version == 0
    assert [type(event.event) is Snapshot for event in log.recover().events] == [True, False]
    restarted = stage(log, start=False)
    heard = restarted.heard()
    restarted.manager.start()
    assert [catalog.version for catalog in restarted.manager.history] == [2, 3]
    assert list(restarted.manager.history) == [one.manager.catalog(2), one.manager.catalog(3)]
    assert {event.version for event in heard} == {3}
    with pytest.raises(CatalogNotFoundError):
        restarted.manager.catalog(1)


def test_recovery_from_a_snapshot_alone_is_ready() -> None:
    log = ListLog()
    one = stage(log)
    one.run(table("A"))
    one.manager.compact(2, 1)
    restarted = stage(log, time=one.time)
    assert restarted.manager.ready(2).done()
    assert [catalog.version for catalog in restarted.manager.history] == [2]
    assert restarted.run(table("B")).version == 3
    assert one.manager.latest == restarted.manager.latest


def test_recovery_leaves_the_collector_as_it_was() -> None:
    """Also when the log fails; and one that was off stays off."""
    log = ListLog()
    stage(log)
    assert gc.isenabled()
    with pytest.raises(CatalogStoppedError):
        stage(RepeatingLog(log.events), start=False).manager.start()
    assert gc.isenabled()
    gc.disable()
    try:
        stage(log)
        assert not gc.isenabled()
    finally:
        gc.enable()


class RepeatingLog(ListLog):
    """Answers with version 1 twice."""

    def recover(self) -> Recovered:
        found = super().recover()
        return Recovered(found.events * 2, found.version, found.revision)


def test_recovery_of_a_log_that_contradicts_itself_fails() -> None:
    written = ListLog()
    stage(written)
    log = RepeatingLog(written.events)
    with pytest.raises(CatalogStoppedError, match="the catalog stopped at version 1: catalog version 1: the update"):
        stage(log, start=False).manager.start()
