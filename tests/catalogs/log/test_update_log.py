"""What every update log does, in memory and in etcd. The first words of a docstring are those of Ignite's own tests, or
of the property, that the test stands for.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from compaction.catalogs.errors import (
    CatalogClockError,
    CatalogLogFullError,
    CatalogLogLimitError,
    CatalogLogRewoundError,
    CatalogLogUnavailableError,
    CatalogValueError,
)
from compaction.catalogs.log.etcd.wire import Get, Put, Transaction
from compaction.catalogs.log.layout import Keys
from compaction.catalogs.log.port import LogEvent, SnapshotOutcome
from compaction.catalogs.manager.clock import HybridClock, system_milliseconds
from compaction.catalogs.manager.manager import CatalogManager
from compaction.catalogs.model.descriptors import (
    ColumnType,
    ConsistencyMode,
    Constant,
    Date,
    TableColumn,
    Timestamp,
    Zone,
    hybrid,
    later,
)
from compaction.catalogs.model.entries import (
    AdvanceIdsEntry,
    NewColumnsEntry,
    RenameTableEntry,
    Snapshot,
    VersionedUpdate,
)
from support.catalogs.etcd_members import EtcdStore, etcd_members
from support.catalogs.logs import DELAY, Collector, Store, at, fill, snapshot, update, versions, watched
from support.clocks import PATIENCE_SECONDS

SAVED, NOT_NEWER, FENCED = SnapshotOutcome.SAVED, SnapshotOutcome.NOT_NEWER, SnapshotOutcome.FENCED


def test_an_empty_log(store: Store) -> None:
    found = store.open().recover()
    assert (found.events, found.version) == ((), 0)


def test_updates_are_replayed(store: Store) -> None:
    """Replay of updates 1, 2."""
    fill(store.open(), 2)
    found = store.open().recover()
    assert [event.event for event in found.events] == [update(1), update(2)]
    assert [event.timestamp for event in found.events] == [at(1), at(2)]
    assert found.version == 2
    assert found.events[-1].revision <= found.revision


def test_a_snapshot_is_replayed_in_the_place_of_its_updates(store: Store) -> None:
    """Snapshot 2, then restart: snapshot 2, update 3."""
    log = store.open()
    fill(log, 3)
    assert log.save_snapshot(snapshot(2), 0) is SAVED
    found = store.open().recover()
    assert [event.event for event in found.events] == [snapshot(2), update(3)]
    assert found.events[0].timestamp == snapshot(2).activation_time
    assert found.version == 3


def test_a_later_snapshot_replaces_an_earlier_one(store: Store) -> None:
    """Snapshots 2, then 4."""
    log = store.open()
    fill(log, 5)
    assert log.save_snapshot(snapshot(2), 0) is SAVED
    assert log.save_snapshot(snapshot(4), 0) is SAVED
    assert [event.event for event in store.open().recover().events] == [snapshot(4), update(5)]


@pytest.mark.parametrize("start", [1, 2, 4, 8])
def test_only_the_next_version_is_appended(store: Store, start: int) -> None:
    """Append order for start s in {1, 2, 4, 8}: s ok, s no, s-1 no, s+2 no, s+1 ok, s+2 ok. The log begins at 1."""
    log = store.open()
    fill(log, start - 1)
    outcomes = [log.append(update(start + step), at(start + step)) for step in (0, 0)]
    if start > 1:
        outcomes.append(log.append(update(start - 1), at(start - 1)))
    outcomes += [log.append(update(start + step), at(start + step)) for step in (2, 1, 2)]
    expected = [True, False, *([False] if start > 1 else []), False, True, True]
    assert outcomes == expected
    assert versions(log.recover()) == list(range(1, start + 3))


def test_the_first_version_is_one(store: Store) -> None:
    """A recovery begins at 1, so a log that began elsewhere would have a gap."""
    log = store.open()
    assert not log.append(update(2), at(2))
    assert log.recover().version == 0


@pytest.mark.parametrize("version", [0, -1, 2**31])
def test_a_number_that_is_no_version_is_refused(store: Store, version: int) -> None:
    with pytest.raises(CatalogValueError, match="no version of an update log"):
        store.open().append(update(version), at(1))


DAYLESS = Constant(ColumnType.DATE, Date(2024, 2, 30))


def _with_default(default: Constant) -> VersionedUpdate:
    column = TableColumn(1, "D", default.type, True, 0, 0, 1, default)
    return VersionedUpdate(2, DELAY, (NewColumnsEntry((column,), 7),))


@pytest.mark.parametrize(
    "refused",
    [
        _with_default(DAYLESS),
        _with_default(Constant(ColumnType.TIMESTAMP, Timestamp(0, 2_000_000_000))),
        VersionedUpdate(2, DELAY, (RenameTableEntry(7, "\ud83d\ude00"),)),
    ],
    ids=["no day", "no moment", "a text that reads as another"],
)
def test_what_no_reader_takes_is_not_written(store: Store, refused: VersionedUpdate) -> None:
    """Such a value would stop every process that follows the log, and every one that starts later."""
    log = store.open()
    fill(log, 1)
    before = log.recover()
    with pytest.raises(CatalogValueError, match="version 2"):
        log.append(refused, at(2))
    assert store.open().recover() == before
    assert log.append(update(2), at(2))


def test_a_snapshot_that_no_reader_takes_is_not_written(store: Store) -> None:
    log = store.open()
    fill(log, 3)
    before = log.recover().events
    zone = Zone(2, "\ud83d\ude00", 1, ("default",), 1, 1, 1, 0, 0, 0, "", ConsistencyMode.STRONG_CONSISTENCY)
    with pytest.raises(CatalogValueError, match="version 2"):
        log.save_snapshot(replace(snapshot(2), zones=(zone,)), 0)
    assert store.open().recover().events == before


@pytest.mark.parametrize("off", [3_600_000, -10_000])
def test_a_writer_is_compared_with_the_clock_of_etcd(etcd_store: EtcdStore, off: int) -> None:
    """etcd's answers say the time: a process whose clock is an hour ahead writes nothing, and says so itself."""
    log = etcd_store.open()
    before = system_milliseconds()
    time = log.time()
    assert time is not None
    assert before - 1_000 <= time.earliest <= time.latest - 1_000
    assert time.latest >= system_milliseconds() - 1_000
    assert time.source.endswith(str(etcd_store.members.members[0].endpoint))
    manager = CatalogManager(log, clock=HybridClock(lambda: system_milliseconds() + off), report=lambda _: None)
    manager.start()
    with pytest.raises(CatalogClockError, match=r"of this process \(.*:\d+\) is .* that of etcd member http://"):
        manager.initialization.result(PATIENCE_SECONDS)
    manager.close()
    assert log.recover().version == 0


