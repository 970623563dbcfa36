"""Compactions that the owner of a system runs itself: dead segments after each snapshot, whole logs when they are
due.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from compaction.api.policy.segment_logs import Ownership
from compaction.errors import CompactionError
from compaction.segments import sweep
from compaction.segments.commit import fence, recovery
from compaction.segments.commit.recovery import RecoveryReport
from compaction.segments.directory import lock
from compaction.segments.directory.fs import fault_of, storage_errors
from compaction.segments.errors import LogChangedError, LogClosedError
from compaction.segments.model import FileIdentity
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import DeadSegment, SegmentLimits, find_dead
from compaction.segments.rewriting.compact import CompactionRequest, LogCompaction, compact_log
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.rules import CompactionFacts, Due, DueRules, LogRow, due, seconds_left
from compaction.segments.system.segment_changes import OnChange, changes_between
from compaction.segments.system.segments import SegmentView

# A log's list of segments while others change the directory: the segment writer, compactions, sweeps.
#
# No notification is needed. A reader that opens a file finds out whether it still is the one that was parsed, by name
# and inode; if it is not, the list is read again, for this reader and all that follow. Who knows of a change says so
# by `refresh`, which only saves the next reader the detour.

_logger = logging.getLogger(__name__)
_PAUSE: Final = 0.05
_PATIENCE: Final = 600
"""Pauses of so many seconds, so half a minute together."""


class SegmentList:
    """Any number of threads. `view` is replaced, never changed, and never by an older reading."""

    def __init__(self, directory: Path, on_change: OnChange | None = None) -> None:
        self.view = SegmentView(directory, {}, ())
        self._on_change = on_change
        # Held from reading the directory until the view is replaced and reported: two refreshes at once could replace
        # a newer view by an older one. Reentrant: who is told of a change may read the log.
        self._refreshing = threading.RLock()

    def refresh(self) -> SegmentView:
        """The segments as they are now, for all readers from now on; errors as `SegmentView.refreshed`."""
        with self._refreshing:
            self._replace(_settled(self.view))
            return self.view

    def drop(self, obsolete: Mapping[str, FileIdentity]) -> SegmentView:
        """From now on no reader begins with these files, which are about to be deleted; errors as `refresh`."""
        with self._refreshing:
            self._replace(_settled(replace(self.view, dropped={**self.view.dropped, **obsolete})))
            return self.view

    def _replace(self, view: SegmentView) -> None:
        changes = changes_between(self.view, view)
        self.view = view
        if changes and self._on_change is not None:
            try:
                self._on_change(changes)
            except Exception:
                # The log's work must not depend on who listens.
                _logger.exception("%s: what is to be called at changes of segments failed", view.directory)


def _settled(view: SegmentView) -> SegmentView:
    """`view` as it is now. A long compaction of a large log may change names during every one of the readings that
    `refreshed` makes: it ends, and a flush that gave up would stop the log.
    """
    for _ in range(_PATIENCE):
        try:
            return view.refreshed()
        except LogChangedError:
            time.sleep(_PAUSE)
    return view.refreshed()


# Phase 1 of a log's compaction, by its owner: segments with nothing live are deleted (docs/design/segment-owner.md).
#
# Under the log's lock, so no commit and no sweep is under way; each step is durable before the next begins:
#
# 1. what is dead, by the same rule as everywhere (`planning.unreferenced`), is marked in the fence;
# 2. the log drops its references and reports the segments as obsolete: no reader begins with them from here on;
# 3. the files go, old before new, and then their marks.
#
# A crash in between leaves marked files, which the next phase 1 deletes, or a sweep after its grace: both check each
# file again. A reader in this process that began before step 2 finds a file gone, and reads the list again; in
# another process as well. Only marks of an owner are carried out here: what a job of the operator has marked waits
# for that grace.

OWNER: Final = "owner"
"""Signs the lock, and the marks in the fence."""


def settle(directory: Path, *, timeout: float) -> None:
    """Settle what a crash left half-done of a compaction, before the log is read: of names that were being replaced, a
    power failure may have kept later ones and lost earlier ones, and then live entries are hidden. What recovery keeps
    for a user's decision stays.

    LockHeldError: another process has had the log's lock for `timeout` seconds. CorruptFenceError, StoreIOError, ...
    """
    if recovery.is_needed(directory):
        recovery.recover(directory, holder=OWNER, ownership=Ownership.STOPPED, timeout=timeout)


def dead_in(view: SegmentView, row: LogRow, waiting: LiveSet) -> dict[str, DeadSegment]:
    """Return the segments that are dead in one reading of a log; none while it is unknown what is live.

    `waiting`: the indexes that its mem tables held before that reading.

    LiveEntriesMissingError: live entries are in neither, so nothing is known to be dead.
    """
    if row.live is None or not view.segments:
        return {}
    state = view.state(row, waiting)
    if state.missing:
        raise state.entries_missing()
    return find_dead(state, row.live)


def delete_dead(
    segments: SegmentList, row: LogRow, *, waiting: Callable[[], LiveSet], timeout: float
) -> tuple[str, ...]:
    """Delete the dead segments of a log at the snapshot of `row`; returns their names. Repeating is harmless.

    `waiting`: what the log's mem tables hold when it is asked, before the segments are read: entries only ever go from
    there to here.

    Raises:
        LiveEntriesMissingError: live entries are lost; nothing was done.
        LockHeldError: another process has had the log's lock for `timeout` seconds; nothing was done.
        RecoveryBlockedError: a half-done compaction cannot be settled without a user's decision; nothing was done.
        SegmentLogError: the log, or its fence, cannot be read or written; what was marked is deleted another time.
    """
    # By what is in memory: most snapshots leave no segment dead, and take no lock.
    held_in_memory = waiting()
    if not dead_in(segments.view, row, held_in_memory):
        return ()
    directory = segments.view.directory
    with storage_errors(directory), lock.hold(directory, holder=OWNER, timeout=timeout) as held:
        recovery.recover_locked(directory, now=None, held=held).require_settled(directory)
        held_in_memory = waiting()
        dead = dead_in(segments.refresh(), row, held_in_memory)
        record = fence.read(directory)
        marked = {tombstone.name for tombstone in record.tombstones}
        now = held.now()
        new = [each.tombstone(since=now, job=OWNER) for each in dead.values() if each.name not in marked]
        if new:
            record = fence.with_tombstones(record, new)
            fence.write(directory, record, held=held, spare=fence.MAX_FENCE_BYTES // 2)
        mine = [tombstone for tombstone in record.tombstones if tombstone.job == OWNER]
        verdicts = sweep.judge(directory, mine, dead)
        segments.drop({item.name: dead[item.name].identity for item in verdicts.delete})
        deleted = sweep.delete(directory, verdicts.delete, held=held)
        sweep.settle(directory, record, verdicts, held=held)
        segments.refresh()
    return tuple(item.name for item in deleted)


# Compactions that the owner of a system runs itself: phase 1 after each snapshot, and whole ones when they are due.
#
# One thread rewrites, one log at a time; snapshots and phase 1 have the log worker's thread, and wait for none of it.
# Every commit is under the log's fence and lock, as that of any worker, so both may run beside the operator's jobs.

_LOCK_SECONDS: Final = 5.0
"""That phase 1 waits for a log's lock; a commit holds it for milliseconds. Else the next snapshot tries again."""


