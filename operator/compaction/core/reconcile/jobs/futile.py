"""Retries that cannot change anything: they are refused before anything starts, and leave the job's record alone."""

from __future__ import annotations

from collections.abc import Iterable

from compaction.api.enums import JobReason
from compaction.api.job.resource import CompactionJob
from compaction.api.job.superseded import parked_for
from compaction.api.policy.resource import QuarantinedSource
from compaction.core.planning.reading import ScanResult
from compaction.core.reconcile.jobs.parts import parts_of
from compaction.core.reconcile.teardown import owner_uid


def futile(
    job: CompactionJob, quarantined: Iterable[QuarantinedSource], reading: ScanResult | None = None
) -> str | None:
    """Why another attempt of a parked job would end as the last one did, and what to do instead; "" when it may not.
    None when only a scan tells, and there is none.

    `quarantined`: sources of the job's policy. `reading`: a good scan of its store since the job ended.
    """
    reason, target = parked_for(job.status), job.spec.target
    if reason == JobReason.SOURCES_CHANGED:
        return "its sources are no longer what it was planned from, and what is left of them was planned again"
    damaged = {one.source for one in job.status.skipped}
    aside = [one for one in quarantined if one.target == target and one.source in damaged]
    if aside:
        return (
            f"{target}/{aside[0].source} is damaged and in quarantine: restore it, and its quarantine ends by itself; "
            "`kubectl compaction quarantine release` has it tried again as it is"
        )
    if not owner_uid(job):
        return ""  # what a user created by hand need not be what a plan would have made of it
    if reading is None:
        return None
    if _is_gone(job, reading):
        return "the store does not offer its sources any more, and what is left of them is planned again"
    return ""


def _is_gone(job: CompactionJob, reading: ScanResult) -> bool:
    """Whether no plan could make the job again from what the scan has found."""
    if job.metadata.name in reading.outdated:
        return True
    parts, target = parts_of(job), job.spec.target
    if parts.divisible or target in {problem.target for problem in reading.problems}:
        return False
    candidate = next((one for one in reading.candidates if one.target == target), None)
    return target not in reading.targets or (candidate is not None and not parts.is_offered(candidate))