def test_a_log_that_was_lost_is_not_made_by_a_claim(etcd_store: EtcdStore) -> None:
    log = etcd_store.open()
    with pytest.raises(CatalogLogRewoundError, match="it does not exist, and it did before"):
        log.claim(1, begins=False)
    client = etcd_store.members.client()
    assert not client.range(Get(Keys(etcd_store.prefix).product)).pairs
    client.close()
    assert log.claim(1) == 1
    assert log.claim(1, begins=False) == 2


def test_revisions_ascend_and_a_lost_race_uses_none(store: Store) -> None:
    """A failed append still uses a revision in the reference; here it does not."""
    log = store.open()
    fill(log, 2)
    before = log.recover()
    assert not log.append(update(2), at(9))
    assert log.recover() == before
    assert log.append(update(3), at(3))
    assert log.recover().revision == before.revision + 1


def test_every_version_is_active_later_than_the_one_before(store: Store) -> None:
    """Stored activation times ascend, whatever timestamps and delays come."""
    log = store.open()
    stamps = [(hybrid(9_000), 50), (hybrid(5_000), 5), (hybrid(9_000), 50), (hybrid(1), 0), (hybrid(20_000), 1)]
    for version, (timestamp, delay) in enumerate(stamps, 1):
        assert store.open().append(VersionedUpdate(version, delay, ()), timestamp)
    found = log.recover().events
    active = [later(item.timestamp, stamps[number][1]) for number, item in enumerate(found)]
    assert active == sorted(set(active))
    assert active[0] == hybrid(9_050)
    assert active[1] == active[0] + 1
    assert active[4] == hybrid(20_001)


def test_times_survive_a_restart(store: Store) -> None:
    """Activation times survive a restart also with the clock moved one day ahead: they are stored."""
    fill(store.open(), 3)
    tomorrow = hybrid(86_400_000)
    log = store.open()
    assert log.append(update(4), tomorrow)
    assert [event.timestamp for event in store.open().recover().events] == [at(1), at(2), at(3), tomorrow]


