"""Retries that cannot change anything: they are refused before anything starts, and leave the job's record alone."""

from __future__ import annotations

from collections.abc import Iterable

from compaction.api.enums import JobReason
from compaction.api.job import CompactionJob
from compaction.api.policy import QuarantinedSource
from compaction.planning.reading import Reading
from compaction.reconcile.parts import parts_of
from compaction.reconcile.superseded import parked_for
from compaction.reconcile.teardown import owner_uid


def futile(job: CompactionJob, quarantined: Iterable[QuarantinedSource], reading: Reading | None = None) -> str:
    """Why another attempt of a parked job would end as the last one did, and what to do instead; "" when it may not.

    `quarantined`: sources of the job's policy. `reading`: the last good scan of its store, where there is one at hand.
    """
    reason, lane = parked_for(job.status), job.spec.lane
    if reason == JobReason.SOURCES_CHANGED:
        return "its sources are no longer what it was planned from, and what is left of them was planned again"
    damaged = {one.segment for one in job.status.skipped}
    aside = [one for one in quarantined if one.log == lane and one.segment in damaged]
    if aside:
        return (
            f"{lane}/{aside[0].segment} is damaged and set aside: restore it, and its quarantine ends by itself; "
            "`kubectl compaction quarantine release` has it tried again as it is"
        )
    if reading is not None and _is_gone(job, reading):
        return "the store does not offer its sources any more, and what is left of them is planned again"
    return ""


def _is_gone(job: CompactionJob, reading: Reading) -> bool:
    """Whether the store has been read since, and no plan could make the job again. What a person asked for by hand need
    not be what a plan would have made of it.
    """
    if not owner_uid(job):
        return False
    if job.metadata.name in reading.outdated:
        return True
    parts, lane = parts_of(job), job.spec.lane
    if parts.divisible or lane in {problem.log for problem in reading.problems}:
        return False
    candidate = next((one for one in reading.candidates if one.path == lane), None)
    return lane not in reading.logs or (candidate is not None and not parts.is_offered(candidate))
