"""A system of logs as its users see it: appends, reads, truncation, gaps, snapshots, back-pressure, restarts."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from compaction.segments.directory import fs
from compaction.segments.errors import (
    DamagedWalError,
    EntryMissingError,
    FlushFailedError,
    InvalidEntryError,
    LiveSetUnknownError,
    LockHeldError,
    LogBusyError,
    LogClosedError,
    LogGapError,
    WalFailedError,
    WriteRefusedError,
)
from compaction.segments.memtable import LogEntry, LogPosition, Seq
from compaction.segments.model import segment_name
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import INDEXES_FILE, newest_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.codec import WriterState
from compaction.segments.wal.files import read_stop, read_writers, wal_files
from compaction.segments.wal.wal_log import WalLimits, WalWrite
from compaction.segments.writer import NewSegments
from support.clocks import PATIENCE_SECONDS
from support.segments.segment_logs import wal_records

STATE = b"\x83j"


def entries(first: int, last: int, term: int = 1, size: int = 0) -> list[LogEntry]:
    return [LogEntry(index, term, (b"%d@%d" % (index, term)).ljust(size, b".")) for index in range(first, last + 1)]


def flush(system: LogSystem) -> None:
    """Everything that was appended is in segments afterwards."""
    system.roll().result(PATIENCE_SECONDS)
    assert system.drain(PATIENCE_SECONDS)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "system"


@pytest.fixture
def system(directory: Path) -> Iterator[LogSystem]:
    with LogSystem(directory) as system:
        yield system


def test_an_acknowledged_entry_is_in_the_file_when_its_future_completes(system: LogSystem, directory: Path) -> None:
    log = system.open_log("a")
    assert log.append(entries(1, 3)).result(PATIENCE_SECONDS) == LogPosition(3, 1)
    assert log.last_written == log.last == LogPosition(3, 1)
    (path,) = wal_files(directory)
    assert [(r.writer, r.index, r.payload) for r in wal_records(path)] == [
        (b"a", 1, b"1@1"), (b"a", 2, b"2@1"), (b"a", 3, b"3@1"),
    ]  # fmt: skip


def test_both_kinds_of_caller_wait_for_the_same_future(system: LogSystem) -> None:
    log = system.open_log("a")

    async def write() -> LogPosition:
        return await asyncio.wait_for(asyncio.wrap_future(log.append(entries(1, 2))), PATIENCE_SECONDS)

    assert asyncio.run(write()) == LogPosition(2, 1)
    # What is in the log cannot be taken out again.
    assert not log.append(entries(3, 3)).cancel()
    assert log.append(entries(4, 4)).result(PATIENCE_SECONDS) == LogPosition(4, 1)


def test_many_logs_written_by_many_threads_share_a_file(system: LogSystem, directory: Path) -> None:
    def write(log: Log) -> None:
        for future in [log.append(entries(index, index)) for index in range(1, 51)]:
            future.result(PATIENCE_SECONDS)

    logs = [system.open_log(f"log{number}") for number in range(8)]
    threads = [threading.Thread(target=write, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert [log.read(range(1, 99)) for log in logs] == [entries(1, 50)] * 8
    assert len(wal_files(directory)) == 1
    flush(system)
    assert [log.read(range(1, 99)) for log in logs] == [entries(1, 50)] * 8
    assert [log.state.unflushed for log in logs] == [0] * 8


def test_entries_are_read_after_a_restart_from_the_log_and_from_segments(directory: Path) -> None:
    with LogSystem(directory) as system:
        log = system.open_log("a")
        log.append(entries(1, 10)).result(PATIENCE_SECONDS)
        flush(system)
        log.append(entries(11, 20, term=2)).result(PATIENCE_SECONDS)
    with LogSystem(directory) as system:
        log = system.open_log("a")
        assert log.last == log.last_written == LogPosition(20, 2)
        assert log.read(range(99)) == entries(1, 10) + entries(11, 20, term=2)
        assert system.drain(PATIENCE_SECONDS)
        assert [r.index for path in wal_files(directory) for r in wal_records(path)] == []
        assert log.read([1, 20]) == [*entries(1, 1), *entries(20, 20, term=2)]
        assert log.fold(lambda count, entry: count + entry.index, 0) == sum(range(1, 21))
        assert log.fold(lambda found, entry: [*found, entry.index], list[int](), first=18) == [18, 19, 20]


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "in segments"])
def test_an_append_that_goes_back_overwrites(directory: Path, flushed: bool) -> None:
    with LogSystem(directory) as system:
        log = system.open_log("a")
        log.append(entries(1, 10)).result(PATIENCE_SECONDS)
        if flushed:
            flush(system)
        log.append(entries(5, 6, term=2)).result(PATIENCE_SECONDS)
        expected = entries(1, 4) + entries(5, 6, term=2)
        assert log.read(range(20)) == expected
        assert (log.last, log.last_written) == (LogPosition(6, 2), LogPosition(6, 2))
    with LogSystem(directory) as system:
        log = system.open_log("a")
        assert log.read(range(20)) == expected
        assert system.drain(PATIENCE_SECONDS)
        assert log.read(range(20)) == expected
        assert log.last == LogPosition(6, 2)


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "in segments"])
def test_truncation(system: LogSystem, flushed: bool) -> None:
    log = system.open_log("a")
    log.append(entries(1, 10)).result(PATIENCE_SECONDS)
    if flushed:
        flush(system)
    log.truncate(8)
    assert log.last == log.last_written == LogPosition(7, 1)
    assert log.read(range(20)) == entries(1, 7)
    log.truncate(99)
    assert log.last == LogPosition(7, 1)
    with pytest.raises(LogGapError, match="index 9 leaves a gap: the next entry is index 8"):
        log.append(entries(9, 9))
    with pytest.raises(WriteRefusedError, match="would bring entries back that were truncated: write 8 first"):
        log.write_sparse(entries(12, 12)[0], 7)
    log.append(entries(8, 8, term=3)).result(PATIENCE_SECONDS)
    log.write_sparse(entries(12, 12, term=3)[0], 8).result(PATIENCE_SECONDS)
    flush(system)
    assert log.read(range(20)) == entries(1, 7) + entries(8, 8, term=3) + entries(12, 12, term=3)
    log.truncate(0)
    assert log.last is None
    assert log.read(range(20)) == []


def test_sparse_writes_carry_their_previous_index(directory: Path) -> None:
    live = [LogEntry(index, 1, b"live %d" % index) for index in (100, 600, 1200, 1777)]
    with LogSystem(directory) as system:
        log = system.open_log("a")
        previous = None
        for entry in live:
            log.write_sparse(entry, previous).result(PATIENCE_SECONDS)
            previous = entry.index
        with pytest.raises(WriteRefusedError, match="follows 600, but the log's last index is 1777"):
            log.write_sparse(LogEntry(2000, 1, b"x"), 600)
        with pytest.raises(WriteRefusedError, match="index 1777 is not above"):
            log.write_sparse(live[-1], 1777)
        log.append([LogEntry(1778, 1, b"next")]).result(PATIENCE_SECONDS)
    with LogSystem(directory) as system:
        log = system.open_log("a")
        assert log.read(range(2000)) == [*live, LogEntry(1778, 1, b"next")]
        flush(system)
        assert log.read(range(2000)) == [*live, LogEntry(1778, 1, b"next")]
        assert log.indexes() == Seq.from_indexes([100, 600, 1200, 1777, 1778])


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ([], InvalidEntryError, "at least one entry"),
        ([LogEntry(11, 1, b"")], InvalidEntryError, "1..4294967295 bytes, not 0"),
        ([LogEntry(11, -1, b"x")], InvalidEntryError, "unsigned 64-bit"),
        ([LogEntry(2**64 - 1, 1, b"x")], InvalidEntryError, "unsigned 64-bit"),
        ([LogEntry(11, 1, b"x"), LogEntry(13, 1, b"x")], InvalidEntryError, "index 13 does not follow index 11"),
        ([LogEntry(12, 1, b"x")], LogGapError, "index 12 leaves a gap: the next entry is index 11"),
    ],
)
def test_a_refused_append_changes_nothing(
    system: LogSystem, bad: list[LogEntry], error: type[Exception], message: str
) -> None:
    log = system.open_log("a")
    log.append(entries(1, 10)).result(PATIENCE_SECONDS)
    with pytest.raises(error, match=message):
        log.append(bad)
    assert log.read(range(20)) == entries(1, 10)
    assert log.append(entries(11, 11)).result(PATIENCE_SECONDS) == LogPosition(11, 1)


@pytest.mark.parametrize("uid", ["", ".", "..", "a/b", "../a", "x" * 201, "a\0"])
def test_an_id_is_the_name_of_one_directory(system: LogSystem, uid: str) -> None:
    with pytest.raises(InvalidEntryError, match="is not an id of a log"):
        system.open_log(uid)


def test_a_write_that_got_lost_is_asked_for_once(system: LogSystem, directory: Path) -> None:
    """The write-ahead log never holds a gap, and the future of a lost write completes as well."""
    log = system.open_log("a")
    log.append(entries(1, 2)).result(PATIENCE_SECONDS)
    queue = system._wal.queue
    lost: list[object] = []
    put = queue.put_reserved

    def lose(write: WalWrite) -> None:
        lost.append(write)
        queue.release(write.size)

    try:
        queue.put_reserved = lose  # type: ignore[method-assign]
        futures = [log.append(entries(3, 4))]
    finally:
        queue.put_reserved = put  # type: ignore[method-assign]
    assert len(lost) == 1
    futures += [log.append(entries(index, index)) for index in range(5, 9)]
    assert [future.result(PATIENCE_SECONDS).index for future in futures] == [4, 5, 6, 7, 8]
    (path,) = wal_files(directory)
    assert [record.index for record in wal_records(path)] == list(range(1, 9))


# --- snapshots ------------------------------------------------------------------------------------------------------


def test_below_a_snapshot_only_live_entries_are_kept(directory: Path) -> None:
    with LogSystem(directory) as system:
        log = system.open_log("a")
        log.append(entries(1, 20)).result(PATIENCE_SECONDS)
        snapshot = log.snapshot(15, 1, STATE, LiveSet.parse("3,7-9,15")).result(PATIENCE_SECONDS)
        assert newest_snapshot(log.directory) == snapshot
        kept = [*entries(3, 3), *entries(7, 9), *entries(15, 20)]
        assert log.read(range(99)) == kept
        flush(system)
        assert log.read(range(99)) == kept
        # Nothing else was written: neither below the smallest live index nor between live ones.
        segment = open_log(log.directory).segments[0]
        assert segment.idx.tolist() == [entry.index for entry in kept]
    with LogSystem(directory) as system:
        assert system.open_log("a").read(range(99)) == kept


@pytest.mark.parametrize("flushed", ["before", "after", "never"])
def test_what_was_overwritten_does_not_return_when_the_entry_that_did_it_is_dead(directory: Path, flushed: str) -> None:
    """18 goes back behind 19 and 20, which are in a segment; a snapshot at 18 needs nothing of it."""
    with LogSystem(directory) as system:
        log = system.open_log("log")
        log.append(entries(1, 20)).result(PATIENCE_SECONDS)
        flush(system)
        log.append(entries(18, 18, term=2)).result(PATIENCE_SECONDS)
        if flushed == "before":
            flush(system)
        log.snapshot(18, 2, b"state", LiveSet.parse("")).result(PATIENCE_SECONDS)
        if flushed == "after":
            flush(system)
        assert (log.last, list(log.indexes())) == ((18, 2), [])
        log.write_sparse(LogEntry(22, 2, b"sparse"), 18).result(PATIENCE_SECONDS)
        assert list(log.indexes()) == [22]
        log.truncate(22)
    with LogSystem(directory) as system:
        log = system.open_log("log")
        assert list(log.indexes()) == [22]
        flush(system)
        assert list(log.indexes()) == [22]


@pytest.mark.parametrize("flushed", [0, 1, 2], ids=["in memory", "the tail in segments", "all in segments"])
@pytest.mark.parametrize("live", ["", "3"])
def test_a_tail_that_was_overwritten_does_not_come_back_behind_a_snapshot(
    directory: Path, flushed: int, live: str
) -> None:
    """The entry that hides it is dead, the last one of the log, and gone from memory; but it is what hides it."""
    with LogSystem(directory) as system:
        log = system.open_log("a")
        log.append(entries(1, 10)).result(PATIENCE_SECONDS)
        if flushed:
            flush(system)
        log.append(entries(5, 6, term=2)).result(PATIENCE_SECONDS)
        log.snapshot(6, 2, STATE, LiveSet.parse(live)).result(PATIENCE_SECONDS)
        if flushed == 2:
            flush(system)
    kept = entries(3, 3) if live else []
    for last in (6, 6, 6, 7, 7, 7):
        with LogSystem(directory) as system:
            log = system.open_log("a")
            if last == 7 and log.last == LogPosition(6, 2):
                log.append(entries(7, 7, term=3)).result(PATIENCE_SECONDS)
            assert log.last == log.last_written == LogPosition(last, last - 4 if last == 6 else 3)
            assert log.read(range(20)) == kept + entries(7, last, term=3)
            assert system.drain(PATIENCE_SECONDS)
            assert log.read(range(20)) == kept + entries(7, last, term=3)


def test_entries_below_the_smallest_live_index_do_not_reach_the_file(system: LogSystem, directory: Path) -> None:
    """A snapshot while writes wait in the queue: they are acknowledged, and not written."""
    log = system.open_log("a")
    log.append(entries(1, 10)).result(PATIENCE_SECONDS)
    log.snapshot(10, 1, STATE, LiveSet.empty()).result(PATIENCE_SECONDS)
    with pytest.raises(WriteRefusedError, match="index 10 is not above the snapshot's index 10"):
        log.append(entries(10, 10))
    with pytest.raises(WriteRefusedError, match="a truncation at 10 reaches below"):
        log.truncate(10)
    log.append(entries(11, 12)).result(PATIENCE_SECONDS)
    assert log.read(range(20)) == entries(11, 12)
    flush(system)
    assert open_log(log.directory).segments[0].idx.tolist() == [11, 12]


@pytest.mark.parametrize(
    ("index", "live", "message"),
    [
        (5, "", "at 5 is not above the one at 5"),
        (11, "", "covers entries that are not durable: index 10 is"),
        (8, "9", "live index 9 is above the snapshot's index 8"),
        (8, "2-4", "index 3 is live, which it was not at the snapshot of index 5"),
    ],
)
def test_a_snapshot_that_contradicts_the_log_is_refused(system: LogSystem, index: int, live: str, message: str) -> None:
    log = system.open_log("a")
    log.append(entries(1, 10)).result(PATIENCE_SECONDS)
    log.snapshot(5, 1, STATE, LiveSet.parse("2,4")).result(PATIENCE_SECONDS)
    with pytest.raises(WriteRefusedError, match=message):
        log.snapshot(index, 1, STATE, LiveSet.parse(live))
    assert log.state.row.snapshot_index == 5
    assert log.read(range(20)) == [*entries(2, 2), *entries(4, 4), *entries(6, 10)]


def test_a_replaced_snapshot_stays_for_the_grace(directory: Path) -> None:
    now = [1000.0]
    with LogSystem(directory, limits=SystemLimits(snapshot_grace=60), clock=lambda: now[0]) as system:
        log = system.open_log("a")
        log.append(entries(1, 10)).result(PATIENCE_SECONDS)
        names = []
        for index, moment in ((1, 0), (2, 10), (3, 69), (4, 71)):
            now[0] = 1000.0 + moment
            log.snapshot(index, 1, STATE, LiveSet.empty()).result(PATIENCE_SECONDS)
            names.append(sorted(int(path.name[17:], 16) for path in (log.directory / "snapshots").iterdir()))
        # Snapshot 1 was replaced at 10 and goes at 71, the first snapshot 60 seconds later.
        assert names == [[1], [1, 2], [1, 2, 3], [2, 3, 4]]


def test_a_missing_live_set_is_never_taken_for_empty(directory: Path) -> None:
    """It is rebuilt by the owner, or the log is not opened; until then its entries stay, wherever they are."""
    with LogSystem(directory) as system:
        log = system.open_log("a")
        log.append(entries(1, 10)).result(PATIENCE_SECONDS)
        path = log.snapshot(8, 1, STATE, LiveSet.parse("2,5")).result(PATIENCE_SECONDS).path
    (path / INDEXES_FILE).unlink()
    with LogSystem(directory) as system:
        with pytest.raises(LiveSetUnknownError):
            system.open_log("a")
        assert system.drain(PATIENCE_SECONDS)
        log = system.open_log("a", rebuild_live=lambda snapshot: LiveSet.parse("2,5"))
        assert log.read(range(20)) == [*entries(2, 2), *entries(5, 5), *entries(9, 10)]
    with LogSystem(directory) as system:
        assert system.open_log("a").state.row.live == LiveSet.parse("2,5")


def test_a_live_entry_that_is_gone_is_named(directory: Path) -> None:
    with LogSystem(directory, limits=SystemLimits(segments=NewSegments(max_count=4))) as system:
        log = system.open_log("a")
        log.append(entries(1, 10)).result(PATIENCE_SECONDS)
        flush(system)
        log.snapshot(8, 1, STATE, LiveSet.parse("2,5")).result(PATIENCE_SECONDS)
    (log.directory / segment_name(1)).unlink()
    with LogSystem(directory) as system:
        log = system.open_log("a")
        assert log.read([5, 9]) == [*entries(5, 5), *entries(9, 9)]
        with pytest.raises(EntryMissingError, match=r"/a: the entry of index 2 is missing"):
            log.read([2])


# --- limits ---------------------------------------------------------------------------------------------------------


def test_files_are_rolled_by_count_and_by_size_and_flushed_in_the_background(directory: Path) -> None:
    limits = SystemLimits(wal=WalLimits(max_entries=5, max_size=400), segments=NewSegments(max_count=7))
    with LogSystem(directory, limits=limits) as system:
        log = system.open_log("a")
        log.append(entries(1, 23)).result(PATIENCE_SECONDS)
        log.append(entries(24, 30, size=300)).result(PATIENCE_SECONDS)
        assert system.drain(PATIENCE_SECONDS)
        (path,) = wal_files(directory)
        assert path.name == "0000000000000008.wal"
        assert log.read(range(99)) == entries(1, 23) + entries(24, 30, size=300)
        assert read_writers(directory) == {b"a": WriterState(28)}
    assert [segment.count for segment in open_log(log.directory).segments] == [7, 7, 7, 7]


def test_a_log_that_writes_faster_than_the_disk_waits(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, entered = threading.Event(), threading.Event()
    sync = fs.sync_data

    def wait(fd: int) -> None:
        entered.set()
        slow.wait(PATIENCE_SECONDS)
        sync(fd)

    monkeypatch.setattr(fs, "sync_data", wait)
    with LogSystem(directory, limits=SystemLimits(wal=WalLimits(queue_bytes=1000))) as system:
        log = system.open_log("a")
        futures = [log.append(entries(1, 1, size=600))]
        assert entered.wait(PATIENCE_SECONDS)
        futures.append(log.append(entries(2, 2, size=600)))
        with pytest.raises(LogBusyError, match="600 bytes wait to be written"):
            log.append(entries(3, 3, size=600), timeout=0)
        assert log.last == LogPosition(2, 1)
        assert log.read(range(9)) == entries(1, 2, size=600)
        assert [future.done() for future in futures] == [False, False]
        slow.set()
        futures.append(log.append(entries(3, 3, size=600), timeout=PATIENCE_SECONDS))
        assert [future.result(PATIENCE_SECONDS).index for future in futures] == [1, 2, 3]


# --- failures -------------------------------------------------------------------------------------------------------


def test_nothing_is_acknowledged_after_a_sync_that_failed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LogSystem(directory) as system:
        log, other = system.open_log("a"), system.open_log("b")
        log.append(entries(1, 3)).result(PATIENCE_SECONDS)

        def fail(fd: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(fs, "sync_data", fail)
            with pytest.raises(WalFailedError, match=r"0000000000000001.wal: .* Input/output error.* open it again"):
                log.append(entries(4, 4)).result(PATIENCE_SECONDS)
        for item in (log, other):
            with pytest.raises(WalFailedError):
                item.append(entries(4, 4)).result(PATIENCE_SECONDS)
        assert log.read(range(4)) == entries(1, 3)
        assert log.last_written == LogPosition(3, 1)
    assert read_stop(directory) == {}, "what is on the disk is unknown"
    with LogSystem(directory) as system:
        log = system.open_log("a")
        assert log.read(range(1, 4)) == entries(1, 3)
        assert log.append(entries(5 if log.last == LogPosition(4, 1) else 4, 5)).result(PATIENCE_SECONDS).index == 5


def test_a_flush_that_fails_keeps_the_file(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LogSystem(directory) as system:
        log = system.open_log("a")
        log.append(entries(1, 9)).result(PATIENCE_SECONDS)

        def full(fd: int, data: bytes, offset: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(fs, "write_at", full)
            system.roll().result(PATIENCE_SECONDS)
            with pytest.raises(FlushFailedError, match=r"0000000000000001.wal: .*No space left on device"):
                system.drain(PATIENCE_SECONDS)
        assert log.read(range(99)) == entries(1, 9)
        assert len(wal_files(directory)) == 2
    assert read_stop(directory) == {}
    with LogSystem(directory) as system:
        assert system.drain(PATIENCE_SECONDS)
        assert system.open_log("a").read(range(99)) == entries(1, 9)


def test_damage_stops_the_opening_and_changes_nothing(directory: Path) -> None:
    with LogSystem(directory) as system:
        system.open_log("a").append(entries(1, 9)).result(PATIENCE_SECONDS)
    (path,) = wal_files(directory)
    data = bytearray(path.read_bytes())
    third = list(wal_records(path))[2].offset
    data[third + 12] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedWalError, match=f"{path}: damaged write-ahead log at offset {third}"):
        LogSystem(directory)
    assert path.read_bytes() == bytes(data)
    assert wal_files(directory) == [path]


def test_a_torn_last_record_of_a_killed_owner_does_not_count(directory: Path) -> None:
    with LogSystem(directory.parent / "owner") as system:
        system.open_log("a").append(entries(1, 9)).result(PATIENCE_SECONDS)
        shutil.copytree(system.directory, directory)
    (path,) = wal_files(directory)
    path.write_bytes(path.read_bytes()[:-1])
    with LogSystem(directory) as system:
        assert {tail.offset for tail in system.tails.values()} != set()
        log = system.open_log("a")
        assert log.last == LogPosition(8, 1)
        assert log.append(entries(9, 9, term=2)).result(PATIENCE_SECONDS) == LogPosition(9, 2)


def test_one_process_writes_a_system(system: LogSystem, directory: Path) -> None:
    assert system.uids == []
    with pytest.raises(LockHeldError, match="system of logs, pid"):
        LogSystem(directory, lock_timeout=0)


def test_records_of_a_deleted_log_are_dropped(directory: Path) -> None:
    with LogSystem(directory) as system:
        for uid in ("a", "b"):
            system.open_log(uid).append(entries(1, 9)).result(PATIENCE_SECONDS)
    (directory / "a").rmdir()
    with LogSystem(directory) as system:
        assert system.uids == ["b"]
        assert system.drain(PATIENCE_SECONDS)
        assert system.open_log("b").read(range(99)) == entries(1, 9)


def test_a_closed_log_takes_no_more_entries(directory: Path) -> None:
    with LogSystem(directory) as system:
        log, other = system.open_log("a"), system.open_log("b")
        futures: list[Future[LogPosition]] = [log.append(entries(1, 2))]
        log.close()
        with pytest.raises(LogClosedError, match="/a: closed: the log is closed"):
            log.append(entries(3, 3))
        other.append(entries(1, 1)).result(PATIENCE_SECONDS)
    assert futures[0].result(PATIENCE_SECONDS) == LogPosition(2, 1)
    for act in (lambda: other.append(entries(2, 2)), lambda: other.snapshot(1, 1, STATE, LiveSet.empty())):
        with pytest.raises(LogClosedError):
            act()
    with pytest.raises(LogClosedError, match="the system of logs is closed"):
        system.open_log("a")