@dataclass(frozen=True, slots=True)
class OwnerCompaction:
    """The compaction that an owner does itself.

    Rewriting is off by default: it is the operator's, or asked for by a call.

    `phase_one`: delete dead segments after each snapshot. `due`: when to rewrite without being asked. `grace`: seconds
    for which replaced names stay for readers in other processes. `bytes_per_second`: what a rewrite may read and write,
    so that appends beside it wait less for the disk; None for as fast as it goes.
    """

    phase_one: bool = True
    due: DueRules = field(default_factory=DueRules)
    limits: SegmentLimits = field(default_factory=SegmentLimits)
    grace: float = 600.0
    bytes_per_second: int | None = None


class CompactedLog(Protocol):
    """A log as its compactions see it."""

    @property
    def name(self) -> str:
        """Its id."""

    @property
    def directory(self) -> Path:
        """The directory of its segments."""

    @property
    def row(self) -> LogRow:
        """The state of its snapshot, as known now."""

    @property
    def segments(self) -> SegmentList:
        """Its list of segments."""

    @property
    def waiting(self) -> LiveSet:
        """The indexes that its mem tables hold now."""


@dataclass(frozen=True, slots=True)
class OwnCompaction:
    """A finished compaction: why it was due, what it did, and what was deleted: dead segments at once, replaced names
    after their grace.
    """

    log: str
    reason: Due
    done: LogCompaction
    deleted: tuple[str, ...]
    swept: sweep.SweepReport


@dataclass(slots=True)
class _Request:
    log: CompactedLog
    reason: Due
    bytes_per_second: int | None
    future: Future[OwnCompaction] = field(default_factory=Future)


