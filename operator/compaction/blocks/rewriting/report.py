"""What a worker says about an attempt at blocks, and the proof that it leaves in the index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

from compaction.api.enums import JobReason
from compaction.api.job.report import JobReport, ReportOutcome
from compaction.api.job.resource import JobReceipt, SkippedSource
from compaction.api.text.safe import cut, printable
from compaction.api.text.times import timestamp_from_epoch
from compaction.blocks.index.claims import JobRecord
from compaction.blocks.merge.settings import Duplicates
from compaction.blocks.model import Block, RowFingerprint
from compaction.blocks.reasons import BlockJobReason
from compaction.blocks.rewriting.culprits import Culprit
from compaction.blocks.rewriting.task import MergeFailure
from compaction.blocks.work import format_merge
from compaction.worker.verdict import verdict

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
    """What is remembered of a commit: the receipt, the sources that were quarantined, what was left out, and which
    order replaced another one, both in words.
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
    """What is remembered of a job that was committed. Of a receipt that this version cannot read, who and what is left:
    the commit stands, from whichever attempt.
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
    count = sum(one.fingerprint.rows for one in duplicates)
    if not count:
        return ""
    keys = [example for one in duplicates for example in one.examples][:EXAMPLES]
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
