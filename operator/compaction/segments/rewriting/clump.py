"""Runs one SegmentRewrite job with a clump request: sparse live entries re-written at the head of one log.

Order: settle what a crash left; check that the log may be appended to from outside; plan; copy everything as one task;
commit in order, under the log's lock and with this attempt's token. What an earlier attempt committed counts
against the job's bytes and stands in the receipt.

Invariants: nothing is committed unless the lease is held at that moment and the store still expects this very token;
however a run ends, no partial file of this attempt stays (unless the process dies: then the sweeper takes it).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from compaction.api.job.report import JobReport
from compaction.api.job.resource import ClumpReceipt as JobClumpReceipt
from compaction.api.job.resource import JobReceipt
from compaction.api.policy.segment_logs import MAX_GROUPS_PER_JOB
from compaction.api.text.times import timestamp_from_epoch
from compaction.errors import CompactionError
from compaction.segments.clump.commit import commit_clumps
from compaction.segments.clump.copy import ClumpTask, CopiedClump, copy_clumps
from compaction.segments.clump.moves import MoveReceipt
from compaction.segments.clump.plan import ClumpOptions, ClumpPlan
from compaction.segments.clump.run import PreparedClump, prepare_clump, receipts_of
from compaction.segments.commit import fence
from compaction.segments.directory import fs
from compaction.segments.directory.faults import storage_error
from compaction.segments.errors import SegmentLogError, SourcesChangedError
from compaction.segments.format.names import job_key, parse_partial
from compaction.segments.rewriting.attempt import SegmentLogAttempt
from compaction.segments.rewriting.receipt import fold
from compaction.segments.rewriting.report import as_count, identities_of, report_of
from compaction.segments.rewriting.task import GroupFailure, failure_of, pace_of
from compaction.worker.progress import Progress
from compaction.worker.shares import Shares
from compaction.worker.tasks import run_tasks

log = structlog.get_logger(__name__)

ClumpCopies = tuple[CopiedClump, ...] | GroupFailure


def run_clump(task: ClumpTask) -> ClumpCopies:
    """What runs inside a Spark task: copy and verify; the partial files stay for the driver to commit."""
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
        self.receipts, self.plan = list(prepared.earlier), prepared.plan
        if prepared.plan.snapshot_index < self.job.snapshot_index:
            raise SourcesChangedError(
                f"{directory}: the job was made for snapshot {self.job.snapshot_index}, the newest one is "
                f"{prepared.plan.snapshot_index}"
            )
        if prepared.plan.rounds:
            progress = Progress(2 * prepared.plan.bytes, self.lease.set_progress)
            copies = self._copy(prepared, progress)
            if copies:
                self._commit(copies)
            progress.add(prepared.plan.bytes)

    def _copy(self, prepared: PreparedClump, progress: Progress) -> Sequence[CopiedClump]:
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
