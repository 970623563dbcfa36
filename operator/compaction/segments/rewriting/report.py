"""SegmentRewrite jobs in the words of the segment library: what an attempt is given, its receipts, its report."""

from __future__ import annotations

import hashlib
import os
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from compaction.api.base import timestamp_from_epoch
from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJobSpec, JobReceipt, SkippedSource
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.policy.segment_logs import SEGMENT_REWRITE, Ownership, SegmentLogSources
from compaction.api.text.printing import INT64_MAX
from compaction.errors import CompactionError, InvalidAssignmentError
from compaction.segments.clump.clump_plan import ClumpOptions
from compaction.segments.commit.records import GroupReceipt, SegmentTombstone
from compaction.segments.errors import InvalidGroupError, SegmentLogError
from compaction.segments.format.names import group_key, stem
from compaction.segments.model import SEGMENT_NAME, FileIdentity
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits
from compaction.segments.reasons import SegmentReason
from compaction.segments.rewriting.task import GroupFailure, failure_of
from compaction.segments.store import SegmentLogStore
from compaction.worker.attempt import RewriteAttempt
from compaction.worker.tasks import verdict

# A SegmentRewrite job in the words of the segment library.

Sources = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """The work of one job on one log. Checked: the groups are well formed and no segment is in two places.

    `clump`: a request to re-write live entries at the head; then there are neither groups nor obsolete segments.
    `estimated_bytes`: what the plan expects to copy; 0 when it does not say.
    """

    name: str
    directory: Path
    snapshot_index: int
    groups: tuple[Sources, ...]
    obsolete: Sources
    limits: SegmentLimits
    indexes_missing: IndexesMissing
    ownership: Ownership = Ownership.DETECT
    clump: ClumpOptions | None = None
    estimated_bytes: int = 0

    @classmethod
    def of(cls, spec: CompactionJobSpec, *, name: str) -> Self:
        """Read a job's spec.

        Raises:
            InvalidAssignmentError: another kind of job, or sources that no plan can have made.
        """
        source, parameters = spec.sources.segment_log, spec.segment_log_parameters
        if spec.kind != SEGMENT_REWRITE or source is None:
            raise InvalidAssignmentError(f"job {name}: this worker cannot do a {spec.kind} without a segment log")
        groups = tuple(group.segments for group in source.groups)
        try:
            # Both functions are called for their errors: no plan can have made other names.
            for sources in groups:
                group_key(sources)
            for segment in source.obsolete:
                stem(segment)
            limits = SegmentLimits(
                max_entries=parameters.max_entries_per_segment, max_bytes=parameters.max_bytes_per_segment
            )
        except InvalidGroupError as error:
            raise InvalidAssignmentError(f"job {name}: {error}") from error
        job = cls(
            name=name,
            directory=Path(source.path),
            snapshot_index=source.snapshot_index,
            groups=groups,
            obsolete=source.obsolete,
            limits=limits,
            indexes_missing=IndexesMissing(parameters.when_indexes_missing.value),
            ownership=parameters.ownership,
            clump=_clump(source),
            estimated_bytes=spec.estimated_bytes,
        )
        if len(set(job.all_sources)) != len(job.all_sources):
            raise InvalidAssignmentError(f"job {name}: a segment is named twice")
        return job

    @property
    def all_sources(self) -> Sources:
        """Every segment the job names."""
        return (*(segment for sources in self.groups for segment in sources), *self.obsolete)


def _clump(source: SegmentLogSources) -> ClumpOptions | None:
    wanted = source.clump
    if wanted is None:
        return None
    return ClumpOptions(wanted.shorter_than, wanted.min_ranges, wanted.max_bytes, wanted.owner_reads_maps)


# An attempt at a job of a segment log, whatever it does to the log.


@dataclass(slots=True, kw_only=True)
class SegmentLogAttempt(RewriteAttempt, ABC):
    """`failures`: what went wrong. `identities`: see `segment_report.identities_of`."""

    reported: ClassVar[tuple[type[CompactionError], ...]] = (SegmentLogError,)

    job: SegmentJob
    store: SegmentLogStore
    failures: list[GroupFailure] = field(default_factory=list)
    identities: dict[str, str] = field(default_factory=dict)

    @property
    def job_name(self) -> str:
        return self.job.name

    def _failed(self, error: CompactionError) -> None:
        self.failures.append(failure_of(error, self.job.all_sources))


# Puts the receipts of a job's groups together: one receipt per job, over all its attempts.


