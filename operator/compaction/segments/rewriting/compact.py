"""The compaction of one log in one process: recover, plan, rewrite side by side, verify, commit, mark what is dead."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.commit.commit import GroupOutcome
from compaction.segments.commit.records import GroupReceipt, RewrittenGroup, SegmentTombstone
from compaction.segments.directory import fs, lock
from compaction.segments.directory.fs import storage_errors
from compaction.segments.directory.owner import require_stopped
from compaction.segments.errors import SegmentLogError
from compaction.segments.format.names import group_key, partial_name
from compaction.segments.planning.plan import GroupCheck, LogPlan, plan_log
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits, damage_of, known_live
from compaction.segments.reading.reader import Buffers
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.rewriting.kernel import rewrite_group
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.storage.errors import RewriteStoppedError
from compaction.storage.pace import Pace

# Compacts many groups of one log in one process: rewrites side by side, commits of what is ready.
#
# The threads spend their time in system calls (reading, writing, syncing), which run beside each other; a thread that
# computes holds the interpreter for a fraction of a millisecond. While they rewrite, the caller's thread commits what
# is ready, several groups together (`commit.commit_groups`): a commit costs six syncs and two writes of the whole
# fence, however many groups it has.
#
# Invariants: at most one commit at a time; one group's failure holds back no other; however it ends, no partial file
# of this attempt stays, and no thread runs on. Memory: `threads` times that of one rewrite (`kernel`).

THREADS: Final = 4
"""More than cores: at any moment most of them wait for the disk."""
COMMIT_GROUPS: Final = 8
COMMIT_SECONDS: Final = 1.0
"""So many groups are committed together, or as many as are ready when the first of them has waited so long: what waits
is lost with the process, and takes space beside its sources.
"""

Sources = tuple[str, ...]


def compact_groups(
    directory: Path,
    *,
    groups: Sequence[Sources],
    check: GroupCheck,
    live: LiveSet,
    limits: SegmentLimits,
    job: str,
    token: int,
    holder: str,
    ownership: Ownership = Ownership.DETECT,
    threads: int = THREADS,
    bytes_per_second: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[GroupOutcome, ...]:
    """Rewrite and commit `groups` (of a plan over one reading of the log, `check`), each exactly once per job.

    `bytes_per_second`: what all threads together may read and write, reading back included.

    In the order of `groups`: a receipt, or the error that kept this group from being committed, its own (as of
    `kernel.rewrite_group`) or that of the commit it was to be part of (as of `commit.commit_groups`).

    Raises:
        RewriteStoppedError: `should_stop` said so; what was committed has its receipt in the fence.
    """
    ended = threading.Event()
    pace = Pace(
        should_stop=lambda: ended.is_set() or should_stop(),
        bytes_per_second=bytes_per_second,
        what=f"{directory}: the compaction",
    )
    attempt = _Attempt(directory, check, live, limits, job, token, holder, ownership, pace, ended)
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="rewrite") as pool:
            try:
                attempt.run(pool, groups)
            finally:
                ended.set()
    finally:
        for sources in groups:
            with suppress(OSError):
                fs.unlink_if_present(directory / partial_name(group_key(sources), job=job, token=token))
    return tuple(attempt.outcomes[sources] for sources in groups)


@dataclass(slots=True)
class _Attempt:
    directory: Path
    check: GroupCheck
    live: LiveSet
    limits: SegmentLimits
    job: str
    token: int
    holder: str
    ownership: Ownership
    pace: Pace
    """Of all threads."""
    ended: threading.Event
    own: threading.local = field(default_factory=threading.local)
    """Of each thread: its buffers."""
    outcomes: dict[Sources, GroupOutcome] = field(default_factory=dict)

    def run(self, pool: ThreadPoolExecutor, groups: Sequence[Sources]) -> None:
        running = {pool.submit(self._rewrite, sources): sources for sources in groups}
        ready: list[RewrittenGroup] = []
        due = 0.0
        while running:
            done, _ = wait(
                running, return_when=FIRST_COMPLETED, timeout=max(0.0, due - time.monotonic()) if ready else None
            )
            if not ready:
                due = time.monotonic() + COMMIT_SECONDS
            ready += self._sort_out(done, running)
            if ready and (len(ready) >= COMMIT_GROUPS or not running or time.monotonic() >= due):
                with _kept_open(self.directory, ready, pool):
                    self._commit(ready)
                ready = []

    def _rewrite(self, sources: Sources) -> RewrittenGroup:
        if self.ended.is_set():
            raise RewriteStoppedError(f"{self.directory}: the compaction was asked to stop")
        return rewrite_group(
            self.directory,
            sources=sources,
            live=self.live,
            limits=self.limits,
            job=self.job,
            token=self.token,
            ranges=self.check.ranges(sources),
            known=self.check.segments,
            pace=self.pace,
            buffers=self._buffers(),
        )

    def _buffers(self) -> Buffers:
        if not hasattr(self.own, "buffers"):
            self.own.buffers = Buffers()
        buffers: Buffers = self.own.buffers
        return buffers

    def _sort_out(
        self, done: set[Future[RewrittenGroup]], running: dict[Future[RewrittenGroup], Sources]
    ) -> list[RewrittenGroup]:
        ready = []
        for future in done:
            sources = running.pop(future)
            try:
                ready.append(future.result())
            except SegmentLogError as error:
                self.outcomes[sources] = error
        return ready

    def _commit(self, ready: list[RewrittenGroup]) -> None:
        try:
            outcomes = commit.commit_groups(
                self.directory,
                job=self.job,
                token=self.token,
                groups=ready,
                holder=self.holder,
                ownership=self.ownership,
            )
        except SegmentLogError as error:
            # An error of the whole call is the outcome of each of its groups.
            outcomes = (error,) * len(ready)
        self.outcomes.update((group.sources, outcome) for group, outcome in zip(ready, outcomes, strict=True))


@contextmanager
def _kept_open(directory: Path, groups: list[RewrittenGroup], pool: ThreadPoolExecutor) -> Iterator[None]:
    """Sources stay open while they are replaced, and are closed by the pool.

    The last one to let go of a replaced file frees its blocks: half a millisecond and more, which no caller should wait
    for under the log's lock.
    """
    opened = []
    for name in (name for group in groups for name in (*group.sources, *group.carried)):
        with suppress(OSError):
            opened.append(os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    try:
        yield
    finally:
        for fd in opened:
            pool.submit(os.close, fd)


# The whole compaction of one log in one process: recover, plan, rewrite, verify, commit, mark what is dead.
#
# The same steps as a worker takes for a job, under a claim of its own: so it excludes, and is excluded by, workers
# and other runs like any other attempt.


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """The request to compact a log. `holder` signs locks and the claim, and begins the job's name.

    `snapshot_index`, `live`: win over the log's own snapshot. `rewriting` False: dead segments are marked only;
    `marking` False: groups are rewritten only. `bytes_per_second`: what the rewrites of its groups may read and write
    together. `wal_directory`: where the write-ahead log lies; None for beside the log.
    """

    holder: str
    limits: SegmentLimits
    snapshot_index: int | None = None
    live: LiveSet | None = None
    indexes_missing: IndexesMissing = IndexesMissing.REFUSE
    wal_directory: Path | None = None
    ownership: Ownership = Ownership.DETECT
    rewriting: bool = True
    marking: bool = True
    bytes_per_second: int | None = None
    timeout: float = lock.DEFAULT_TIMEOUT


@dataclass(frozen=True, slots=True)
class LogCompaction:
    """The result of a compaction: the groups it committed, the segments it marked.

    `failures`: of groups that it did not commit, of damaged segments, and that live entries are missing.
    """

    job: str
    recovered: recovery.RecoveryReport
    receipts: tuple[GroupReceipt, ...] = ()
    failures: tuple[SegmentLogError, ...] = ()
    marked: tuple[SegmentTombstone, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedLog:
    """A log at one reading, what is live in it, and the plan."""

    log: LogState
    live: LiveSet
    plan: LogPlan


def plan_now(directory: Path, request: CompactionRequest) -> PlannedLog:
    """The plan of the log as it is now. Errors as `open_log`, LiveSetUnknownError."""
    with storage_errors(directory):
        log = open_log(
            directory, snapshot_index=request.snapshot_index, live=request.live, wal_directory=request.wal_directory
        )
    awaiting = frozenset(tombstone.name for tombstone in fence.read(directory).tombstones)
    plan = plan_log(log, request.limits, awaiting_deletion=awaiting, indexes_missing=request.indexes_missing)
    return PlannedLog(log, known_live(log, request.indexes_missing), plan)


def compact_log(
    directory: Path, request: CompactionRequest, *, should_stop: Callable[[], bool] = lambda: False
) -> LogCompaction:
    """Compact the log as it is now. One group's error keeps no other from being committed.

    Raises:
        OwnerRunningError: the log's owner is not known to be stopped, or to follow compactions.
        RecoveryBlockedError: what a crash left cannot be settled without a user's decision.
        LiveSetUnknownError, CorruptSegmentError, ...: the log as a whole cannot be read.
        RewriteStoppedError: `should_stop` said so; what was committed stays, with its receipt in the fence.
        SourcesChangedError: a segment that was to be marked was replaced since the plan.
    """
    require_stopped(directory, request.ownership)
    recovered = recovery.recover(directory, holder=request.holder, ownership=request.ownership, timeout=request.timeout)
    recovered.require_settled(directory)
    planned = plan_now(directory, request)
    job = f"{request.holder}-{secrets.token_hex(5)}"
    token = fence.claim_next(directory, job=job, holder=request.holder, timeout=request.timeout)
    try:
        done = _rewrite(directory, request, planned, job=job, token=token, should_stop=should_stop)
        receipts = tuple(outcome for outcome in done if isinstance(outcome, GroupReceipt))
        missing = [planned.log.entries_missing()] if planned.log.missing else []
        failed = [outcome for outcome in done if isinstance(outcome, SegmentLogError)]
        failures = (*missing, *damage_of(planned.log), *failed)
        marked = _mark(directory, request, planned, job=job, token=token)
    finally:
        fence.retire(directory, job, timeout=request.timeout)
    return LogCompaction(job, recovered, receipts, failures, marked)


def _rewrite(
    directory: Path,
    request: CompactionRequest,
    planned: PlannedLog,
    *,
    job: str,
    token: int,
    should_stop: Callable[[], bool],
) -> tuple[commit.GroupOutcome, ...]:
    if not request.rewriting or not planned.plan.groups:
        return ()
    return compact_groups(
        directory,
        groups=[group.sources for group in planned.plan.groups],
        check=GroupCheck(planned.log, planned.live),
        live=planned.live,
        limits=request.limits,
        job=job,
        token=token,
        holder=request.holder,
        ownership=request.ownership,
        bytes_per_second=request.bytes_per_second,
        should_stop=should_stop,
    )


def _mark(
    directory: Path, request: CompactionRequest, planned: PlannedLog, *, job: str, token: int
) -> tuple[SegmentTombstone, ...]:
    """Dead segments that no group carries along, or all of them when no group is rewritten."""
    names = {segment.name for segment in planned.plan.unreferenced}
    if not request.rewriting:
        names.update(name for group in planned.plan.groups for name in group.carried)
    if not request.marking or not names:
        return ()
    return commit.commit_unreferenced(
        directory,
        job=job,
        token=token,
        names=names,
        holder=request.holder,
        snapshot_index=request.snapshot_index,
        live=request.live,
        indexes_missing=request.indexes_missing,
        wal_directory=request.wal_directory,
        ownership=request.ownership,
        timeout=request.timeout,
    )
