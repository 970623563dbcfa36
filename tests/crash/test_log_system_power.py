"""A system of logs loses its power at every call that changes its directory: append, roll, flush, snapshot, recovery.

After it, whatever subset of the unsynced changes is left: the system opens, holds every acknowledged entry and every
snapshot that was reported durable, no entry that was never written, and goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import pytest

from compaction.segments import writer as flush_module
from compaction.segments import writer as segment_writer
from compaction.segments.directory.fs import regular_segments
from compaction.segments.errors import SegmentLogError
from compaction.segments.format import segment_file as segment_files
from compaction.segments.memtable import LogEntry, LogPosition
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system import content
from compaction.segments.system import system as system_module
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal import wal_log
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments
from support.clocks import PATIENCE_SECONDS
from support.faults.power_loss import Disk, Recorder, Without, lose_power_everywhere
from support.segments.owned_logs import History, conforms
from support.segments.segment_logs import live_only_above, nothing_hides

LIMITS = SystemLimits(
    wal=WalLimits(max_entries=7), segments=NewSegments(max_count=9), rolled_files=1, snapshot_grace=0.0
)


class Run:
    """One recorded life of a system: what was written, and what was promised when."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self.recorder = recorder
        self.histories: dict[str, History] = {}
        self.acknowledged: dict[str, int] = {}
        self.system = LogSystem(directory, limits=LIMITS)

    def log(self, uid: str) -> Log:
        self.histories.setdefault(uid, History())
        return self.system.open_log(uid)

    def append(self, uid: str, first: int, count: int, term: int, *, wait: bool = True) -> None:
        log, history = self.log(uid), self.histories[uid]
        entries = [LogEntry(i, term, b"%s %d %d" % (uid.encode(), i, term)) for i in range(first, first + count)]
        history.writes += entries
        written = len(history.writes)
        future = log.append(entries)

        def note(done: Future[LogPosition]) -> None:
            if done.exception() is None:
                self.recorder.mark(("written", uid, written))

        future.add_done_callback(note)
        if wait:
            future.result(PATIENCE_SECONDS)

    def snapshot(self, uid: str, index: int, live: tuple[int, ...]) -> None:
        log, history = self.log(uid), self.histories[uid]
        history.snapshots.append((index, live))
        log.snapshot(index, 1, b"\x83j", LiveSet.from_indexes(live)).result(PATIENCE_SECONDS)
        self.recorder.mark(("snapshot", uid, len(history.snapshots)))

    def flush(self) -> None:
        self.system.roll().result(PATIENCE_SECONDS)
        assert self.system.drain(PATIENCE_SECONDS)

    def reopen(self) -> None:
        self.system.close()
        self.system = LogSystem(self.system.directory, limits=LIMITS)

    def close(self) -> None:
        self.system.close()


def life(run: Run) -> None:
    """Appends in batches, overwrites in the WAL and in segments, rolls, flushes, snapshots with live entries; a clean
    stop in between, with entries that are in the WAL alone.
    """
    run.append("a", 1, 5, 1)
    run.append("b", 1, 3, 1, wait=False)
    run.append("a", 6, 6, 1)
    run.append("a", 9, 2, 2)
    run.snapshot("a", 9, (2, 3, 9))
    run.flush()
    run.append("a", 11, 4, 2)
    run.append("b", 2, 5, 3)
    run.snapshot("a", 12, (2, 3, 9, 12))
    run.flush()
    run.append("a", 13, 2, 4)
    run.reopen()
    run.append("a", 15, 4, 4, wait=False)
    run.append("b", 7, 12, 3)
    run.snapshot("b", 9, (8,))
    run.flush()
    run.append("a", 19, 3, 4)
    run.snapshot("a", 18, (3, 9, 12))
    run.append("a", 22, 4, 5)
    run.snapshot("a", 23, (3, 20, 22))
    run.append("b", 19, 2, 4)
    run.snapshot("b", 20, (8, 19))
    run.flush()
    run.append("b", 21, 4, 5)
    run.flush()
    run.append("b", 22, 1, 6)
    run.snapshot("b", 22, (8,))
    run.flush()


def record(root: Path) -> tuple[Recorder, Run, Disk]:
    root.mkdir()
    disk = Disk(root)
    with Recorder() as recorder:
        run = Run(root / "system", recorder)
        life(run)
        run.close()
    return recorder, run, disk


def promised(recorder: Recorder, calls: int) -> dict[tuple[str, str], int]:
    """How many writes and snapshots of each log were acknowledged before a call."""
    result: dict[tuple[str, str], int] = {}
    for what, uid, count in recorder.promised(calls):
        result[what, uid] = max(count, result.get((what, uid), 0))
    return result


def check(directory: Path, run: Run, promises: dict[tuple[str, str], int]) -> None:
    """The recovered system keeps its promises, also after all of it is in segments, and takes the next entry."""
    if not directory.exists():
        assert promises == {}
        return
    conforms(directory)
    for flushed in (False, True):
        with LogSystem(directory, limits=LIMITS) as system:
            for uid, history in run.histories.items():
                kept = (promises.get(("written", uid), 0), promises.get(("snapshot", uid), 0))
                assert uid in system.uids or kept == (0, 0)
                log = system.open_log(uid)
                history.check(log, acknowledged=kept[0], snapshots=kept[1])
                if flushed:
                    following = 1 if log.last is None else log.last.index + 1
                    log.append([LogEntry(following, 99, b"next")]).result(PATIENCE_SECONDS)
                    assert log.read([following]) == [LogEntry(following, 99, b"next")]
            if not flushed:
                system.roll().result(PATIENCE_SECONDS)
                assert system.drain(PATIENCE_SECONDS)


