"""Totals over finished jobs, each counted once whatever crashes, and the targets that a plan still owes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compaction.api.base import to_timestamp
from compaction.api.enums import JobReason, JobState, PlanApproval
from compaction.api.names import LABEL_PLAN
from compaction.api.policy.policy import PlanStatus, QuarantinedSource
from compaction.api.policy.policy_status import MAX_COUNTED, MAX_RUNS, CountedJob, PolicyCost, RunRecord
from compaction.core.meaning import Fate
from compaction.core.planning.candidates import Candidate
from compaction.core.planning.debt import FinishedWork
from compaction.core.reconcile.jobs.ending import owner_uid
from compaction.core.reconcile.jobs.job import parts_of, token_of
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import Moment, Unmade
from compaction.registry import fate_of

# Totals over finished jobs, each counted once whatever crashes; and which finished jobs may be forgotten.
#
# `status.counted` lists the finished jobs that still exist and are in the totals. It is written together with the
# totals, in one guarded write, so the two cannot disagree. A job is deleted only after its entry has been read back
# from the API server. A crash anywhere leaves either a job that is not counted yet (and will be) or one that is (and
# will not be again).


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of finished jobs in the policy's status."""

    counted: tuple[CountedJob, ...]
    succeeded: int
    bytes_reclaimed: int
    cost: PolicyCost | None = None