@pytest.mark.parametrize("version", [0, 1])
def test_a_snapshot_of_the_first_version_changes_nothing(store: Store, version: int) -> None:
    """Compaction to 0 or to 1 on a fresh log is a silent no-op."""
    log = store.open()
    fill(log, 2)
    before = log.recover()
    assert log.save_snapshot(snapshot(version, activation=1), 0) is NOT_NEWER
    assert log.recover().events == before.events


def test_a_smaller_snapshot_after_a_larger_one_is_refused(store: Store) -> None:
    """Snapshot against snapshot: smaller after larger is refused, smaller before larger: both saved."""
    log = store.open()
    fill(log, 6)
    assert [log.save_snapshot(snapshot(version), 0) for version in (3, 5, 4, 5)] == [SAVED, SAVED, NOT_NEWER, NOT_NEWER]
    assert versions(log.recover()) == [5, 6]


def test_a_snapshot_of_the_last_version(store: Store) -> None:
    log = store.open()
    fill(log, 4)
    assert log.save_snapshot(snapshot(4), 0) is SAVED
    found = log.recover()
    assert [event.event for event in found.events] == [snapshot(4)]
    assert log.append(update(5), at(5))
    assert versions(log.recover()) == [4, 5]


def test_a_snapshot_that_is_ahead_of_the_log_is_refused(store: Store) -> None:
    """It would leave a gap: the log was restored from an older copy."""
    log = store.open()
    fill(log, 2)
    with pytest.raises(CatalogLogRewoundError, match="has no 3; restart the processes"):
        log.save_snapshot(snapshot(3), 0)


def test_a_snapshot_of_another_history_is_refused(store: Store) -> None:
    """The log's version has another activation time: others wrote it after a restore."""
    log = store.open()
    fill(log, 3)
    with pytest.raises(CatalogLogRewoundError, match="version 2 is active at"):
        log.save_snapshot(snapshot(2, activation=hybrid(99)), 0)
    assert versions(log.recover()) == [1, 2, 3]


def test_no_token_is_taken_twice(store: Store) -> None:
    log, other = store.open(), store.open()
    assert log.recover().token == 0
    assert [log.claim(least) for least in (1, 5, 5, 3)] == [1, 5, 6, 7]
    assert [other.claim(least) for least in (4, 9)] == [8, 9]
    assert log.recover().token == 9


def test_a_stale_token_cuts_nothing(store: Store) -> None:
    """A coordinator that was stopped and wakes up is fenced."""
    log = store.open()
    fill(log, 5)
    assert log.claim(7) == 7
    assert log.save_snapshot(snapshot(2), 6) is FENCED
    assert versions(log.recover()) == [1, 2, 3, 4, 5]
    assert log.save_snapshot(snapshot(2), 7) is SAVED
    assert log.claim(1) == 8
    assert log.save_snapshot(snapshot(4), 7) is FENCED
    assert versions(log.recover()) == [2, 3, 4, 5]


def test_a_snapshot_raises_the_token(store: Store) -> None:
    """A coordinator that never claimed is not fenced by nothing, and fences older ones."""
    log = store.open()
    fill(log, 5)
    assert log.save_snapshot(snapshot(2), 9) is SAVED
    assert log.claim(8) == 10
    assert log.save_snapshot(snapshot(3), 8) is FENCED


def test_appends_go_on_beside_snapshots(store: Store) -> None:
    """Append against snapshot: disjoint conditions, both succeed in either order."""
    log, other = store.open(), store.open()
    fill(log, 3)
    assert other.save_snapshot(snapshot(2), 0) is SAVED
    assert log.append(update(4), at(4))
    assert other.save_snapshot(snapshot(4), 0) is SAVED
    assert log.append(update(5), at(5))
    assert versions(log.recover()) == [4, 5]


def test_one_of_two_writers_wins_each_version(store: Store) -> None:
    """Append against append: one wins by the version, the loser gets False."""
    logs = [store.open() for _ in range(4)]
    rounds = 30

    def race(number: int) -> list[int]:
        return [
            version for version in range(1, rounds + 1) if logs[number].append(update(version, number + 1), at(version))
        ]

    for version in range(1, rounds + 1):
        with ThreadPoolExecutor(len(logs)) as pool:
            won = [done.result() for done in [pool.submit(log.append, update(version), at(version)) for log in logs]]
        assert won.count(True) == 1
    with ThreadPoolExecutor(len(logs)) as pool:
        assert all(not found for found in pool.map(race, range(len(logs))))
    assert versions(logs[0].recover()) == list(range(1, rounds + 1))