def lose(
    root: Path,
    recorder: Recorder,
    run: Run,
    disk: Disk,
    *,
    kept: frozenset[str] = frozenset(),
    every: int = 1,
    within: Callable[[], AbstractContextManager[object]] = Recorder,
) -> int:
    """See `lose_power_everywhere`."""

    def check_left(left: Path, number: int) -> None:
        check(left / "system", run, promised(recorder, number))

    return lose_power_everywhere(root, recorder, disk, check_left, kept=kept, every=every, within=within)


def test_power_is_lost_at_every_call(tmp_path: Path) -> None:
    recorder, run, disk = record(tmp_path / "disk")
    kinds = {call[0] for call in recorder.calls}
    assert {"create", "write", "sync", "sync_directory", "make_directory", "rename", "unlink"} <= kinds
    for uid, history in run.histories.items():
        assert promised(recorder, len(recorder.calls))["written", uid] == len(history.writes)
    assert lose(tmp_path, recorder, run, disk) > len(recorder.calls)


DEFECTS: dict[str, tuple[ModuleType, str, object]] = {
    "a batch is not synced": (wal_log, "fs", Without("sync_data")),
    "the name of a file is not synced": (wal_log, "fs", Without("sync_directory")),
    "segments are not synced": (segment_files, "fs", Without("sync")),
    "a directory of segments is not synced": (segment_files, "fs", Without("sync_directory")),
    "a snapshot is not synced": (content, "fs", Without("sync")),
    "the name of a snapshot is not synced": (content, "fs", Without("sync_directory")),
    "the directory of a log is not synced": (system_module, "fs", Without("sync_directory")),
    "live entries below the snapshot are dropped": (flush_module, "select", live_only_above),
    "what a dead entry has overwritten comes back": (flush_module, "select", nothing_hides),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_missing_step_is_found(defect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would pass whatever the code does."""
    module, name, replacement = DEFECTS[defect]
    monkeypatch.setattr(module, name, replacement)
    recorder, run, disk = record(tmp_path / "disk")

    def search() -> None:
        """What is lost for good is found at the next of every eighth call; what shows for a moment, among all calls."""
        for every in (8, 1):
            lose(tmp_path, recorder, run, copy.deepcopy(disk), kept=frozenset({"nothing", "some"}), every=every)

    with pytest.raises((AssertionError, SegmentLogError)):
        search()


def record_broken(root: Path) -> tuple[Recorder, Run, Disk, tuple[Path, bytes]]:
    """Entries of `b`, and of `a` between them, wait in the write-ahead log when a segment of `b` is damaged. Meanwhile
    `a` goes back, is flushed, and has the system stopped and started. Last, what a copy of the segment holds.
    """
    root.mkdir()
    with Recorder() as before:
        run = Run(root / "system", before)
        for uid in ("a", "b"):
            run.append(uid, 1, 12, 1)
        run.snapshot("b", 9, (2, 7))
        run.flush()
        run.close()
        run.system = LogSystem(run.system.directory, limits=SystemLimits())
        for first, term in ((13, 1), (15, 2), (19, 2)):
            for uid in ("a", "b"):
                run.append(uid, first, 4, term)
        run.close()
    log = run.system.directory / "b"
    damaged = log / regular_segments(log)[-1]
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    disk = Disk(root)
    with Recorder() as recorder:
        run.recorder = recorder
        for uid, history in run.histories.items():
            recorder.mark(("written", uid, len(history.writes)))
            recorder.mark(("snapshot", uid, len(history.snapshots)))
        run.system = LogSystem(run.system.directory, limits=LIMITS)
        assert list(run.system.broken) == ["b"]
        run.append("a", 21, 9, 3)
        run.flush()
        run.append("a", 18, 3, 4)
        run.snapshot("a", 16, (3, 12))
        run.reopen()
        run.append("a", 21, 9, 4)
        run.flush()
        run.close()
    return recorder, run, disk, (damaged.relative_to(root), content)


def lose_broken(
    root: Path,
    recorder: Recorder,
    run: Run,
    disk: Disk,
    copy_: tuple[Path, bytes],
    *,
    kept: frozenset[str] = frozenset(),
) -> int:
    def check_left(left: Path, number: int) -> None:
        promises = promised(recorder, number)
        # The log may stay broken over the next start, too.
        if number % 2:
            with LogSystem(left / "system", limits=LIMITS) as system:
                assert list(system.broken) == ["b"]
                run.histories["a"].check(
                    system.open_log("a"),
                    acknowledged=promises["written", "a"],
                    snapshots=promises.get(("snapshot", "a"), 0),
                )
                assert system.drain(PATIENCE_SECONDS)
        (left / copy_[0]).write_bytes(copy_[1])
        check(left / "system", run, promises)

    return lose_power_everywhere(root, recorder, disk, check_left, kept=kept)


def test_power_is_lost_at_every_call_while_a_log_is_broken(tmp_path: Path) -> None:
    recorder, run, disk, restored = record_broken(tmp_path / "disk")
    assert lose_broken(tmp_path, recorder, run, disk, restored) > len(recorder.calls)


@pytest.mark.parametrize("missing", ["sync", "sync_directory"])
def test_a_missing_step_is_found_while_a_log_is_broken(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "fs", Without(missing))
    recorder, run, disk, restored = record_broken(tmp_path / "disk")
    with pytest.raises((AssertionError, SegmentLogError)):
        lose_broken(tmp_path, recorder, run, disk, restored, kept=frozenset({"nothing", "some"}))
