"""What stays of a job's record whatever is reported later: the proof of its commits, and the damage that was found."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.api.enums import JobReason
from compaction.api.job.resource import AttemptStatus, JobReceipt


def proof(before: JobReceipt | None, said: JobReceipt | None) -> JobReceipt | None:
    """The receipt after a report. What was proved stays as it was proved: a report that adds no commit to it was made
    by an attempt that committed nothing.
    """
    if before is None or said is None:
        return said or before
    return said if said.commits - before.commits else before


def known_damage(attempts: Sequence[AttemptStatus]) -> AttemptStatus | None:
    """The attempt that found a source damaged. That the siblings were compacted since, and so changed, is no news about
    the damage: it stays what the job is parked for.
    """
    return next((one for one in reversed(attempts) if one.reason == JobReason.SOURCE_CORRUPT), None)
