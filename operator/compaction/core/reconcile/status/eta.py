"""When the debt is worked off, from what the newest jobs took; None where it is unknown.

It is unknown while nothing runs: the store refuses a claim, no worker starts, a retry waits, no window is open. Where
plans wait for a schedule or for approval the debt as a whole has no known end: there it is the jobs
that exist whose end is estimated. Windows and the limit on bytes per second are taken into account.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction.api.enums import Approval, JobState
from compaction.api.policy.resource import CompactionPolicy
from compaction.core.planning.debt import Debt, FinishedWork, bytes_per_second, eta_seconds
from compaction.core.planning.schedule import finished_by
from compaction.core.reconcile.jobs.counting import finished_work
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import Moment
from compaction.core.reconcile.timing import Timing

TIMES_MOVED = 3
"""Each byte that is copied is read, written, and read back: all of it counts against limits.bytesPerSecond."""


def eta(policy: CompactionPolicy, steps: tuple[JobStep, ...], debt: Debt, clock: Timing, now: Moment) -> int | None:
    """Seconds until the debt, or with a schedule or approval what is planned of it, is worked off; None if unknown."""
    if not any(step.state is JobState.IN_PROGRESS for step in steps):
        return None
    spec = policy.spec
    only_planned = spec.trigger.schedule is not None or spec.approval is Approval.MANUAL
    planned, running = _planned_bytes(steps), running_work(steps, now)
    # The scan that found the debt knows nothing of what the running jobs have copied since.
    copied = sum(work.cost_bytes for work in running)
    left = planned if only_planned or not debt.copy_bytes else max(planned, debt.copy_bytes - copied)
    if not left or not (only_planned or debt.copy_bytes):
        return None
    unfinished = sum(step.state not in (JobState.SUCCEEDED, JobState.FAULTY) for step in steps)
    # The last jobs run alone, however many slots there are.
    most = unfinished if only_planned else max(unfinished, debt.targets)
    parallel = min(spec.limits.max_concurrent_jobs, spec.workers.max * spec.workers.slots, most)
    speed = bytes_per_second(finished_work(steps)) or bytes_per_second(running)
    seconds = eta_seconds(left, speed, parallel=parallel)
    if seconds is None:
        return None
    if spec.limits.bytes_per_second is not None:
        seconds = max(seconds, left * TIMES_MOVED / int(spec.limits.bytes_per_second))
    done = finished_by(clock.windows, spec.trigger.time_zone, now=now.wall, work=seconds)
    return None if done is None else round(done - now.wall)


def running_work(steps: Iterable[JobStep], now: Moment) -> list[FinishedWork]:
    """What running jobs have copied so far, as their Leases say: all there is before the first of them has ended."""
    return [
        FinishedWork(
            step.view.job.spec.estimated_bytes * step.lease.progress // 100,
            (now.time - step.status.assigned_at).total_seconds(),
            now.wall,
        )
        for step in steps
        if step.state is JobState.IN_PROGRESS
        and step.lease is not None
        and step.lease.progress
        and step.status.assigned_at is not None
    ]


def _planned_bytes(steps: Iterable[JobStep]) -> int:
    """Bytes that unfinished jobs have still to copy."""
    unfinished = (step for step in steps if step.state not in (JobState.SUCCEEDED, JobState.FAULTY))
    return sum(step.view.job.spec.estimated_bytes * (100 - _percent(step)) // 100 for step in unfinished)


def _percent(step: JobStep) -> int:
    """The Lease has it exactly, the status only now and then."""
    exact = step.lease.progress if step.lease is not None else None
    return exact if exact is not None else step.status.progress_percent or 0
