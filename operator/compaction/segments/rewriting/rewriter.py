"""Runs SegmentRewrite jobs: groups of one log that become one segment each, or sparse live entries at its head."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from compaction.api.base import timestamp_from_epoch
from compaction.api.enums import JobReason
from compaction.api.job.job import ClumpReceipt as JobClumpReceipt
from compaction.api.job.job import JobReceipt
from compaction.api.job.job_status import JobReport
from compaction.api.policy.segment_logs import MAX_GROUPS_PER_JOB
from compaction.errors import CompactionError
from compaction.segments.clump.clump_commit import ClumpTask, CopiedClump, commit_clumps, copy_clumps
from compaction.segments.clump.clump_plan import ClumpOptions, ClumpPlan
from compaction.segments.clump.clump_run import PreparedClump, prepare_clump, receipts_of
from compaction.segments.clump.moves import MoveReceipt
from compaction.segments.commit import fence
from compaction.segments.commit.records import GroupReceipt, RewrittenGroup, SegmentTombstone
from compaction.segments.directory import fs
from compaction.segments.directory.fs import storage_error
from compaction.segments.directory.lock import DEFAULT_TIMEOUT
from compaction.segments.errors import SegmentLogError, SourcesChangedError
from compaction.segments.format.names import group_key, job_key, parse_partial, partial_name
from compaction.segments.planning.plan import GroupRanges
from compaction.segments.reasons import SegmentReason
from compaction.segments.rewriting.report import (
    SegmentJob,
    SegmentLogAttempt,
    as_count,
    combine,
    fold,
    identities_of,
    report_of,
)
from compaction.segments.rewriting.task import GroupFailure, GroupResult, GroupTask, failure_of, pace_of, run_group
from compaction.segments.scan.sense import SenseSettings
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import PreparedJob, SegmentLogStore
from compaction.storage.secrets import Secrets
from compaction.worker.ports import Assignment, Engine, HeldLease, JobProgress, JobRunner
from compaction.worker.tasks import Shares, run_tasks

# Runs one SegmentRewrite job with a clump request: sparse live entries re-written at the head of one log.
#
# Order: settle what a crash left; check that the log may be appended to from outside; plan; copy everything as one
# task; commit in order, under the log's lock and with this attempt's token. What an earlier attempt committed counts
# against the job's bytes and stands in the receipt.
#
# Invariants: nothing is committed unless the lease is held at that moment and the store still expects this very
# token; however a run ends, no partial file of this attempt stays (unless the process dies: then the sweeper takes
# it).

log = structlog.get_logger(__name__)

ClumpCopies = tuple[CopiedClump, ...] | GroupFailure


def run_clump(task: ClumpTask) -> ClumpCopies:
    """Copy and verify inside a Spark task; the partial files stay for the driver to commit."""
    directory = Path(task.directory)
    try:
        pace = pace_of(directory, job=task.job, token=task.token, budget=task.budget, tell=task.moved)
        return copy_clumps(task, pace=pace)
    except CompactionError as error:
        return failure_of(error, ())
    except OSError as error:
        return failure_of(storage_error(error, directory), ())


@dataclass(slots=True, kw_only=True)
class ClumpAttempt(SegmentLogAttempt):
    """An attempt at re-writing live entries of one log at its head."""

    request: ClumpOptions
    receipts: list[MoveReceipt] = field(default_factory=list)
    plan: ClumpPlan | None = None

    def _work(self) -> None:
        self.lease.ensure_held()
        directory = self.store.directory(self.job.directory)
        fence.check_token(self.store.record(directory), directory, job=self.job.name, token=self.token)
        self.identities = identities_of(directory)
        prepared = prepare_clump(
            directory,
            request=self.request,
            limits=self.job.limits,
            owner_stopped=True,
            job=self.job.name,
            token=self.token,
            timeout=self.store.lock_timeout,
        )
        # With the commits of earlier attempts: the receipt of the job counts those too.
        self.receipts, self.plan = list(prepared.earlier), prepared.plan
        if prepared.plan.snapshot_index < self.job.snapshot_index:
            raise SourcesChangedError(
                f"{directory}: the job was made for snapshot {self.job.snapshot_index}, the newest one is "
                f"{prepared.plan.snapshot_index}"
            )
        if prepared.plan.rounds:
            progress = JobProgress(2 * prepared.plan.bytes, self.lease.set_progress)
            copies = self._copy(prepared, progress)
            if copies:
                self._commit(copies)
            progress.add(prepared.plan.bytes)

    def _copy(self, prepared: PreparedClump, progress: JobProgress) -> Sequence[CopiedClump]:
        """The outputs of the one task; a failure in it is noted, and there are none."""
        size = prepared.plan.bytes
        with Shares(self.engine.address, [size], progress.add) as shares:
            # Each byte is read, written and read back.
            task = replace(prepared.task, budget=self.budget, moved=shares.teller(0, 3 * size))
            with closing(run_tasks(run_clump, [task], engine=self.engine, lease=self.lease, tag=self.tag)) as running:
                result = next(result for arrived in running for _, result in arrived)
            shares.finish(0)
        if isinstance(result, GroupFailure):
            self.failures.append(result)
            return ()
        return result

    def _commit(self, copies: Sequence[CopiedClump]) -> None:
        self.lease.ensure_held()
        try:
            self.receipts += commit_clumps(
                self.job.directory,
                job=self.job.name,
                token=self.token,
                clumps=copies,
                holder=self.store.holder,
                timeout=self.store.lock_timeout,
                before_each=self.lease.ensure_held,
            )
        except SegmentLogError:
            # Some segments may be past their commit point.
            self.receipts = list(receipts_of(self.job.directory, self.job.name))
            raise
        for receipt in self.receipts:
            log.info("entries re-written", output=receipt.output, entries=receipt.entries, first=receipt.first)

    def _clean_up(self) -> None:
        """No other attempt has files of these names: they carry the attempt's token."""
        mine = job_key(self.job.name), self.token
        with suppress(OSError):
            for name in os.listdir(self.job.directory):
                partial = parse_partial(name)
                if partial is not None and (partial.job, partial.token) == mine:
                    fs.unlink_if_present(self.job.directory / name)

    def _report(self) -> JobReport:
        moved = sum(receipt.entries for receipt in self.receipts)
        done = f"{moved} live entries re-written at the head" if moved else "nothing is sparse enough to be re-written"
        return report_of(
            token=self.token,
            done=done,
            failures=self.failures,
            identities=self.identities,
            receipt=self._receipt(),
        )

    def _receipt(self) -> JobReceipt | None:
        """All that was committed for the job, by whichever attempt; without any, what was found."""
        if self.plan is None:
            return None
        fingerprint = fold(receipt.fingerprint for receipt in self.receipts) if self.receipts else ""
        first, last = (self.receipts[0], self.receipts[-1]) if self.receipts else (None, None)
        before = first.ranges_before if first else self.plan.ranges_before
        return JobReceipt(
            token=last.token if last else self.token,
            worker=last.holder if last else self.store.holder,
            outputs=tuple(receipt.output for receipt in self.receipts[:MAX_GROUPS_PER_JOB]),
            records=sum(receipt.entries for receipt in self.receipts),
            bytes_after=sum(receipt.output_bytes for receipt in self.receipts),
            fingerprint_before=fingerprint,
            fingerprint_after=fingerprint,
            seconds=round(sum(receipt.seconds for receipt in self.receipts), 3),
            committed_at=timestamp_from_epoch(last.committed_at) if last else None,
            clump=JobClumpReceipt(
                entries_moved=sum(receipt.entries for receipt in self.receipts),
                bytes_moved=sum(receipt.payload_bytes for receipt in self.receipts),
                ranges_before=before,
                ranges_after=last.ranges_after if last else before,
                first_index=as_count(first.first if first else None),
                last_index=as_count(last.last if last else None),
            ),
        )


