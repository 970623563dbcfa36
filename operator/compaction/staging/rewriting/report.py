"""MetarangeRewrite jobs in the words of the library, the report of an attempt, and its receipt beside the branch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from pydantic import ValidationError

from compaction.api.base import timestamp_from_epoch
from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJobSpec, JobReceipt, MeasureChange, MetarangeReceipt, SkippedSource
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.policy.staging_area import METARANGE_REWRITE, LakeFsMergeSpec, StagingAreaReference
from compaction.errors import CompactionError, InvalidAssignmentError, StaleTokenError
from compaction.staging.compaction import BranchWork
from compaction.staging.connecting import work_of
from compaction.staging.damage import DamagedSource
from compaction.staging.errors import (
    CorruptMessageError,
    CorruptRangeError,
    MissingRangeError,
    OutputSweptError,
    RangeRecordError,
    RewriteProofError,
    TokenMergeProofError,
    TooManyTriesError,
    UnexpectedRangeError,
    UnknownRefError,
    UnsupportedRangeError,
    WorkOutdatedError,
)
from compaction.staging.kind import RANGES, SEALED_TOKENS, STAGED_WRITES, TOMBSTONES, format_rewrite
from compaction.staging.reasons import StagingReason
from compaction.staging.rewriting.tree import WrittenTree
from compaction.storage.errors import DatabaseUnavailableError, ObjectStoreUnavailableError

# A MetarangeRewrite job in the words of the library of staging areas.


@dataclass(frozen=True, slots=True)
class MetarangeJob:
    """The specification of one job with tokens. `lakefs`: they are those of a live lakeFS, and are merged into one."""

    name: str
    store: StagingAreaReference
    work: BranchWork
    lakefs: LakeFsMergeSpec | None = None

    @classmethod
    def of(cls, spec: CompactionJobSpec, *, name: str) -> Self:
        """Read a job's spec. Raises InvalidAssignmentError: another kind of job."""
        sources = spec.sources.metarange
        if spec.kind != METARANGE_REWRITE or sources is None:
            raise InvalidAssignmentError(f"job {name}: this worker cannot do a {spec.kind} without tokens of a branch")
        return cls(name, sources.store, work_of(sources), spec.metarange_parameters.lakefs)


# The report of a worker on an attempt at a branch, and the receipt that it leaves beside the branch.

MAX_OUTPUTS: Final = 1000
"""Names of written ranges that a receipt has; it proves all of them by their fingerprint."""
_REASONS: Final[dict[type[CompactionError], JobReason]] = {
    StaleTokenError: JobReason.STALE_TOKEN,
    WorkOutdatedError: JobReason.SOURCES_CHANGED,
    UnknownRefError: JobReason.SOURCES_CHANGED,
    RewriteProofError: JobReason.VERIFICATION_FAILED,
    TokenMergeProofError: JobReason.VERIFICATION_FAILED,
    CorruptRangeError: JobReason.SOURCE_CORRUPT,
    MissingRangeError: JobReason.SOURCE_CORRUPT,
    UnsupportedRangeError: JobReason.SOURCE_CORRUPT,
    CorruptMessageError: JobReason.SOURCE_CORRUPT,
    RangeRecordError: JobReason.SOURCE_CORRUPT,
    UnexpectedRangeError: JobReason.INTERNAL_ERROR,
}
"""Anything else is that the store could not be read or written."""
_PASSING: Final = (DatabaseUnavailableError, ObjectStoreUnavailableError, OutputSweptError, TooManyTriesError)


