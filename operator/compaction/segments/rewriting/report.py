"""What a worker says about an attempt at a segment log: done with a receipt, or the worst of what went wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from compaction.api.enums import JobReason
from compaction.api.job.report import JobReport, ReportOutcome
from compaction.api.job.resource import JobReceipt, SkippedSource
from compaction.api.text.safe import INT64_MAX
from compaction.segments.model import SEGMENT_NAME, FileIdentity
from compaction.segments.reasons import SegmentReason
from compaction.segments.rewriting.task import GroupFailure
from compaction.worker.verdict import verdict

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