# Runs one SegmentRewrite job: every group of one log from one plan, each committed as soon as it is ready.
#
# Order: settle what a crash left; read the log as it is now; skip the groups this job has committed before (the fence
# keeps their receipts); rewrite the others as independent tasks; commit what has arrived together, each group by
# itself, under the log's lock and with this attempt's token; mark the obsolete segments; put the receipts together.
#
# Invariants:
#
# * Nothing is committed unless the lease is held at that moment and the store still expects this very token.
# * A damaged group never holds back the others; it is named, with file, index and offset.
# * However a run ends, no partial file of this attempt stays (unless the process dies: then the sweeper takes it).

_END_THE_JOB = frozenset(
    {JobReason.STALE_TOKEN, SegmentReason.STORE_LOCKED, SegmentReason.OWNER_RUNNING, JobReason.STORE_UNREADABLE}
)
"""Failures that every other group would meet as well."""


class SegmentRewriter:
    """Implements `ports.JobRunner` for segment logs.

    Args:
        engine: runs the rewriting tasks.
        holder: name of this worker, as it appears in receipts and in the log's lock.
        lock_timeout: seconds to wait for a log's lock.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        holder: str,
        lock_timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._engine = engine
        self._lock_timeout = lock_timeout
        self._holder = holder

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """See `ports.JobRunner`. InvalidAssignmentError when the spec makes no sense."""
        job = SegmentJob.of(assignment.spec, name=assignment.job_name)
        store = SegmentLogStore(
            job.directory,
            SenseSettings(limits=job.limits, indexes_missing=job.indexes_missing, ownership=job.ownership),
            holder=self._holder,
            lock_timeout=self._lock_timeout,
        )
        if job.clump is not None:
            return ClumpAttempt(
                job=job,
                request=job.clump,
                token=assignment.token,
                store=store,
                lease=lease,
                engine=self._engine,
            ).run()
        attempt = SegmentAttempt(
            job=job,
            token=assignment.token,
            store=store,
            lease=lease,
            engine=self._engine,
        )
        return attempt.run()


def open_rewriter(engine: Engine, *, holder: str, secrets: Secrets) -> JobRunner:
    """See `ports.OpenRewriter`. Segment logs need no Secrets."""
    return SegmentRewriter(engine, holder=holder)


@dataclass(slots=True, kw_only=True)
class SegmentAttempt(SegmentLogAttempt):
    """An attempt at the groups of one log."""

    committed: dict[str, GroupReceipt] = field(default_factory=dict)
    obsolete: tuple[SegmentTombstone, ...] = ()

    def _work(self) -> None:
        self.lease.ensure_held()
        directory = self.store.directory(self.job.directory)
        self.identities = identities_of(directory)
        report = self.store.recover(directory)
        if report.changed:
            self.identities = identities_of(directory)
            log.warning("settled what was left half-done", finished=report.finished, discarded=report.discarded)
        fence.check_token(self.store.record(directory), directory, job=self.job.name, token=self.token)
        self.committed = {receipt.group: receipt for receipt in self.store.receipts(directory, self.job.name)}
        if self.committed:
            log.info("groups committed by an earlier attempt are skipped", groups=len(self.committed))
        todo = [sources for sources in self.job.groups if group_key(sources) not in self.committed]
        progress = JobProgress(sum(map(self._size, todo)), self.lease.set_progress)
        if todo:
            prepared = self.store.prepare(
                directory, job=self.job.name, groups=todo, snapshot_index=self.job.snapshot_index
            )
            self._rewrite(self._tasks(prepared, progress), progress)
        if self.job.obsolete and not self._must_end:
            self._drop_obsolete()

    def _size(self, sources: tuple[str, ...]) -> int:
        """File sizes of a group's sources together; what is gone counts nothing."""
        total = 0
        for name in sources:
            with suppress(OSError):
                total += (self.job.directory / name).lstat().st_size
        return total

    def _tasks(self, prepared: PreparedJob, progress: JobProgress) -> list[tuple[int, GroupTask]]:
        """(bytes of the sources, task) for every group that may still be rewritten; the others fail here."""
        tasks: list[tuple[int, GroupTask]] = []
        for group in prepared.groups:
            size = self._size(group.sources)
            if group.error is not None:
                self._settle([failure_of(group.error, group.sources)])
                progress.add(size)
            elif group.ranges is not None:
                tasks.append((size, self._task(group.sources, group.ranges, prepared.live)))
        return tasks

    def _task(self, sources: tuple[str, ...], ranges: GroupRanges, live: LiveSet) -> GroupTask:
        spans = [span for span in ranges.spans if span is not None]
        return GroupTask(
            directory=str(self.job.directory),
            job=self.job.name,
            token=self.token,
            sources=sources,
            ranges=ranges,
            live=live.clip(spans[0][0], spans[-1][1]) if spans else LiveSet.empty(),
            limits=self.job.limits,
        )

    def _rewrite(self, tasks: Sequence[tuple[int, GroupTask]], progress: JobProgress) -> None:
        """Run the tasks, a few at a time, and commit what has arrived whenever something has."""
        if self._must_end:
            return
        total = sum(size for size, _ in tasks)
        # Each byte that is copied is read, written and read back; how much of them is live, the plan has estimated.
        moves = 3 * min(total, self.job.estimated_bytes or total) / max(1, total)
        with Shares(self.engine.address, [size for size, _ in tasks], progress.add) as shares:
            work = [
                replace(task, budget=self.budget, tell=shares.teller(number, int(size * moves)))
                for number, (size, task) in enumerate(tasks)
            ]
            with closing(run_tasks(run_group, work, engine=self.engine, lease=self.lease, tag=self.tag)) as running:
                for arrived in running:
                    self._settle([result for _, result in arrived])
                    for number, _ in arrived:
                        shares.finish(number)
                    if self._must_end:
                        break

    def _settle(self, results: Sequence[GroupResult]) -> None:
        """Commit the rewritten groups among what has arrived, together, and note why there is none of the others."""
        ready = [result for result in results if isinstance(result, RewrittenGroup)]
        failures = [result for result in results if isinstance(result, GroupFailure)]
        if ready:
            failures += self._commit(ready)
        self.failures += failures
        for failure in failures:
            log.warning("group not compacted", sources=failure.sources, reason=failure.reason, error=failure.message)

    def _commit(self, groups: Sequence[RewrittenGroup]) -> list[GroupFailure]:
        """Commit groups together; the failures of those that were not."""
        self.lease.ensure_held()
        try:
            outcomes = self.store.commit_all(self.job.directory, job=self.job.name, token=self.token, groups=groups)
        except SegmentLogError as error:
            # The call was refused as a whole, for example for its token: each group failed for that reason.
            return [failure_of(error, group.sources) for group in groups]
        failures = []
        for group, outcome in zip(groups, outcomes, strict=True):
            if isinstance(outcome, SegmentLogError):
                failures.append(failure_of(outcome, group.sources))
                continue
            self.committed[outcome.group] = outcome
            log.info("group committed", group=outcome.group, entries=outcome.entries, reclaimed=outcome.bytes_reclaimed)
        return failures

    def _drop_obsolete(self) -> None:
        self.lease.ensure_held()
        try:
            self.obsolete = self.store.commit_unreferenced(
                self.job.directory,
                job=self.job.name,
                token=self.token,
                names=self.job.obsolete,
            )
        except SegmentLogError as error:
            # The groups of the job stay committed: this is one more failure beside them.
            self.failures.append(failure_of(error, self.job.obsolete))

    @property
    def _must_end(self) -> bool:
        return any(failure.reason in _END_THE_JOB for failure in self.failures)

    def _clean_up(self) -> None:
        """No other attempt has files of these names: they carry the attempt's token."""
        for key in map(group_key, self.job.groups):
            with suppress(OSError):
                fs.unlink_if_present(self.job.directory / partial_name(key, job=self.job.name, token=self.token))

    def _report(self) -> JobReport:
        receipt = combine(groups=self.job.groups, committed=self.committed, obsolete=self.obsolete)
        done = f"{len(self.committed)} groups compacted, {len(self.obsolete)} segments marked for deletion"
        return report_of(
            token=self.token, done=done, failures=self.failures, identities=self.identities, receipt=receipt
        )
