"""What a manager answers: versions, times, readiness."""

from __future__ import annotations

import gc

import pytest

from compaction.catalogs.errors import (
    CatalogClosedError,
    CatalogLogUnavailableError,
    CatalogNotFoundError,
    CatalogStoppedError,
)
from compaction.catalogs.log.port import Recovered, Renewal, SnapshotOutcome
from compaction.catalogs.manager.events import EventKind
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.model.catalog import EMPTY
from compaction.catalogs.model.entries import Snapshot, VersionedUpdate
from support.catalogs.logs import ManualTime, stage, stamp
from support.catalogs.memory_log import ListLog
from support.catalogs.rounds import table


def test_manager_versions_and_times_that_are_not_there() -> None:
    """Manager: version latest+1, -1, ts 0, ts -1 => not found."""
    manager = stage(ListLog()).manager
    for version in (manager.latest.version + 1, -1):
        with pytest.raises(CatalogNotFoundError, match=f"catalog version {version} not found"):
            manager.catalog(version)
    for time in (0, -1):
        with pytest.raises(CatalogNotFoundError, match=f"no catalog found for the time {time}"):
            manager.active(time)
        with pytest.raises(CatalogNotFoundError):
            manager.active_version(time)


def test_manager_empty_catalog_and_version_1() -> None:
    """Manager: empty catalog v0 and init v1 contents."""
    manager = stage(ListLog()).manager
    assert manager.catalog(0) is EMPTY
    assert manager.active(1) is EMPTY
    assert [len(each) for each in (EMPTY.zones, EMPTY.schemas, EMPTY.tables)] == [0, 0, 0]
    first = manager.catalog(1)
    assert first is manager.latest
    assert {schema.id: schema.name for schema in first.schemas.values()} == {0: "PUBLIC", 1: "SYSTEM"}
    assert (first.last_id, first.default_zone, len(first.zones)) == (2, None, 0)
    assert manager.active_version(first.activation_time) == 1
    assert manager.active_version(first.activation_time - 1) == 0


def test_a_second_process_finds_version_1() -> None:
    log = ListLog()
    first = stage(log)
    second = stage(log, time=first.time)
    assert second.manager.initialization.done()
    assert second.manager.latest == first.manager.latest
    assert log.version == 1


class LateLog(ListLog):
    """Every process reads the log before the first one writes."""

    def recover(self) -> Recovered:
        return Recovered((), 0, 0)


def test_two_processes_that_start_at_once_write_version_1_once() -> None:
    log = LateLog(held=True)
    first, second = stage(log, start=False), stage(log, start=False)
    first.manager.start()
    second.manager.start()
    assert log.calls.count("append") == 2
    assert not first.manager.initialization.done()
    log.pump()
    for item in (first, second):
        assert not item.manager.initialization.done()
        item.time.advance(501)
        assert item.manager.initialization.result(0) is None
        assert item.manager.latest.version == 1


def test_a_call_before_version_1_is_read_waits_for_it() -> None:
    """The log's answer to the append comes before its event: until then PUBLIC does not exist."""
    log = ListLog(held=True)
    one = stage(log, start=False)
    one.manager.start()
    answer = one.manager.execute(table("T"))
    assert not answer.done()
    log.pump()
    log.pump()
    one.time.advance(2_000)
    assert answer.result(0) is not None
    assert one.manager.latest.version == 2


class DeafLog(ListLog):
    """Takes no update."""

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        raise CatalogLogUnavailableError("memory", "the log is away")


def test_calls_fail_when_version_1_cannot_be_written() -> None:
    one = stage(DeafLog(held=True), start=False)
    one.manager.start()
    with pytest.raises(CatalogLogUnavailableError, match="away"):
        one.manager.execute(table("T")).result(0)


def test_manager_consecutive_versions() -> None:
    """Manager: consecutive versions."""
    one = stage(ListLog())
    assert [one.run(table(f"T{number}")).version for number in range(4)] == [2, 3, 4, 5]
    assert [catalog.version for catalog in one.manager.history] == [0, 1, 2, 3, 4, 5]
    assert one.manager.earliest.version == 0


def test_manager_after_close() -> None:
    """Manager: no log calls after stop, pending readiness future completes on stop."""
    log = ListLog(held=True)
    one = stage(log, start=False)
    one.manager.start()
    log.pump()
    one.time.advance(1000)
    ready = one.manager.ready(2)
    waiting = one.manager.execute(table("T"))
    calls = list(log.calls)
    one.manager.close()
    for future in (
        ready,
        waiting,
        one.manager.execute(table("T")),
        one.manager.ready(3),
        one.manager.wait_complete(stamp(10**6)),
        one.manager.compact(1, 1),
    ):
        assert isinstance(future.exception(0), CatalogClosedError)
    log.pump()
    assert log.calls == calls
    assert log.watches == []
    assert one.manager.latest.version == 1
    assert one.reported == []


def test_manager_compacts_to_a_version() -> None:
    """Manager: compact to v => older versions not found, activeVersion(time(v) - 1) not found,
    activeVersion(time(v)) = v, second time false.
    """
    one = stage(ListLog())
    for number in range(4):
        one.run(table(f"T{number}"))
    manager, kept = one.manager, one.manager.catalog(3)
    assert manager.compact(3, 7).result(0) is SnapshotOutcome.SAVED
    for version in range(3):
        with pytest.raises(CatalogNotFoundError):
            manager.catalog(version)
    with pytest.raises(CatalogNotFoundError):
        manager.active_version(kept.activation_time - 1)
    assert manager.active_version(kept.activation_time) == 3
    assert manager.earliest == kept
    assert manager.compact(3, 7).result(0) is SnapshotOutcome.NOT_NEWER
    assert isinstance(manager.compact(2, 7).exception(0), CatalogNotFoundError)
    assert isinstance(manager.compact(6, 7).exception(0), CatalogNotFoundError)
    assert manager.compact(4, 6).result(0) is SnapshotOutcome.FENCED


def test_manager_compacts_no_new_log() -> None:
    """Manager: compact(1) on fresh => false, earliest stays 0."""
    manager = stage(ListLog()).manager
    assert manager.compact(1, 1).result(0) is SnapshotOutcome.NOT_NEWER
    assert manager.compact(0, 1).result(0) is SnapshotOutcome.NOT_NEWER
    assert manager.earliest.version == 0


def test_a_time_is_complete_when_no_update_of_it_can_follow() -> None:
    """Another process writes, this one has not read it: the wait ends with the version, and not before the time when a
    slow append of a process whose clock is late would be there.
    """
    log = ListLog()
    one = stage(log)
    other = stage(log, time=ManualTime(one.time.milliseconds))
    log.held = True
    now = one.manager.clock.now()
    complete = one.manager.wait_complete(now)
    other.manager.execute(table("T"))
    one.time.advance(1000)
    assert not complete.done()
    one.time.advance(1)
    assert not complete.done()
    log.pump()
    assert complete.result(0) is None
    assert one.manager.latest.version == 2
    assert one.manager.wait_complete(1).result(0) is None


@pytest.mark.parametrize("wrong", [{"delay": -1}, {"max_skew": -1}, {"partitions": 0}, {"slowest_append": -1}])
def test_settings_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="times from 0 and a partition"):
        Settings(**wrong)


# A process that starts on a log that others wrote.


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
