"""Totals over finished jobs, each counted once whatever crashes; and which finished jobs may be forgotten.

`status.counted` lists the finished jobs that still exist and are in the totals. It is written together with the
totals, in one guarded write, so the two cannot disagree. A job is deleted only after its entry has been read back
from the API server. A crash anywhere leaves either a job that is not counted yet (and will be) or one that is (and
will not be again).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compaction.api.enums import JobState
from compaction.api.policy.status import MAX_COUNTED, CountedJob
from compaction.core.planning.debt import FinishedWork
from compaction.core.reconcile.jobs.job import token_of
from compaction.core.reconcile.jobs.steps import JobStep


@dataclass(frozen=True, slots=True)
class Totals:
    """What the policy's status says about finished jobs."""

    counted: tuple[CountedJob, ...]
    succeeded: int
    bytes_reclaimed: int


def entry_of(step: JobStep) -> CountedJob:
    """What a finished job contributes to the totals."""
    receipt = step.status.receipt
    return CountedJob(
        job=step.name,
        uid=step.view.identity.uid,
        token=token_of(step.status),
        bytes=receipt.bytes_reclaimed if receipt is not None else 0,
        succeeded=step.state is JobState.SUCCEEDED,
    )


def finished_order(steps: Iterable[JobStep]) -> list[JobStep]:
    """Finished jobs, the one that ended first in front."""
    done = [step for step in steps if step.state in (JobState.SUCCEEDED, JobState.FAULTY)]
    return sorted(done, key=lambda step: (_ended_at(step), step.name))


def _ended_at(step: JobStep) -> float:
    ended = step.status.finished_at
    return ended.timestamp() if ended is not None else 0.0


def count(before: Totals, steps: Sequence[JobStep]) -> Totals:
    """The totals with every finished job in them exactly once.

    A job that was Faulty and succeeded later adds what is new; one that has the name of a deleted one counts by itself.
    When the list is full, the jobs that ended last wait until older ones were deleted.
    """
    known = by_job(before.counted)
    existing = {(step.name, step.view.identity.uid) for step in steps}
    entries = {name: entry for name, entry in known.items() if (name, entry.uid) in existing}
    succeeded, reclaimed = before.succeeded, before.bytes_reclaimed
    for step in finished_order(steps):
        entry, old = entry_of(step), entries.get(step.name)
        if old is None and len(entries) >= MAX_COUNTED:
            break
        entries[step.name] = entry
        succeeded += entry.succeeded and not (old is not None and old.succeeded)
        reclaimed += max(0, entry.bytes - (old.bytes if old is not None else 0))
    return Totals(tuple(sorted(entries.values(), key=lambda entry: entry.job)), succeeded, reclaimed)


def by_job(counted: Iterable[CountedJob]) -> dict[str, CountedJob]:
    """The entries of `status.counted` by the name of their job."""
    return {entry.job: entry for entry in counted}


def deletable(step: JobStep, persisted: Mapping[str, CountedJob]) -> bool:
    """True when the totals on the API server (`by_job`) contain all of this finished job."""
    return persisted.get(step.name) == entry_of(step)


def beyond_history(
    steps: Sequence[JobStep], *, succeeded_limit: int, failed_limit: int, keep: frozenset[str]
) -> list[JobStep]:
    """Finished jobs beyond the history limits, the oldest first; those named in `keep` stay."""
    done = finished_order(steps)
    good = [step for step in done if step.state is JobState.SUCCEEDED]
    bad = [step for step in done if step.state is JobState.FAULTY]
    surplus = good[: max(0, len(good) - succeeded_limit)] + bad[: max(0, len(bad) - failed_limit)]
    return [step for step in surplus if step.name not in keep]


def finished_work(steps: Iterable[JobStep]) -> list[FinishedWork]:
    """What the succeeded jobs say about speed."""
    work = []
    for step in steps:
        status = step.status
        if step.state is JobState.SUCCEEDED and status.assigned_at is not None and status.finished_at is not None:
            seconds = (status.finished_at - status.assigned_at).total_seconds()
            work.append(FinishedWork(step.view.job.spec.estimated_bytes, seconds, status.finished_at.timestamp()))
    return work
