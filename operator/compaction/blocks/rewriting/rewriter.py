"""Runs BlockRewrite jobs: opens the store of a job, merges its blocks, commits the outputs in one change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import ClassVar, Final

import structlog

from compaction.api.enums import JobReason
from compaction.api.job.job_status import JobReport
from compaction.blocks.connecting import connection_of
from compaction.blocks.errors import BlockStoreError, ReplaceRefusedError, UnsuitableBlockError
from compaction.blocks.format.logical import schema_id
from compaction.blocks.index.claims import ClaimedJob, IndexRefusal, held_claim
from compaction.blocks.index.queued import Fault
from compaction.blocks.index.registering import BlockReplacement
from compaction.blocks.index.tables import IndexJobState
from compaction.blocks.index.tombstones import condemn, confirm_gone
from compaction.blocks.model import Block, RowFingerprint, parse_block_path
from compaction.blocks.rewriting.merging import BlockMerge, order_in_words
from compaction.blocks.rewriting.report import (
    BlockJob,
    Proof,
    failed,
    left_out,
    proof_of,
    receipt_of,
    skipped_source,
    succeeded,
)
from compaction.blocks.rewriting.retrying import MergedSources, RewriteRounds
from compaction.blocks.rewriting.task import MergedPart, MergeFailure, failure_of
from compaction.blocks.schema.classes import schema_text
from compaction.blocks.store import BlockStore
from compaction.errors import CompactionError, StaleTokenError
from compaction.storage.database import DEFAULT_PATIENCE
from compaction.storage.errors import DatabaseUnavailableError, StorageError
from compaction.storage.opened import explaining
from compaction.storage.secrets import Secrets
from compaction.worker.attempt import RewriteAttempt, Rewriter
from compaction.worker.ports import Assignment, Engine, HeldLease, JobRunner
from compaction.worker.tasks import LOOK_SECONDS, ObjectsPlace, objects_place

# The outputs of a merge: as blocks for the index, and gone when nothing refers to them.

log = structlog.get_logger(__name__)


def blocks_of(store: BlockStore, work: BlockMerge, parts: Sequence[MergedPart]) -> tuple[Block, ...]:
    """The outputs as they are registered: described by their own footers, as anybody would who finds them.

    Raises BlockFormatError, ObjectError.
    """
    return tuple(_block(store, work, part) for part in parts if part.bytes)


def _block(store: BlockStore, work: BlockMerge, part: MergedPart) -> Block:
    said, place = work.said, parse_block_path(part.output)
    assert said.level is not None
    assert place is not None
    try:
        return store.describe(
            part.output, tenant=place.tenant, shard=place.shard, level=said.level, time_column=said.time_column or ""
        )
    except UnsuitableBlockError:
        if said.time_column is not None:
            raise
    # Which column is the time was told when the sources were registered, and is not known to anybody now.
    return Block(
        id=place.id,
        tenant=place.tenant,
        shard=place.shard,
        level=said.level,
        path=part.output,
        min_time=min(source.min_time for source in work.sources),
        max_time=max(source.max_time for source in work.sources),
        rows=part.result.written.rows,
        bytes=part.bytes,
        fingerprint=part.result.written,
        sort_key=work.settings.sort_key,
        schema_id=schema_id(part.result.schema),
        schema=schema_text(part.result.schema),
    )


def discard(store: BlockStore, paths: Iterable[str]) -> None:
    """Delete uploads of an attempt, those that it has committed after all (its answer was lost) excepted.

    The index decides: what it condemns is no block and never will be, so a commit on its way is refused. No other
    attempt has objects of these names: their names derive from the attempt. What does not succeed is left to the orphan
    collector.
    """
    wanted = sorted(set(paths))
    if not wanted:
        return
    try:
        doomed = condemn(store.index, wanted, now=store.now())
        failed = dict(store.objects.delete(doomed))
        confirm_gone(store.index, [path for path in doomed if path not in failed], now=store.now())
    except (BlockStoreError, StorageError) as error:
        # The attempt has its result already, and a failed clean-up must not replace it.
        log.warning("outputs that were not committed stay until orphans are collected", error=str(error), paths=wanted)


# Runs one BlockRewrite job: its blocks become one of the next level (or a few), in one commit of the index.
#
# Order: read the claim; read the sources, merge what is sound and prove it (`block_rounds`); commit with this
# attempt's token. A source that cannot be merged is quarantined by the commit, and the others go on without it.
#
# Invariants:
#
# * Nothing is committed unless the lease is held at that moment and the index still expects this very token.
# * A commit whose answer is lost is repeated until it is known; a second one changes nothing.
# * However a run ends, no upload of this attempt stays that no block refers to (unless the process dies or nothing
#   can be reached: then orphans are collected), except as the evidence of a proof that failed.
# * Without a sound source nothing is quarantined: that is more likely the store's fault than that of all its blocks.

COMMIT_PATIENCE: Final = 600.0
"""Seconds for which a commit is repeated while the database is away: to merge once more would cost more."""
_REASONS: Final = {
    IndexRefusal.JOB_COMMITTED: JobReason.STALE_TOKEN,  # by another attempt, or the receipt would have been there
    IndexRefusal.CONTENT_DIFFERS: JobReason.VERIFICATION_FAILED,
    IndexRefusal.OUTPUT_CONDEMNED: JobReason.STORE_UNREADABLE,
    IndexRefusal.OUTPUT_MISPLACED: JobReason.INVALID_JOB,
    IndexRefusal.OUTPUT_KNOWN: JobReason.INVALID_JOB,
}
"""After any other refusal the job as it is can never be committed: it is planned again."""


@dataclass(slots=True, kw_only=True)
class BlockAttempt(RewriteAttempt):
    """An attempt at blocks. `place`: of the objects, for tasks. `monotonic`, `sleep`: seconds."""

    reported: ClassVar[tuple[type[CompactionError], ...]] = (BlockStoreError, StorageError, StaleTokenError)

    job: BlockJob
    store: BlockStore
    place: ObjectsPlace
    worker: str
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rounds: RewriteRounds = field(init=False)
    failures: list[MergeFailure] = field(default_factory=list)
    proof: Proof | None = None

    def __post_init__(self) -> None:
        self.rounds = RewriteRounds(
            job=self.job,
            attempt=self.tag,
            token=self.token,
            place=self.place,
            objects=self.store.objects,
            engine=self.engine,
            lease=self.lease,
        )

    @property
    def job_name(self) -> str:
        return self.job.name

    def _work(self) -> None:
        self.rounds.budget = self.budget  # there is one only while the attempt works
        self.lease.ensure_held()
        record = self.store.job(self.job.name)
        if record is not None and record.state is IndexJobState.COMMITTED and record.token <= self.token:
            # Committed before; what is missing is the report.
            self.proof = proof_of(record)
            return
        began = self.monotonic()
        claimed = held_claim(self.store.index, job=self.job.name, token=self.token)
        self._check(claimed)
        merged = self.rounds.run(claimed.sources)
        if merged is None:
            self.failures += self.rounds.failures
        else:
            self._commit(merged, seconds=self.monotonic() - began)

    def _check(self, claimed: ClaimedJob) -> None:
        """Check that the claimed blocks are those of the job. Raises ReplaceRefusedError."""
        ids = tuple(source.id for source in claimed.sources)
        places = {(source.tenant, source.shard) for source in claimed.sources}
        said = (self.job.blocks, {(self.job.tenant, self.job.shard)}, self.job.level)
        if (ids, places, claimed.output_level) != said:
            detail = "what was claimed for it are not the blocks that it names"
            raise ReplaceRefusedError(self.job.name, IndexRefusal.NOT_THE_SOURCES.value, detail)

    def _commit(self, merged: MergedSources, *, seconds: float) -> None:
        outputs = blocks_of(self.store, merged.work, merged.parts)
        culprits = self.rounds.culprits
        duplicates = [part.result.duplicates for part in merged.parts]
        dropped = reduce(add, (duplicate.fingerprint for duplicate in duplicates), RowFingerprint())
        receipt = receipt_of(
            token=self.token,
            worker=self.worker,
            sources=merged.work.sources,
            outputs=outputs,
            dropped=dropped,
            seconds=seconds,
            now=self.store.clock(),
        )
        skipped = tuple(skipped_source(block, culprits[block]) for block in sorted(culprits))
        order = order_in_words(merged.work.sources, merged.work.settings.sort_key, job=self.job)
        proof = Proof(receipt, skipped, left_out(duplicates), order)
        self._replace(
            BlockReplacement(
                job=self.job.name,
                token=self.token,
                sources=receipt.sources,
                outputs=outputs,
                receipt=proof.to_json(),
                skipped={block: Fault(item.fault.value, item.message) for block, item in culprits.items()},
                dropped=dropped,
            )
        )
        self.proof = proof
        # These are live blocks from now on: the clean-up of the attempt must not delete them.
        self.rounds.uploads.difference_update(block.path for block in outputs)
        log.info("blocks merged", sources=len(receipt.sources), outputs=receipt.outputs, skipped=sorted(culprits))

    def _replace(self, result: BlockReplacement) -> None:
        """Commit, again and again while it is not known whether it happened; the lease is held each time."""
        give_up_at = self.monotonic() + COMMIT_PATIENCE
        while True:
            self.lease.ensure_held()
            try:
                self.store.replace(result)
            except DatabaseUnavailableError as error:
                # The commit may have happened with its answer lost: the index recognizes one that is repeated.
                if self.monotonic() >= give_up_at:
                    raise
                log.warning("the commit is repeated", error=str(error))
                self.sleep(LOOK_SECONDS)
            else:
                return

    def _failed(self, error: CompactionError) -> None:
        match error:
            case StaleTokenError():
                failure = MergeFailure(self.job.name, JobReason.STALE_TOKEN, str(error))
            case ReplaceRefusedError():
                refusal = IndexRefusal(error.reason)
                reason = _REASONS.get(refusal, JobReason.SOURCES_CHANGED)
                passing = refusal is IndexRefusal.OUTPUT_CONDEMNED
                failure = MergeFailure(self.job.name, reason, str(error), passing=passing)
                if reason is JobReason.VERIFICATION_FAILED:
                    self.rounds.uploads.clear()  # the evidence
            case BlockStoreError() | StorageError():
                failure = failure_of(error, self.job.name)
            case _:
                raise error
        self.failures.append(failure)

    def _clean_up(self) -> None:
        # On success too: a merge that failed before may have left the parts that it finished.
        discard(self.store, self.rounds.uploads)

    def _report(self) -> JobReport:
        if self.proof is not None:
            return succeeded(self.proof, token=self.token)
        skipped = [skipped_source(block, self.rounds.culprits[block]) for block in sorted(self.rounds.culprits)]
        return failed(self.failures, skipped, token=self.token)


# The runner of BlockRewrite jobs: opens the store that a job names, and makes one attempt.


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BlockRewriter(Rewriter):
    """Implements `ports.JobRunner` for block stores. `clock`: seconds since 1970; `patience`: seconds for which a call
    of the index is repeated while the database is away.
    """

    clock: Callable[[], float] = time.time
    patience: float = DEFAULT_PATIENCE

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """See `ports.JobRunner`. InvalidAssignmentError when the spec makes no sense."""
        job = BlockJob.of(assignment.spec, name=assignment.job_name)
        return self.attempt(job, token=assignment.token, lease=lease)

    def attempt(self, job: BlockJob, *, token: int, lease: HeldLease) -> JobReport:
        """One attempt at a job. Raises as `ports.JobRunner`."""
        try:
            place = objects_place(job.store.url, job.store.credentials_secret_name, self.secrets, job.store.ca_bundle)
            connection = connection_of(job.store, self.secrets)
            with explaining(connection.address):
                store = BlockStore.open(connection, clock=self.clock, patience=self.patience)
        except (BlockStoreError, StorageError) as error:
            return failed([failure_of(error, job.name)], (), token=token)
        try:
            return BlockAttempt(
                job=job,
                token=token,
                store=store,
                place=place,
                worker=self.holder,
                lease=lease,
                engine=self.engine,
            ).run()
        finally:
            store.close()


def open_rewriter(engine: Engine, *, holder: str, secrets: Secrets) -> JobRunner:
    """See `ports.OpenRewriter`."""
    return BlockRewriter(engine, holder=holder, secrets=secrets)