class Compactions:
    """Of one system. Threads: `phase_one` in the log worker's, rewriting in one of its own."""

    def __init__(self, name: str, rules: OwnerCompaction, *, clock: Callable[[], float]) -> None:
        """`clock`: seconds, for the timer."""
        self._rules = rules
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[_Request] = deque()
        self._compacted_at: dict[str, float] = {}
        self._logs: dict[str, CompactedLog] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"compaction-{name}", daemon=True)
        self._thread.start()

    def watch(self, log: CompactedLog) -> None:
        """Compact this log when the timer says so; its time begins now."""
        with self._changed:
            self._logs[log.name] = log
            self._compacted_at.setdefault(log.name, self._clock())
            self._changed.notify_all()

    def after_snapshot(self, log: CompactedLog) -> None:
        """Phase 1, and a rewrite if what is left asks for it. What fails is reported and tried after the next
        snapshot: the snapshot itself is in force.
        """
        try:
            if self._rules.phase_one:
                delete_dead(log.segments, log.row, waiting=lambda: log.waiting, timeout=_LOCK_SECONDS)
            self._ask(log)
        except Exception as error:  # noqa: BLE001 - no future is read here, so what is not named is never known
            _logger.warning(
                "%s: dead segments cannot be deleted now: %s", log.directory, fault_of(error, log.directory)
            )

    def request(self, log: CompactedLog, *, bytes_per_second: int | None = None) -> Future[OwnCompaction]:
        """Compact a log as soon as those before it are done, at this rate instead of that of the rules.

        The future fails with the compaction's error.
        """
        return self._put(log, Due.REQUESTED, bytes_per_second).future

    def close(self) -> None:
        """End: a compaction that is under way stops before its next read or write, and what waits fails."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for item in waiting:
            item.future.set_exception(_closed(item.log))
        self._thread.join()

    def _ask(self, log: CompactedLog) -> None:
        """Put a log into the queue if it is due now."""
        rules, row, waiting, view = self._rules, log.row, log.waiting, log.segments.view
        if rules.due == DueRules() or row.live is None or not view.segments:
            return
        state = view.state(row, waiting)
        awaiting = frozenset(tombstone.name for tombstone in fence.read(log.directory).tombstones)
        facts = CompactionFacts.of(state, plan_log(state, rules.limits, awaiting_deletion=awaiting))
        now = self._clock()
        reason = due(facts, rules.due, compacted_at=self._compacted_at.get(log.name, now), now=now)
        if reason is not None:
            with suppress(LogClosedError):
                self._put(log, reason)

    def _put(self, log: CompactedLog, reason: Due, bytes_per_second: int | None = None) -> _Request:
        """At most one request of a log waits; a second one is the same, and the lower of their rates holds."""
        rate = self._rules.bytes_per_second if bytes_per_second is None else bytes_per_second
        with self._changed:
            if self._closed:
                raise _closed(log)
            for item in self._waiting:
                if item.log is log:
                    item.bytes_per_second = min(
                        (r for r in (item.bytes_per_second, rate) if r is not None), default=None
                    )
                    return item
            request = _Request(log, reason, rate)
            self._waiting.append(request)
            self._changed.notify_all()
            return request

    def _run(self) -> None:
        while not self._closed:
            request = self._next()
            if request is not None:
                self._compact(request)

    def _next(self) -> _Request | None:
        """The next request; None when the timer was asked instead, or all ends."""
        with self._changed:
            if not self._waiting and not self._closed:
                left = self._left(self._compacted_at.values())
                self._changed.wait(left)
            if self._waiting:
                return self._waiting.popleft()
            logs = [log for name, log in self._logs.items() if self._left([self._compacted_at[name]]) == 0]
        for log in logs:
            self._ask_by_timer(log)
        return None

    def _left(self, times: Iterable[float]) -> float | None:
        now = self._clock()
        left = [seconds_left(self._rules.due, compacted_at=time, now=now) for time in times]
        return min((item for item in left if item is not None), default=None)

    def _ask_by_timer(self, log: CompactedLog) -> None:
        try:
            log.segments.refresh()
            self._ask(log)
        except Exception as error:  # noqa: BLE001 - the thread goes on with the other logs
            fault = fault_of(error, log.directory)
            _logger.warning("%s: whether it is to be compacted cannot be found out: %s", log.directory, fault)
        with self._changed:
            # Whatever came of it: the next time is one period later.
            self._compacted_at[log.name] = self._clock()

    def _compact(self, request: _Request) -> None:
        log = request.log
        try:
            result = self._compacted(log, request.reason, request.bytes_per_second)
        except CompactionError as error:
            # A requested compaction has a caller, which gets the error; of any other only the log tells.
            if request.reason is not Due.REQUESTED:
                _logger.warning("%s: the compaction failed: %s", log.directory, error)
            request.future.set_exception(error)
        except Exception as error:
            # Of the program, not of the log; the thread goes on with the others.
            _logger.exception("%s: the compaction failed", log.directory)
            request.future.set_exception(error)
        else:
            request.future.set_result(result)
        finally:
            with self._changed:
                self._compacted_at[log.name] = self._clock()

    def _compacted(self, log: CompactedLog, reason: Due, bytes_per_second: int | None) -> OwnCompaction:
        if not log.segments.refresh().segments:
            # Nothing was flushed yet.
            return OwnCompaction(log.name, reason, LogCompaction("", RecoveryReport()), (), sweep.SweepReport())
        rules, said = self._rules, Ownership.STOPPED
        # The owner vouches for itself, whatever a Ra server has left in the directory.
        request = CompactionRequest(
            OWNER, rules.limits, ownership=said, marking=not rules.phase_one, bytes_per_second=bytes_per_second
        )
        try:
            done = compact_log(log.directory, request, should_stop=lambda: self._closed)
            deleted: tuple[str, ...] = ()
            if rules.phase_one:
                deleted = delete_dead(log.segments, log.row, waiting=lambda: log.waiting, timeout=request.timeout)
            swept = sweep.sweep(log.directory, grace_seconds=rules.grace, ownership=said, holder=OWNER)
        finally:
            log.segments.refresh()
        return OwnCompaction(log.name, reason, done, deleted, swept)


def _closed(log: CompactedLog) -> LogClosedError:
    return LogClosedError(str(log.directory), "the system of logs is closed")
