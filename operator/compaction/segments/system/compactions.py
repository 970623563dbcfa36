"""Compactions that the owner of a system runs itself: phase 1 after each snapshot, and whole ones when they are due.

One thread rewrites, one log at a time; snapshots and phase 1 have the log worker's thread, and wait for none of it.
Every commit is under the log's fence and lock, as that of any worker, so both may run beside the operator's jobs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from compaction.api.policy.segment_logs import Ownership
from compaction.errors import CompactionError
from compaction.segments import sweep
from compaction.segments.commit import fence
from compaction.segments.commit.recovery import RecoveryReport
from compaction.segments.directory.faults import fault_of
from compaction.segments.errors import LogClosedError
from compaction.segments.planning.due import CompactionFacts, Due, DueRules, due, seconds_left
from compaction.segments.planning.limits import SegmentLimits
from compaction.segments.planning.plan import plan_log
from compaction.segments.rewriting.run import CompactionRequest, LogCompaction, compact_log
from compaction.segments.snapshot.seq import LiveSet
from compaction.segments.system.phase_one import OWNER, delete_dead
from compaction.segments.system.row import LogRow
from compaction.segments.system.segment_list import SegmentList

_logger = logging.getLogger(__name__)
_LOCK_SECONDS: Final = 5.0
"""That phase 1 waits for a log's lock; a commit holds it for milliseconds. Else the next snapshot tries again."""


@dataclass(frozen=True, slots=True)
class OwnerCompaction:
    """What an owner compacts itself. Rewriting is off by default: it is the operator's, or asked for by a call.

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
        """Where its segments are."""

    @property
    def row(self) -> LogRow:
        """What is known of its snapshot now."""

    @property
    def segments(self) -> SegmentList:
        """Its list of segments."""

    @property
    def waiting(self) -> LiveSet:
        """What its mem tables hold now."""


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
        for one in waiting:
            one.future.set_exception(_closed(one.log))
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
            for one in self._waiting:
                if one.log is log:
                    one.bytes_per_second = min((r for r in (one.bytes_per_second, rate) if r is not None), default=None)
                    return one
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
        return min((one for one in left if one is not None), default=None)

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