def combine(
    *,
    groups: Sequence[tuple[str, ...]],
    committed: Mapping[str, GroupReceipt],
    obsolete: Sequence[SegmentTombstone],
) -> JobReceipt | None:
    """One receipt for all that was committed (by whichever attempt); None when nothing was.

    `committed` by group key. A function of what the log's fence has recorded and of nothing else, so each attempt that
    finds the job done reads the same receipt. It names the attempt that committed last. Bytes of obsolete segments
    count as reclaimed: they are deleted after the grace.
    """
    parts = [committed[key] for key in map(group_key, groups) if key in committed]
    if not parts and not obsolete:
        return None
    before = sum(part.bytes_before for part in parts) + sum(tombstone.bytes for tombstone in obsolete)
    after = sum(part.bytes_after for part in parts)
    marks: list[GroupReceipt | SegmentTombstone] = [*parts, *obsolete]
    newest, worker = max((mark.token, mark.holder) for mark in marks)
    times = [*(part.committed_at for part in parts), *(tombstone.since for tombstone in obsolete)]
    return JobReceipt(
        token=newest,
        worker=worker,
        groups=len(groups),
        groups_committed=len(parts),
        sources=tuple(name for part in parts for name in part.sources),
        outputs=tuple(part.output for part in parts),
        obsolete=tuple(tombstone.name for tombstone in obsolete),
        records=sum(part.entries for part in parts),
        bytes_before=before,
        bytes_after=after,
        bytes_reclaimed=max(0, before - after),
        fingerprint_before=fold(part.fingerprint_before for part in parts),
        fingerprint_after=fold(part.fingerprint_after for part in parts),
        seconds=round(sum(part.seconds for part in parts), 3),
        committed_at=timestamp_from_epoch(max(times)),
    )


def fold(fingerprints: Iterable[str]) -> str:
    """One fingerprint for several groups: sha256 over their hex forms, one a line. Of a single one, itself."""
    lines = list(fingerprints)
    if len(lines) == 1:
        return lines[0]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# The report of a worker on an attempt at a segment log: done with a receipt, or the worst of what went wrong.

_WORST_FIRST = (
    JobReason.STALE_TOKEN,
    SegmentReason.OWNER_RUNNING,
    SegmentReason.STORE_LOCKED,
    JobReason.STORE_UNREADABLE,
    SegmentReason.LIVE_SET_UNKNOWN,
    SegmentReason.LOG_NOT_APPENDABLE,
    JobReason.VERIFICATION_FAILED,
    JobReason.INTERNAL_ERROR,
    JobReason.SOURCE_CORRUPT,
    JobReason.INVALID_JOB,
    JobReason.SOURCES_CHANGED,
)
_NOT_THE_JOBS_FAULT = frozenset({JobReason.STALE_TOKEN, SegmentReason.STORE_LOCKED, SegmentReason.OWNER_RUNNING})


def report_of(
    *,
    token: int,
    done: str,
    failures: Sequence[GroupFailure],
    identities: Mapping[str, str],
    receipt: JobReceipt | None,
) -> JobReport:
    """`done`: the message when nothing failed. `identities`: see `identities_of`."""
    if not failures:
        return JobReport(
            token=token, outcome=ReportOutcome.SUCCEEDED, reason=JobReason.COMPLETED, message=done, receipt=receipt
        )
    worst, outcome, message = verdict(failures, worst_first=_WORST_FIRST)
    return JobReport(
        token=token,
        outcome=outcome,
        reason=worst.reason,
        message=message,
        charged=worst.reason not in _NOT_THE_JOBS_FAULT,
        skipped=tuple(_skipped(f, identities) for f in failures if f.reason == JobReason.SOURCE_CORRUPT),
        receipt=receipt,
    )


def _skipped(failure: GroupFailure, identities: Mapping[str, str]) -> SkippedSource:
    """The line about a damaged segment: it will be quarantined. Other failures are in the message only."""
    segment = failure.segment or failure.sources[0]
    return SkippedSource(
        source=segment,
        index=as_count(failure.index),
        offset=as_count(failure.offset),
        reason=failure.reason,
        message=failure.message,
        identity=identities.get(segment, ""),
    )


def as_count(number: int | None) -> int | None:
    """A number of the segment format (u64) as resources hold it (int64); the message has what does not fit."""
    return number if number is not None and number <= INT64_MAX else None


def identities_of(directory: Path) -> dict[str, str]:
    """The files of a log by name, as they are before anything is read from them: what is found damaged later is one
    of these, or was replaced since, and then its quarantine ends at the next scan. Never the other way round.
    """
    found = {}
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if SEGMENT_NAME.fullmatch(entry.name):
                with suppress(OSError):
                    found[entry.name] = str(FileIdentity.of(entry.stat(follow_symlinks=False)))
    return found
