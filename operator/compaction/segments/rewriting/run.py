"""The whole compaction of one log in one process: recover, plan, rewrite, verify, commit, mark what is dead.

The same steps as a worker takes for a job, under a claim of its own: so it excludes, and is excluded by, workers and
other runs like any other attempt.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.commit.records import GroupReceipt, SegmentTombstone
from compaction.segments.directory import lock
from compaction.segments.directory.faults import storage_errors
from compaction.segments.directory.owner import require_stopped
from compaction.segments.errors import SegmentLogError
from compaction.segments.planning.group_check import GroupCheck
from compaction.segments.planning.limits import IndexesMissing, SegmentLimits
from compaction.segments.planning.plan import LogPlan, plan_log
from compaction.segments.planning.unreferenced import damage_of, known_live
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.rewriting.compact import compact_groups
from compaction.segments.snapshot.seq import LiveSet


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """What to do to a log. `holder` signs locks and the claim, and begins the job's name.

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
    """What a compaction did: the groups it committed, the segments it marked. `failures`: of groups that it did not
    commit, of damaged segments, and that live entries are missing.
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