def test_one_snapshot_of_a_race_stands(store: Store) -> None:
    """Snapshot against snapshot: the largest stands, and nothing below it stays."""
    logs = [store.open() for _ in range(4)]
    fill(logs[0], 10)
    with ThreadPoolExecutor(len(logs)) as pool:
        outcomes = list(pool.map(lambda log, version: log.save_snapshot(snapshot(version), 0), logs, (3, 9, 6, 8)))
    assert outcomes[1] is SAVED
    assert set(outcomes) <= {SAVED, NOT_NEWER}
    assert versions(logs[0].recover()) == [9, 10]


def test_a_watch_delivers_what_is_written_after_its_revision(store: Store) -> None:
    """Every event once, in order; a snapshot arrives as an event, what it cut as none."""
    log = store.open()
    fill(log, 2)
    collector, _ = watched(log)
    other = store.open()
    fill(other, 4, first=3)
    other.save_snapshot(snapshot(3), 0)
    fill(other, 5, first=5)
    assert store.settle(collector, 4) == ["3", "4", "s3", "5"]
    revisions = [event.revision for event in collector.events]
    assert revisions == sorted(set(revisions))
    assert [event.timestamp for event in collector.events] == [at(3), at(4), snapshot(3).activation_time, at(5)]


def test_a_watch_goes_on_where_a_recovery_ended(store: Store) -> None:
    """What is written between the recovery and the watch is not lost."""
    log = store.open()
    fill(log, 2)
    revision = log.recover().revision
    fill(store.open(), 5, first=3)
    collector, _ = watched(log, revision)
    assert store.settle(collector, 3) == ["3", "4", "5"]


def test_a_watch_of_everything(store: Store) -> None:
    log = store.open()
    fill(log, 3)
    first = log.recover().events[0].revision
    collector, _ = watched(log, first - 1)
    assert store.settle(collector, 3) == ["1", "2", "3"]


def test_several_watches_each_get_everything(store: Store) -> None:
    log = store.open()
    found = [watched(log)[0] for _ in range(3)]
    fill(store.open(), 4)
    assert [store.settle(item, 4) for item in found] == [["1", "2", "3", "4"]] * 3


def test_a_closed_watch_delivers_nothing(store: Store) -> None:
    log = store.open()
    collector, watch = watched(log)
    fill(log, 1)
    store.settle(collector, 1)
    watch.close()
    watch.close()
    fill(log, 3, first=2)
    other, _ = watched(log, 0)
    store.settle(other, 3)
    assert collector.shown == ["1"]
    assert not collector.errors


def test_a_delivery_may_close_its_watch(store: Store) -> None:
    log = store.open()
    collector = Collector()

    def deliver(event: LogEvent) -> None:
        collector.deliver(event)
        closing.close()

    closing = log.watch(log.recover().revision, deliver, print)
    fill(log, 3)
    assert store.settle(collector, 1) == ["1"]


def test_a_delivery_may_write(store: Store) -> None:
    """The events that it leads to come after it."""
    log = store.open()
    collector = Collector()

    def deliver(event: object) -> None:
        collector.events.append(event)  # type: ignore[arg-type]
        if len(collector.events) < 4:
            fill(log, len(collector.events) + 1, first=len(collector.events) + 1)

    log.watch(log.recover().revision, deliver, collector.failed)
    fill(log, 1)
    assert store.settle(collector, 4) == ["1", "2", "3", "4"]


def test_a_watch_survives_a_compaction_of_history(store: Store) -> None:
    """What is missed arrives from what the log holds, once, in order, and the watch goes on."""
    log = store.open()
    fill(log, 2)
    revision = log.recover().revision
    fill(log, 5, first=3)
    store.forget_history()
    collector, _ = watched(log, revision)
    assert store.settle(collector, 3) == ["3", "4", "5"]
    fill(log, 6, first=6)
    assert store.settle(collector, 4) == ["3", "4", "5", "6"]
    assert [event.revision for event in collector.events] == sorted(event.revision for event in collector.events)


def test_a_snapshot_arrives_in_the_place_of_what_it_cut(store: Store) -> None:
    """Versions 3 and 4 are gone from history and log: their snapshot comes first, then the versions after it."""
    log = store.open()
    fill(log, 2)
    revision = log.recover().revision
    fill(log, 6, first=3)
    assert log.save_snapshot(snapshot(4), 0) is SAVED
    store.forget_history()
    collector, _ = watched(log, revision)
    assert store.settle(collector, 3) == ["s4", "5", "6"]


