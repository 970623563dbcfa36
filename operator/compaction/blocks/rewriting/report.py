"""BlockRewrite jobs in the words of the block library, the report of an attempt, and its proof in the index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final, Self

from compaction.api.base import timestamp_from_epoch
from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJobSpec, JobReceipt, SkippedSource
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.policy.block_store import BLOCK_REWRITE, BlockStoreReference
from compaction.api.text.printing import cut, printable
from compaction.blocks.index.claims import JobRecord
from compaction.blocks.merge.footers import MIN_MEMORY, Duplicates
from compaction.blocks.model import Block, RowFingerprint, format_merge
from compaction.blocks.reasons import BlockJobReason
from compaction.blocks.rewriting.task import Culprit, MergeFailure
from compaction.errors import InvalidAssignmentError
from compaction.worker.tasks import verdict

# A BlockRewrite job in the words of the block library.

PART_BYTES: Final = 512 << 20
"""From this size on readers gain nothing from a larger block, and the next levels leave it alone
(`blocks.planning.batches.LARGE_ENOUGH_BYTES`): sources of more become several blocks, by ranges of keys.
"""


@dataclass(frozen=True, slots=True)
class BlockJob:
    """The specification of one job with blocks. `level`: that of its output, above that of all `blocks` (ids, in
    ascending order). `sort_key`: the order that the policy wants; none: that of the sources. `deduplicate_by`: columns
    of which rows with equal values are one row, the last; none: all stay.
    """

    name: str
    store: BlockStoreReference
    tenant: str
    shard: int
    level: int
    blocks: tuple[str, ...]
    memory_bytes: int
    sort_key: tuple[str, ...] = ()
    deduplicate_by: tuple[str, ...] = ()
    part_bytes: int = PART_BYTES

    @classmethod
    def of(cls, spec: CompactionJobSpec, *, name: str) -> Self:
        """Read a job's spec.

        Raises:
            InvalidAssignmentError: another kind of job, or limits within which nothing can be merged.
        """
        sources, parameters = spec.sources.blocks, spec.block_parameters
        if spec.kind != BLOCK_REWRITE or sources is None:
            raise InvalidAssignmentError(f"job {name}: this worker cannot do a {spec.kind} without blocks")
        if parameters.memory_bytes < MIN_MEMORY:
            given = f"{parameters.memory_bytes} bytes of memory"
            raise InvalidAssignmentError(f"job {name}: {given} are too few for a merge, which takes {MIN_MEMORY}")
        for field, columns in (("deduplicateBy", parameters.deduplicate_by), ("sortKey", parameters.sort_key)):
            if len(set(columns)) != len(columns):
                raise InvalidAssignmentError(f"job {name}: a column of {field} is named twice")
        return cls(
            name=name,
            store=sources.store,
            tenant=sources.tenant,
            shard=sources.shard,
            level=spec.level + 1,
            blocks=tuple(sorted(sources.blocks)),
            memory_bytes=parameters.memory_bytes,
            sort_key=parameters.sort_key,
            deduplicate_by=parameters.deduplicate_by,
        )


_WORST_FIRST: Final = (
    JobReason.STALE_TOKEN,
    JobReason.VERIFICATION_FAILED,
    JobReason.STORE_UNREADABLE,
    JobReason.INVALID_JOB,
    JobReason.INTERNAL_ERROR,
    BlockJobReason.SOURCES_DIFFER,
    BlockJobReason.MEMORY_TOO_SMALL,
    JobReason.SOURCE_CORRUPT,
    JobReason.SOURCES_CHANGED,
)

EXAMPLES: Final = 3
LONGEST_KEY: Final = 120


@dataclass(frozen=True, slots=True)
class Proof:
    """The record of a commit: the receipt, the sources that were quarantined, the blocks that were left out, and the
    order that replaced another one, both in words.
    """

    receipt: JobReceipt
    skipped: tuple[SkippedSource, ...] = ()
    left_out: str = ""
    order: str = ""

    def to_json(self) -> str:
        """As the index keeps it."""
        skipped = [source.to_object() for source in self.skipped]
        words = {"leftOut": self.left_out, "order": self.order}
        document = {"receipt": self.receipt.to_object(), "skipped": skipped, **words}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Proof:
        """The inverse. Raises ValueError, KeyError or TypeError for anything else."""
        document = json.loads(text)
        skipped = tuple(SkippedSource.model_validate(source) for source in document["skipped"])
        left_out, order = (str(document.get(key, "")) for key in ("leftOut", "order"))
        return cls(JobReceipt.model_validate(document["receipt"]), skipped, left_out, order)


def proof_of(record: JobRecord) -> Proof:
    """Return the record of a job that was committed. Of a receipt that this version cannot read, the token and the
    sources are left: the commit stands, from whichever attempt.
    """
    try:
        return Proof.from_json(record.receipt or "")
    except (ValueError, KeyError, TypeError):
        return Proof(JobReceipt(token=record.token, worker="", sources=record.sources))


def receipt_of(
    *,
    token: int,
    worker: str,
    sources: Sequence[Block],
    outputs: Sequence[Block],
    dropped: RowFingerprint,
    seconds: float,
    now: float,
) -> JobReceipt:
    """The proof of one commit. `dropped`: duplicates that were left out; `now`: epoch seconds."""
    before, after = (sum(block.bytes for block in blocks) for blocks in (sources, outputs))
    held, kept = (
        reduce(add, (block.fingerprint for block in blocks), RowFingerprint()) for blocks in (sources, outputs)
    )
    return JobReceipt(
        token=token,
        worker=worker,
        sources=tuple(block.id for block in sources),
        outputs=tuple(block.id for block in outputs),
        records=kept.rows,
        duplicates=dropped.rows,
        bytes_before=before,
        bytes_after=after,
        bytes_reclaimed=max(0, before - after),
        fingerprint_before=str(held),
        fingerprint_after=str(kept),
        fingerprint_duplicates=str(dropped) if dropped.rows else "",
        seconds=round(seconds, 3),
        committed_at=timestamp_from_epoch(now),
    )


def left_out(duplicates: Sequence[Duplicates]) -> str:
    """Of rows that were left out: how many, and the keys of some; empty when there are none."""
    count = sum(duplicate.fingerprint.rows for duplicate in duplicates)
    if not count:
        return ""
    keys = [example for duplicate in duplicates for example in duplicate.examples][:EXAMPLES]
    named = ", ".join(cut(printable(f"({', '.join(map(str, key))})"), LONGEST_KEY) for key in keys)
    return f"{count} duplicate{'s' * (count != 1)} left out, such as {named}"


def succeeded(proof: Proof, *, token: int) -> JobReport:
    """The job is done, by this attempt or an earlier one whose report was lost."""
    receipt = proof.receipt
    done = [format_merge(len(receipt.sources), len(receipt.outputs))]
    done += [f"{len(proof.skipped)} quarantined"] * bool(proof.skipped)
    done += [words for words in (proof.left_out, proof.order) if words]
    return JobReport(
        token=token,
        outcome=ReportOutcome.SUCCEEDED,
        reason=JobReason.COMPLETED,
        message=", ".join(done),
        skipped=proof.skipped,
        receipt=receipt,
    )


def failed(failures: Sequence[MergeFailure], skipped: Sequence[SkippedSource], *, token: int) -> JobReport:
    """The attempt has committed nothing, so nothing is quarantined: culprits are evidence only, when they are the
    reason. Servers that were away, and attempts that were replaced, are not charged.
    """
    worst, outcome, message = verdict(failures, worst_first=_WORST_FIRST)
    return JobReport(
        token=token,
        outcome=outcome,
        reason=worst.reason,
        message=message,
        charged=worst.reason != JobReason.STALE_TOKEN and not worst.passing,
        skipped=tuple(skipped) if worst.reason == JobReason.SOURCE_CORRUPT else (),
    )


def skipped_source(block: str, culprit: Culprit) -> SkippedSource:
    """The line about a source that was quarantined."""
    return SkippedSource(source=block, reason=culprit.fault.value, message=culprit.message)