@dataclass(frozen=True, slots=True)
class RewriteFailure:
    """The reason for which the branch is as it was. `passing`: a server was away, or the attempt yielded. `damaged`:
    the source that is to blame.
    """

    reason: JobReason | StagingReason
    message: str
    passing: bool = False
    damaged: SkippedSource | None = None

    @classmethod
    def of(cls, error: CompactionError) -> Self:
        """An error of the data or of the store. A branch or a repository that is gone has changed."""
        if isinstance(error, UnknownRefError) and error.what == "commit":
            return cls(JobReason.SOURCE_CORRUPT, f"{error}: restore its row from a backup of the key-value store")
        reason = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), None)
        return cls(reason or JobReason.STORE_UNREADABLE, str(error), isinstance(error, _PASSING))

    def because_of(self, source: DamagedSource | None, identity: str) -> Self:
        """The same with the source that is damaged. `identity`: of what was read, "" when it is not known."""
        if self.reason is not JobReason.SOURCE_CORRUPT or source is None:
            return self
        found = SkippedSource(
            source=source.name, offset=source.offset, reason=self.reason, message=self.message, identity=identity
        )
        return replace(self, damaged=found)


def receipt_of(
    work: BranchWork, written: WrittenTree, *, token: int, worker: str, seconds: float, now: float
) -> JobReceipt:
    """The proof of one swap. `now`: seconds since 1970."""
    return JobReceipt(
        token=token,
        worker=worker,
        groups=1,
        groups_committed=1,
        sources=work.tokens,
        outputs=tuple(info.id for info in written.written[:MAX_OUTPUTS]),
        records=sum(info.count for info in written.written),
        bytes_before=written.staged_bytes,
        bytes_after=written.bytes_written,
        bytes_reclaimed=written.staged_bytes,
        fingerprint_before=_together(written.shown),
        fingerprint_after=_together(written.contents),
        measures=(
            MeasureChange(name=TOMBSTONES, before=written.tombstones),
            MeasureChange(name=SEALED_TOKENS, before=len(work.tokens)),
            MeasureChange(name=STAGED_WRITES, before=written.changes),
            MeasureChange(name=RANGES, before=written.touched, after=len(written.written)),
        ),
        seconds=round(seconds, 3),
        committed_at=timestamp_from_epoch(now),
        metarange=MetarangeReceipt(
            metarange=written.tree,
            changes=written.changes,
            tombstones=written.tombstones,
            ranges_touched=written.touched,
            ranges_written=len(written.written),
            ranges_reused=written.reused,
            bytes_read=written.bytes_read,
            bytes_written=written.bytes_written,
        ),
    )


def receipt_from(text: str, work: BranchWork, *, token: int) -> JobReceipt:
    """A receipt that was kept. Of one that this version cannot read, what is known without it: the swap stands."""
    try:
        return JobReceipt.model_validate_json(text)
    except ValidationError:
        return JobReceipt(token=token, worker="", sources=work.tokens)


def succeeded(receipt: JobReceipt, *, token: int) -> JobReport:
    """The job is done, by this attempt or an earlier one whose report was lost."""
    return JobReport(
        token=token,
        outcome=ReportOutcome.SUCCEEDED,
        reason=JobReason.COMPLETED,
        message=format_rewrite(receipt),
        receipt=receipt,
    )


def failed(failure: RewriteFailure, *, token: int) -> JobReport:
    """The attempt has swapped nothing. Servers that were away, and attempts that were replaced, are not charged."""
    changed = failure.reason is JobReason.SOURCES_CHANGED
    return JobReport(
        token=token,
        outcome=ReportOutcome.SKIPPED if changed else ReportOutcome.FAILED,
        reason=failure.reason,
        message=failure.message,
        charged=failure.reason is not JobReason.STALE_TOKEN and not failure.passing,
        skipped=() if failure.damaged is None else (failure.damaged,),
    )


def _together(fingerprints: Sequence[str]) -> str:
    """One fingerprint of those of all parts, in order: the sum of their records, and a hash of their hashes."""
    records = sum(int(fingerprint.partition(":")[0]) for fingerprint in fingerprints)
    return f"{records}:{hashlib.sha256(' '.join(fingerprints).encode()).hexdigest()[:32]}"
