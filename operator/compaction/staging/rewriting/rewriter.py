"""Runs MetarangeRewrite jobs: tokens of a branch become part of its base, or one token in a live lakeFS."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import structlog

from compaction.api.base import timestamp_from_epoch
from compaction.api.job.job import JobReceipt, MeasureChange
from compaction.api.job.job_status import JobReport
from compaction.api.policy.staging_area import LakeFsMergeSpec
from compaction.errors import CompactionError, StaleTokenError
from compaction.staging.compaction import swap_base, unless_outdated
from compaction.staging.connecting import connection_of
from compaction.staging.damage import damaged_source, identity_of
from compaction.staging.errors import StagingStoreError, TooManyTriesError, WorkOutdatedError
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import receipt_of as kept_receipt_of
from compaction.staging.kind import SEALED_TOKENS, STAGED_WRITES
from compaction.staging.lakefs.control import MergeStep, MergeWarrant, TokenMergeSettings, read_claim, record_of
from compaction.staging.lakefs.merging import MergeEnd, TokenMergeOutcome, merge_branch
from compaction.staging.lakefs.repository import LiveRepository, open_live_repository
from compaction.staging.reasons import StagingReason
from compaction.staging.rewriting.report import (
    MetarangeJob,
    RewriteFailure,
    failed,
    receipt_from,
    receipt_of,
    succeeded,
)
from compaction.staging.rewriting.tree import TreeWriter, WrittenTree
from compaction.staging.store import StagingConnection, StagingStore
from compaction.storage.database import DEFAULT_PATIENCE
from compaction.storage.errors import DatabaseUnavailableError, StorageError
from compaction.storage.opened import explaining
from compaction.storage.secrets import Secrets
from compaction.worker.attempt import RewriteAttempt, Rewriter
from compaction.worker.ports import Assignment, Engine, HeldLease, JobRunner
from compaction.worker.tasks import LOOK_SECONDS, ObjectsPlace, objects_place

# The common steps of attempts at a branch, whether its tokens become part of a base or one token.


@dataclass(slots=True, kw_only=True)
class BranchAttempt(RewriteAttempt):
    """An attempt at a branch. `monotonic`: seconds."""

    reported: ClassVar[tuple[type[CompactionError], ...]] = (StagingStoreError, StorageError, StaleTokenError)

    job: MetarangeJob
    worker: str
    monotonic: Callable[[], float] = time.monotonic
    receipt: JobReceipt | None = None
    failure: RewriteFailure | None = None

    @property
    def job_name(self) -> str:
        return self.job.name

    @abstractmethod
    def _read_identity(self, source: str) -> str:
        """The identity of a damaged source now (`damage.identity_of`). Raises StagingStoreError, StorageError."""

    def _failed(self, error: CompactionError) -> None:
        source = damaged_source(error, self.job.work.tokens)
        identity = "" if source is None else self._identity(source.name)
        self.failure = RewriteFailure.of(error).because_of(source, identity)

    def _identity(self, source: str) -> str:
        """Of what was found damaged; a scan finds it where this attempt cannot."""
        try:
            return self._read_identity(source)
        except (StagingStoreError, StorageError):
            return ""

    def _report(self) -> JobReport:
        if self.receipt is not None:
            return succeeded(self.receipt, token=self.token)
        assert self.failure is not None, "an attempt without a receipt has failed"
        return failed(self.failure, token=self.token)


# Runs one MetarangeRewrite job: the tokens of a branch become part of its base, in one swap of its record.
#
# Order: look for the receipt of an earlier attempt; check the claim; write the tree and prove it, a part in each
# task; swap with this attempt's token (docs/design/staging-areas.md#compaction).
#
# Invariants:
#
# * Nothing is swapped unless the lease is held at that moment and the branch still expects this very token.
# * A swap whose answer is lost is repeated until it is known; a second one changes nothing.
# * What an attempt has written and does not commit is found by the sweep: a range is named by its content, so another
#   attempt may be about to use the very same object.

log = structlog.get_logger(__name__)

COMMIT_PATIENCE: Final = 600.0
"""Seconds for which a swap is repeated while the database is away: to write the tree once more would cost more."""


@dataclass(slots=True, kw_only=True)
class MetarangeAttempt(BranchAttempt):
    """An attempt at a branch. `place`: of its objects, for tasks. `sleep`: seconds."""

    area: Area
    place: ObjectsPlace
    sleep: Callable[[float], None] = time.sleep

    def _work(self) -> None:
        self.lease.ensure_held()
        if self._is_done():
            return
        began = self.monotonic()
        writer = TreeWriter(
            area=self.area,
            place=self.place,
            engine=self.engine,
            lease=self.lease,
            tag=self.tag,
            budget=self.budget,
        )
        work = self.job.work
        with unless_outdated(self.area, work):
            written = writer.write(work)
        seconds = self.monotonic() - began
        receipt = receipt_of(
            work, written, token=self.token, worker=self.worker, seconds=seconds, now=self.area.clock()
        )
        self._swap(written, receipt)
        self.receipt = receipt
        log.info("branch compacted", branch=work.branch, changes=written.changes, reused=written.reused)

    def _is_done(self) -> bool:
        """Return whether an earlier attempt has committed. Raises StaleTokenError, WorkOutdatedError: this one never
        can.
        """
        work = self.job.work
        record = self.area.branches.get(work.branch).record
        kept = kept_receipt_of(self.area, record, self.job.name)
        if kept is not None and record.compacted_token <= self.token:
            self.receipt = receipt_from(kept, work, token=record.compacted_token)
            return True
        target = f"{work.repository}/{work.branch}"
        if (record.claim_job, record.claim_token) != (self.job.name, self.token):
            claimed = record.claim_token if record.claim_job == self.job.name else None
            raise StaleTokenError(target, self.job.name, self.token, claimed)
        if not work.is_sealed_in(record):
            raise WorkOutdatedError(target)
        return False

    def _swap(self, written: WrittenTree, receipt: JobReceipt) -> None:
        """Commit, again and again while it is not known whether it happened; the lease is held each time."""
        text = receipt.model_dump_json(by_alias=True, exclude_defaults=True)
        give_up_at = self.monotonic() + COMMIT_PATIENCE
        while True:
            self.lease.ensure_held()
            try:
                swap_base(
                    self.area,
                    self.job.work,
                    written.tree,
                    job=self.job.name,
                    token=self.token,
                    receipt=text,
                    written=written.objects,
                )
            except (DatabaseUnavailableError, TooManyTriesError) as error:
                # The answer of a swap may be lost, or others changed the branch: repeating it is safe.
                if self.monotonic() >= give_up_at:
                    raise
                log.warning("the swap is repeated", error=str(error))
                self.sleep(LOOK_SECONDS)
            else:
                return

    def _read_identity(self, source: str) -> str:
        record = self.area.branches.get(self.job.work.branch).record
        return identity_of(self.area.kv, self.area.ranges, record, source)

    def _clean_up(self) -> None:
        """Nothing: see the module."""


# Runs one MetarangeRewrite job on a branch of a live lakeFS: its sealed tokens are merged into one.
#
# The driver merges: rows pass through the key-value store, and Spark has no part in it. Order: look for the receipt
# of an earlier attempt; check the claim; wait for late writes; write and prove the merged token; swap with this
# attempt's token (docs/design/staging.md#live-lakefs).

_LEAST_LEASE: Final = 300.0
_PROGRESS: Final = {MergeStep.WAITING: 5, MergeStep.WRITING: 20, MergeStep.PROVING: 70, MergeStep.SWAPPING: 95}
"""Percent at which each step begins."""


def settings_of(lakefs: LakeFsMergeSpec) -> TokenMergeSettings:
    """Return the settings of the merge of tokens, how and when, by what a job says."""
    quiet = float(lakefs.quiet)
    return TokenMergeSettings(
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

    def _kept(self, outcome: TokenMergeOutcome) -> str:
        """Return the receipt that the swap keeps. The lease is held at that moment."""
        self.lease.ensure_held()
        return self._receipt(outcome).model_dump_json(by_alias=True, exclude_defaults=True)

    def _receipt(self, outcome: TokenMergeOutcome) -> JobReceipt:
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


# The runner of MetarangeRewrite jobs: opens the repository that a job names, and makes one attempt.


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MetarangeRewriter(Rewriter):
    """Implements `ports.JobRunner` for staging areas. `clock`: seconds since 1970; `patience`: seconds for which a call
    of the key-value store is repeated while the database is away.
    """

    clock: Callable[[], float] = time.time
    patience: float = DEFAULT_PATIENCE

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """See `ports.JobRunner`. InvalidAssignmentError when the spec makes no sense."""
        job = MetarangeJob.of(assignment.spec, name=assignment.job_name)
        if job.lakefs is not None and job.lakefs.dry_run:
            message = f"job {job.name}: parameters.metarange.lakefs.dryRun is true, so nothing is merged"
            return failed(RewriteFailure(StagingReason.DRY_RUN, message), token=assignment.token)
        try:
            connection = connection_of(job.store, self.secrets)
            if job.lakefs is not None:
                return self._merge(job, job.lakefs, connection, assignment, lease)
            with closing(StagingStore.open(connection, clock=self.clock, patience=self.patience)) as store:
                return self._attempt(job, connection, store, assignment, lease)
        except (StagingStoreError, StorageError) as error:
            return failed(RewriteFailure.of(error), token=assignment.token)

    def _attempt(
        self,
        job: MetarangeJob,
        connection: StagingConnection,
        store: StagingStore,
        assignment: Assignment,
        lease: HeldLease,
    ) -> JobReport:
        with explaining(connection.address()):
            area = replace(store.area(job.work.repository), clock=self.clock)
        namespace = area.repository.namespace
        place = objects_place(namespace, job.store.credentials_secret_name, self.secrets, job.store.ca_bundle)
        return MetarangeAttempt(
            job=job,
            token=assignment.token,
            area=area,
            place=place,
            worker=self.holder,
            lease=lease,
            engine=self.engine,
        ).run()

    def _merge(
        self,
        job: MetarangeJob,
        lakefs: LakeFsMergeSpec,
        connection: StagingConnection,
        assignment: Assignment,
        lease: HeldLease,
    ) -> JobReport:
        with closing(connection.open_kv(patience=self.patience)) as kv:
            with explaining(connection.address()):
                live = open_live_repository(kv, job.work.repository, options=connection.options, clock=self.clock)
            return TokenMergeAttempt(
                job=job,
                lakefs=lakefs,
                live=live,
                token=assignment.token,
                worker=self.holder,
                lease=lease,
                engine=self.engine,
            ).run()


def open_rewriter(engine: Engine, *, holder: str, secrets: Secrets) -> JobRunner:
    """See `ports.OpenRewriter`."""
    return MetarangeRewriter(engine, holder=holder, secrets=secrets)
