"""Runs one MetarangeRewrite job on a branch of a live lakeFS: its sealed tokens are merged into one.

The driver merges: rows pass through the key-value store, and Spark has no part in it. Order: look for the receipt of an
earlier attempt; check the claim; wait for late writes; write and prove the merged token; swap with this attempt's token
(docs/design/staging.md#live-lakefs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import structlog

from compaction.api.job.resource import JobReceipt, MeasureChange
from compaction.api.policy.staging_area import LakeFsMergeSpec
from compaction.api.text.times import timestamp_from_epoch
from compaction.staging.damage import identity_of
from compaction.staging.errors import WorkOutdatedError
from compaction.staging.lakefs.claims import MergeWarrant, read_claim, record_of
from compaction.staging.lakefs.merging import MergeEnd, MergeOutcome, merge_branch
from compaction.staging.lakefs.repository import LiveRepository
from compaction.staging.lakefs.settings import MergeSettings, MergeStep
from compaction.staging.measures import SEALED_TOKENS, STAGED_WRITES
from compaction.staging.reasons import StagingReason
from compaction.staging.rewriting.branch_attempt import BranchAttempt
from compaction.staging.rewriting.report import RewriteFailure, receipt_from
from compaction.worker.tasks import LOOK_SECONDS

log = structlog.get_logger(__name__)

_LEAST_LEASE: Final = 300.0
_PROGRESS: Final = {MergeStep.WAITING: 5, MergeStep.WRITING: 20, MergeStep.PROVING: 70, MergeStep.SWAPPING: 95}
"""Percent at which each step begins."""


def settings_of(lakefs: LakeFsMergeSpec) -> MergeSettings:
    """How and when tokens are merged, by what a job says."""
    quiet = float(lakefs.quiet)
    return MergeSettings(
        quiet=quiet,
        yields=float(lakefs.idle),
        grace=float(lakefs.grace),
        seals=lakefs.seal_staging,
        lease=max(_LEAST_LEASE, 3 * quiet),
    )


@dataclass(slots=True, kw_only=True)
class TokenMergeAttempt(BranchAttempt):
    """An attempt at a branch of a live lakeFS."""

    lakefs: LakeFsMergeSpec
    live: LiveRepository
    began: float = 0.0

    def _work(self) -> None:
        self.began = self.monotonic()
        self.lease.ensure_held()
        work = self.job.work
        claim, _ = read_claim(self.live, work.branch)
        if claim.compacted_job == self.job.name and claim.compacted_token <= self.token:
            self.receipt = receipt_from(claim.receipt, work, token=claim.compacted_token)
            return
        warrant = MergeWarrant(self.job.name, self.token, work.tokens)
        warrant.ensure(self.live, work.branch)
        settings = replace(settings_of(self.lakefs), stop=self.lease.should_stop, progress=self._show)
        live = replace(self.live, sleep=self._sleep)
        outcome = merge_branch(live, work.branch, settings, warrant=warrant, receipt=self._kept)
        if outcome.end is MergeEnd.MERGED:
            self.receipt = self._receipt(outcome)
            log.info("sealed tokens merged", branch=work.branch, tokens=len(outcome.tokens), rows=outcome.rows_after)
            return
        self.lease.ensure_held()
        warrant.ensure(self.live, work.branch)
        if not work.is_of(record_of(self.live.branch(work.branch))):
            raise WorkOutdatedError(f"{work.repository}/{work.branch}")
        self.failure = RewriteFailure(StagingReason.BRANCH_ACTIVE, f"{work.branch}: {outcome.reason}", passing=True)

    def _kept(self, outcome: MergeOutcome) -> str:
        """What the swap keeps. The lease is held at that moment."""
        self.lease.ensure_held()
        return self._receipt(outcome).model_dump_json(by_alias=True, exclude_defaults=True)

    def _receipt(self, outcome: MergeOutcome) -> JobReceipt:
        return JobReceipt(
            token=self.token,
            worker=self.worker,
            groups=1,
            groups_committed=1,
            sources=outcome.tokens,
            outputs=(outcome.fresh,),
            records=outcome.rows_after,
            bytes_before=outcome.bytes_before,
            bytes_after=outcome.bytes_after,
            bytes_reclaimed=max(0, outcome.bytes_before - outcome.bytes_after),
            fingerprint_before=outcome.view,
            fingerprint_after=outcome.view,
            measures=(
                MeasureChange(name=SEALED_TOKENS, before=len(outcome.tokens), after=1),
                MeasureChange(name=STAGED_WRITES, before=outcome.rows_before, after=outcome.rows_after),
            ),
            seconds=round(self.monotonic() - self.began, 3),
            committed_at=timestamp_from_epoch(self.live.clock()),
        )

    def _show(self, step: MergeStep, _rows: int) -> None:
        self.lease.set_progress(_PROGRESS[step])

    def _sleep(self, seconds: float) -> None:
        """The quiet period; it ends early when the attempt has to."""
        ends = self.monotonic() + seconds
        while not self.lease.should_stop() and (left := ends - self.monotonic()) > 0:
            self.live.sleep(min(LOOK_SECONDS, left))

    def _read_identity(self, source: str) -> str:
        record = record_of(self.live.branch(self.job.work.branch))
        return identity_of(self.live.kv, self.live.ranges, record, source)

    def _clean_up(self) -> None:
        """Nothing: a merge that does not end discards what it wrote, and the sweep what a crash leaves behind."""