def test_a_snapshot_of_what_was_delivered_arrives_alone(store: Store) -> None:
    """Versions 3 to 6 were delivered: after the compaction of history only the snapshot is new."""
    log = store.open()
    fill(log, 6)
    revision = log.recover().revision
    assert log.save_snapshot(snapshot(4), 0) is SAVED
    store.forget_history()
    collector, _ = watched(log, revision)
    assert store.settle(collector, 1) == ["s4"]
    fill(log, 7, first=7)
    assert store.settle(collector, 2) == ["s4", "7"]


def test_an_update_that_is_too_large_is_refused(store: Store) -> None:
    """The error names version and bytes, and what to set; nothing is written."""
    log = store.open()
    large = VersionedUpdate(1, DELAY, tuple(AdvanceIdsEntry(number) for number in range(300_000)))
    with pytest.raises(
        CatalogLogLimitError, match=r"version 1 takes [\d,]+ bytes, more than .* set --max-request-bytes"
    ):
        log.append(large, at(1))
    assert log.recover().version == 0
    assert log.append(update(1), at(1))


def test_a_snapshot_that_is_too_large_is_refused(store: Store) -> None:
    from support.catalogs.events import large_snapshot

    log = store.open()
    fill(log, 2)
    with pytest.raises(CatalogLogLimitError, match="catalog version 2 takes"):
        log.save_snapshot(large_snapshot(snapshot(2)), 0)
    assert versions(log.recover()) == [1, 2]


def test_the_limits_of_etcd_are_followed(tmp_path: Path, etcd_program: Path) -> None:
    """A value as large as this etcd takes is written; when it has no space left that is said, what lies below the
    snapshot is deleted all the same, and after the steps of the message it writes again.
    """
    arguments = ("--max-request-bytes=4194304", "--quota-backend-bytes=16777216", "--backend-batch-limit=1")
    with etcd_members(tmp_path, etcd_program, 1, arguments) as running, EtcdStore(running) as store:
        log, client = store.open(), running.client()
        fill(log, 3)
        assert log.save_snapshot(snapshot(2), 0) is SAVED
        garbage = Keys(store.prefix).update(1)
        client.transaction(Transaction((), (Put(garbage, b"left by a sweep that was interrupted"),)))

        def fill_up(first: int) -> int:
            for version in count(first):
                log.append(large(version, 2_500_000), at(version))
            return 0

        with pytest.raises(CatalogLogFullError, match=r"no space left and writes nothing\. Compact its"):
            fill_up(4)
        with pytest.raises(CatalogLogFullError):
            log.claim(1)
        log.sweep()
        assert not client.range(Get(garbage)).pairs
        client.close()

        last = log.recover().version
        assert last > 4, "no version as large as that was written"
        maintain(store)
        assert log.save_snapshot(snapshot(last), log.claim(1)) is SAVED
        maintain(store)
        assert log.append(large(last + 1, 2_500_000), at(last + 1))


def large(version: int, size: int) -> VersionedUpdate:
    """About so many bytes."""
    return VersionedUpdate(version, DELAY, (RenameTableEntry(7, "N" * size),))


def maintain(store: EtcdStore) -> None:
    """What the message about space says to do."""
    store.forget_history()
    store.defragment()
    store.disarm()


def test_the_largest_value_fits(store: Store) -> None:
    """What the limit lets through, etcd takes."""
    log = store.open()
    assert log.append(large(1, 1_572_000), at(1))
    assert log.recover().events[0].event == large(1, 1_572_000)


def test_a_closed_log_answers_nothing(store: Store) -> None:
    log = store.open()
    fill(log, 1)
    collector, _ = watched(log)
    log.close()
    for call in (log.recover, lambda: log.append(update(2), at(2)), lambda: log.claim(1)):
        with pytest.raises(CatalogLogUnavailableError, match="closed"):
            call()
    assert not collector.events
    assert not collector.errors


def test_a_snapshot_is_kept_byte_for_byte(store: Store) -> None:
    log = store.open()
    fill(log, 3)
    wanted = Snapshot(3, snapshot(3).activation_time, 12, (), (), None)
    assert log.save_snapshot(wanted, 0) is SAVED
    assert log.recover().events[0].event == wanted
