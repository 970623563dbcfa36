"""What a manager answers: versions, times, readiness."""

from __future__ import annotations

import pytest

from compaction.catalogs.errors import CatalogClosedError, CatalogLogUnavailableError, CatalogNotFoundError
from compaction.catalogs.log.port import Recovered, Renewal, SnapshotOutcome
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.model.catalog import EMPTY
from compaction.catalogs.model.entries import VersionedUpdate
from support.catalogs.immediate_logs import ListLog
from support.catalogs.managers import ManualTime, at, stage
from support.catalogs.worlds import table


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
        one.manager.wait_complete(at(10**6)),
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