def entry_of(step: JobStep) -> CountedJob:
    """Return what a finished job contributes to the totals."""
    receipt, usage = step.status.receipt, step.status.usage
    return CountedJob(
        job=step.name,
        uid=step.view.identity.uid,
        token=token_of(step.status),
        bytes=receipt.bytes_reclaimed if receipt is not None else 0,
        succeeded=step.state is JobState.SUCCEEDED,
        cpu_seconds=usage.cpu_seconds if usage is not None else None,
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
    succeeded, reclaimed, cost = before.succeeded, before.bytes_reclaimed, before.cost
    for step in finished_order(steps):
        entry, old = entry_of(step), entries.get(step.name)
        if old is None and len(entries) >= MAX_COUNTED:
            break
        entries[step.name] = entry
        succeeded += entry.succeeded and not (old is not None and old.succeeded)
        gained = max(0, entry.bytes - (old.bytes if old is not None else 0))
        reclaimed += gained
        # Bytes of jobs whose CPU time is not known would make the gain per second look larger than it is.
        if entry.cpu_seconds is not None:
            cost, counted = cost or PolicyCost(), (old.cpu_seconds if old is not None else None) or 0.0
            spent = round(cost.cpu_seconds + max(0.0, entry.cpu_seconds - counted), 3)
            cost = PolicyCost(cpu_seconds=spent, bytes_reclaimed=cost.bytes_reclaimed + gained)
    return Totals(tuple(sorted(entries.values(), key=lambda entry: entry.job)), succeeded, reclaimed, cost)


# The history of a policy: the last plans that were carried out, and what came of each.
#
# A record is derived from the jobs that carry the plan's hash, and grows by what the totals grow by, in the same write:
# so a job is in its record exactly once, whatever crashes, as in the totals.


def recorded(
    before: Sequence[RunRecord],
    totals: tuple[Totals, Totals],
    steps: Sequence[JobStep],
    *,
    plan: PlanStatus | None,
    unmade: Unmade,
    debt_bytes: int | None,
    now: Moment,
) -> tuple[RunRecord, ...]:
    """The history after this reconcile. `totals`: of the status, and as they are now; `plan`: the newest one, whose
    jobs may be created by this very decision (`unmade`); `debt_bytes`: of the last scan, None when it has none.
    """
    old, new = (by_job(each.counted) for each in totals)
    of_plan: dict[str, list[JobStep]] = {}
    for step in steps:
        if found := step.view.job.metadata.labels.get(LABEL_PLAN, ""):
            of_plan.setdefault(found, []).append(step)
    records = {record.plan: record for record in before}
    unended = [record.plan for record in before if record.ended_at is None]
    for found in dict.fromkeys((*of_plan, *unended, *((unmade.plan,) if unmade.jobs else ()))):
        own, known = of_plan.get(found, []), plan if plan is not None and plan.hash == found else None
        fresh = [step for step in own if new.get(step.name) != old.get(step.name)]
        to_come = len(unmade.jobs) if unmade.plan == found else 0
        is_open = to_come > 0 or any(step.state not in (JobState.SUCCEEDED, JobState.FAULTY) for step in own)
        # Another coordinator may have begun to create the jobs of an approved plan: this one has not found them yet.
        is_open = is_open or (known is not None and bool(known.unmade))
        record = records.get(found)
        if record is None and not (fresh or is_open):
            continue  # what ended before there was a history, or beyond what it keeps
        record = record or _begun(found, own, known, debt_bytes, now)
        record = _grown(record, fresh, old, jobs=max(len(own) + to_come, record.jobs))
        records[found] = _ended(record, own, is_open=is_open, now=now)
    newest = sorted(records.values(), key=lambda record: (record.started_at, record.plan))
    return tuple(newest[-MAX_RUNS:])


def _begun(
    found: str, own: Sequence[JobStep], plan: PlanStatus | None, debt_bytes: int | None, now: Moment
) -> RunRecord:
    created = [at for step in own if (at := step.view.job.metadata.creation_timestamp) is not None]
    start = min(created, default=to_timestamp(now.time))
    if plan is None:
        return RunRecord(plan=found, started_at=start)
    return RunRecord(
        plan=found,
        reason=plan.reason,
        started_at=start,
        approved_at=plan.approved_at,
        approved_by=plan.approved_by,
        # Of a plan that is not the newest the last scan says nothing: that one came later.
        debt_bytes=debt_bytes,
        jobs=plan.jobs,
        work=plan.work if plan.approval is PlanApproval.APPROVED else (),
    )


def _grown(record: RunRecord, fresh: Sequence[JobStep], old: Mapping[str, CountedJob], *, jobs: int) -> RunRecord:
    """The record with jobs that are in the totals now and were not, or were as parked."""
    sums: dict[str, Any] = {"jobs": jobs}
    for step in fresh:
        before, receipt, usage = old.get(step.name), step.status.receipt, step.status.usage
        known = before if before is not None and before.uid == step.view.identity.uid else None
        done = step.state is JobState.SUCCEEDED
        was_parked = known is not None and not known.succeeded
        changes: dict[str, float] = {
            "succeeded": done,
            "faulty": (not done) - was_parked,
            "bytes_reclaimed": max(0, entry_of(step).bytes - (known.bytes if known is not None else 0)),
        }
        # The receipt is of all attempts of the job: added where it is parked as well, it would count twice.
        if receipt is not None and done:
            changes |= {"bytes_read": receipt.bytes_before, "bytes_written": receipt.bytes_after}
            changes["seconds"] = receipt.seconds
        if usage is not None and usage.cpu_seconds is not None:
            counted = known.cpu_seconds or 0.0 if known is not None else 0.0
            changes["cpu_seconds"] = max(0.0, usage.cpu_seconds - counted)
        for name, change in changes.items():
            sums[name] = sums.get(name, getattr(record, name)) or 0
            sums[name] += change
        if usage is not None:
            for name in ("driver_peak_bytes", "executor_peak_bytes"):
                peaks = (sums.get(name, getattr(record, name)), getattr(usage, name))
                sums[name] = max((peak for peak in peaks if peak is not None), default=None)
    sums["faulty"] = max(0, sums.get("faulty", record.faulty))
    return record.model_copy(update=sums)


def _ended(record: RunRecord, own: Sequence[JobStep], *, is_open: bool, now: Moment) -> RunRecord:
    """The record with its end: when the last job ended, or went without one."""
    if is_open:
        return record.model_copy(update={"ended_at": None}) if record.ended_at is not None else record
    if record.ended_at is not None:
        # Jobs beyond the history limit are deleted later: what is there then tells no other end.
        return record
    ends = [at for step in own if (at := step.status.finished_at) is not None]
    return record.model_copy(update={"ended_at": max(ends, default=to_timestamp(now.time)), "work": ()})


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
    """Return what the succeeded jobs say about speed."""
    work = []
    for step in steps:
        status = step.status
        if step.state is JobState.SUCCEEDED and status.assigned_at is not None and status.finished_at is not None:
            seconds = (status.finished_at - status.assigned_at).total_seconds()
            work.append(FinishedWork(step.view.job.spec.estimated_bytes, seconds, status.finished_at.timestamp()))
    return work


# Targets to which a plan still owes something: one of its jobs ended with a source that cannot be compacted.
#
# With a schedule, plans are made at its times only. The siblings of a damaged source, and the halves of a job that
# failed as a whole, belong to the time their job was planned for: they do not wait for the next one
# (docs/design/scheduling.md#faulty-jobs).


def owed(steps: Sequence[JobStep], quarantined: Iterable[QuarantinedSource], *, since: float | None) -> frozenset[str]:
    """Targets whose newest planned job ended with a bad source, after `since` (epoch seconds; None: no schedule)."""
    if since is None:
        return frozenset()
    planned = [step for step in steps if owner_uid(step.view.job)]
    ended = [(step.target, step.status.finished_at) for step in planned if is_blamed(step)]
    ended += [(entry.target, entry.since) for entry in quarantined]
    failed = _newest((target, at.timestamp()) for target, at in ended if at is not None)
    births = ((step.target, step.view.job.metadata.creation_timestamp) for step in planned)
    born = _newest((target, at.timestamp()) for target, at in births if at is not None)
    return frozenset(target for target, at in failed.items() if at >= since and born.get(target, 0.0) <= at)


def is_blamed(step: JobStep) -> bool:
    """Return whether the job is parked for something that may lie in one of its sources."""
    if step.state is not JobState.FAULTY:
        return False
    return may_split(step) or any(attempt.reason == JobReason.SOURCE_CORRUPT for attempt in step.status.attempts)


def may_split(step: JobStep) -> bool:
    """A job that used up its attempts for a reason that may lie in one of its parts."""
    reasons = {attempt.reason for attempt in step.status.attempts if attempt.charged}
    return bool(reasons) and all(fate_of(reason) is Fate.SPLIT for reason in reasons)


def is_parked(candidate: Candidate, faulty: Mapping[str, Sequence[JobStep]]) -> bool:
    """Return whether all that the target offers are sources of its parked jobs (`faulty`, by target): no plan takes it
    up.
    """
    known = [parts_of(step.view.job) for step in faulty.get(candidate.target, ())]
    # What was planned from another version is planned again, under other names.
    mine = [parts for parts in known if parts.base_version == candidate.base_version]
    groups = {group for parts in mine for group in parts.groups}
    names = {name for parts in mine for name in parts.obsolete}
    if not groups and not names:
        return False
    if any(parts.divisible for parts in mine):
        return candidate.sources <= {name for group in groups for name in group}
    return {group.sources for group in candidate.groups} <= groups and {
        item.name for item in candidate.obsolete
    } <= names


def _newest(moments: Iterable[tuple[str, float]]) -> dict[str, float]:
    newest: dict[str, float] = {}
    for target, at in moments:
        newest[target] = max(at, newest.get(target, at))
    return newest
