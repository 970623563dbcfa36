"""The view of `status`: one row per policy, or all about one. Data with exact values first, tables from the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click

from compaction.api.base import format_timestamp
from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus, RoundRecord
from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType, JobState, PlanApproval
from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus
from compaction.api.policy.policy_status import RunRecord
from compaction.api.text.printing import format_age, format_bytes, format_cost, format_cpu, plural
from compaction.cli.output import OutputColumn, optional, optional_bytes, print_pairs, print_table
from compaction.core.explain.explanation import MISSING, UNKNOWN, Coordination, Leadership
from compaction.core.explain.why_job import progress_percent
from compaction.leases.record import Lease
from compaction.registry import kind_of

# Common parts of the views of all kinds: ages, times, and whether a status is up to date.

Data = dict[str, Any]
NAMESPACE: Final = OutputColumn("namespace", "Namespace")


def seconds_between(start: datetime | None, end: datetime | None) -> int | None:
    """Whole seconds, at least 0; None while one of the two is not known."""
    return None if start is None or end is None else max(0, int((end - start).total_seconds()))


def time_text(moment: datetime | None) -> str | None:
    """RFC 3339; None for what is not known."""
    return None if moment is None else format_timestamp(moment)


def age_text(seconds: int | None) -> str:
    """`2m10s`, or `-`."""
    return "-" if seconds is None else format_age(seconds)


def cpu_text(seconds: float | None) -> str:
    """`12.3s`, or `-`."""
    return "-" if seconds is None else format_cpu(seconds)


def since_text(status: CompactionPolicyStatus | CatalogCompactionStatus, now: datetime) -> str:
    """` for 2m10s`: how long Ready has had its reason."""
    ready = get_condition(status.conditions, ConditionType.READY)
    if ready is None:
        return ""
    return f" for {format_age((now - (status.reason_since or ready.last_transition_time)) / timedelta(seconds=1))}"


def is_observed(policy: CompactionPolicy | CatalogCompaction) -> bool:
    """Return whether the status is of the spec as it is now."""
    return policy.status.observed_generation >= policy.metadata.generation


def coordinator_data(coordinator: Coordination, now: datetime) -> Data:
    """Return the state of the coordinator, in exact values."""
    return {
        "state": coordinator.state.value,
        "holder": coordinator.holder or None,
        "renewedSeconds": seconds_between(coordinator.renewed, now),
    }


def outdated_pairs(
    policy: CompactionPolicy | CatalogCompaction, noun: str, coordinator: Coordination, now: datetime
) -> list[tuple[str, str]]:
    """Return the pairs that say why what follows is of a former time."""
    pairs = [("Operator", coordinator.sentence(now))] if coordinator.is_missing else []
    if is_observed(policy):
        return pairs
    observed, generation = policy.status.observed_generation, policy.metadata.generation
    if observed < 0:
        return [*pairs, ("Observed", f"never: no operator has observed the {noun} yet")]
    said = f"generation {observed} of {generation}: the operator has not seen the newest spec yet"
    return [*pairs, ("Observed", said)]


def policy_data(policy: CompactionPolicy, now: datetime, coordinator: Coordination = UNKNOWN) -> Data:
    """One policy: bytes, seconds and RFC 3339 times; None for what is not known. The status of a policy that no
    operator coordinates, or whose spec the operator has not seen, is of a former time: `coordinator` and `observed` say
    so.
    """
    status = policy.status
    ready = get_condition(status.conditions, ConditionType.READY)
    wait, debt, plan = status.waiting, status.debt, status.plan
    return {
        "namespace": policy.metadata.namespace,
        "name": policy.metadata.name,
        "store": status.store,
        "ready": ready.status.value if ready is not None else None,
        "reason": ready.reason if ready is not None else None,
        "message": ready.message if ready is not None else None,
        "reasonSince": time_text(status.reason_since),
        "observed": is_observed(policy),
        "coordinator": coordinator_data(coordinator, now),
        "debtBytes": debt.bytes if debt is not None else None,
        "debtSources": debt.sources if debt is not None else None,
        "debtTargets": debt.targets if debt is not None else None,
        "debtTenants": [tenant.to_object() for tenant in debt.tenants] if debt is not None else [],
        "measures": {measure.name: measure.value for measure in debt.measures} if debt is not None else {},
        "oldestDebtAt": time_text(status.oldest_debt_at),
        "oldestDebtSeconds": seconds_between(status.oldest_debt_at, now),
        "active": status.active,
        "progressPercent": status.progress_percent,
        "queued": status.queued,
        "faulty": status.faulty,
        "quarantined": len(status.quarantined),
        "waiting": None
        if wait is None
        else {"reason": wait.reason, "seconds": seconds_between(wait.since, now), "message": wait.message},
        "etaSeconds": status.eta_seconds,
        "costBytes": plan.cost_bytes if plan is not None and is_current(policy) else None,
        "approval": plan.approval.value if plan is not None and plan.approval is not None else None,
        "nextScanSeconds": _next_look(policy, now),
        "nextPlanAt": time_text(status.next_schedule_time),
        "nextPlanSeconds": seconds_between(now, status.next_schedule_time),
        "nextWindowAt": time_text(status.next_window_time),
        "nextWindowSeconds": seconds_between(now, status.next_window_time),
        "lastSuccessAt": time_text(status.last_success_time),
        "lastSuccessSeconds": seconds_between(status.last_success_time, now),
        "bytesReclaimed": status.bytes_reclaimed,
        "cpuSeconds": status.cost.cpu_seconds if status.cost is not None else None,
        "gainPerCpuSecond": status.cost.gain_per_cpu_second if status.cost is not None else None,
        "workers": status.workers,
        "ageSeconds": seconds_between(policy.metadata.creation_timestamp, now),
    }


def is_current(policy: CompactionPolicy) -> bool:
    """Return whether anything of the newest plan with jobs is still to be done."""
    status = policy.status
    pending = status.plan is not None and status.plan.approval is PlanApproval.PENDING
    return pending or status.active + status.queued > 0


def _next_look(policy: CompactionPolicy, now: datetime) -> int | None:
    """Seconds until the next scan; scans without a change are recorded late, so whole intervals are added."""
    looked, interval = policy.status.last_sense_time, float(policy.spec.trigger.interval)
    if looked is None:
        return None
    return round(interval - (now - looked).total_seconds() % interval)


def _wait(wait: Data | None) -> str:
    return "-" if wait is None else f"{wait['reason']} ({format_age(wait['seconds'])})"


def _next(data: Data) -> str:
    """Say what comes next: nothing while no operator coordinates; else the observed spec, starting jobs, a plan, a
    scan.
    """
    if Leadership(data["coordinator"]["state"]) in MISSING:
        return "no coordinator"
    if not data["observed"]:
        return "spec not observed"
    for key, what in (("nextWindowSeconds", "window"), ("nextPlanSeconds", "plan"), ("nextScanSeconds", "scan")):
        if data[key] is not None:
            return f"{what} in {format_age(data[key])}"
    return "-"


_FLEET = (
    OutputColumn("name", "Name"),
    OutputColumn("ready", "Ready", optional),
    OutputColumn("reason", "Reason", optional),
    OutputColumn("debtBytes", "Debt", optional_bytes),
    OutputColumn("oldestDebtSeconds", "Oldest", age_text),
    OutputColumn("active", "Active"),
    OutputColumn("queued", "Queued"),
    OutputColumn("faulty", "Faulty"),
    OutputColumn("waiting", "Waiting", _wait),
    OutputColumn("etaSeconds", "ETA", age_text),
    OutputColumn("costBytes", "Cost", optional_bytes),
    OutputColumn("next", "Next"),
    OutputColumn("lastSuccessSeconds", "Last success", age_text),
    OutputColumn("bytesReclaimed", "Reclaimed", optional_bytes),
)
_WIDE = (
    OutputColumn("cpuSeconds", "CPU", cpu_text),
    OutputColumn("gainPerCpuSecond", "Gain/CPU s", optional_bytes),
    OutputColumn("workers", "Workers"),
    OutputColumn("quarantined", "Quarantined"),
    OutputColumn("store", "Store", optional),
    OutputColumn("approval", "Approval", optional),
    OutputColumn("message", "Message", optional),
)
_JOBS = (
    OutputColumn("name", "Job"),
    OutputColumn("state", "State"),
    OutputColumn("progress", "Progress", lambda percent: "-" if percent is None else f"{percent}%"),
    OutputColumn("worker", "Worker", optional),
    OutputColumn("token", "Token"),
    OutputColumn("failures", "Failures"),
    OutputColumn("estimatedBytes", "Copies", optional_bytes),
    OutputColumn("bytesReclaimed", "Reclaimed", optional_bytes),
    OutputColumn("target", "Target"),
    OutputColumn("reason", "Reason", optional),
    OutputColumn("startedSeconds", "Started", age_text),
    OutputColumn("finishedSeconds", "Ended", age_text),
    OutputColumn("tookSeconds", "Took", age_text),
    OutputColumn("cpuSeconds", "CPU", cpu_text),
    OutputColumn("ageSeconds", "Age", age_text),
)


def fleet_row(data: Data) -> Data:
    """A row of the table over all policies, from `policy_data`."""
    return data | {"next": _next(data)}


def fleet_columns(*, namespaces: bool, wide: bool) -> tuple[OutputColumn, ...]:
    """Columns of the table over all policies."""
    return ((NAMESPACE,) if namespaces else ()) + _FLEET + (_WIDE if wide else ())


def totals_data(rows: Sequence[Data]) -> Data:
    """The sums over policies, from `policy_data`; what is not known of one counts as nothing."""

    def total(key: str) -> int:
        return sum(row[key] or 0 for row in rows)

    return {
        "policies": len(rows),
        "notReady": sum(row["ready"] != "True" for row in rows),
        **{key: total(key) for key in ("debtBytes", "active", "queued", "faulty", "quarantined", "bytesReclaimed")},
        "cpuSeconds": round(sum(row["cpuSeconds"] or 0.0 for row in rows), 3),
    }


def totals_line(totals: Data, catalogs: Sequence[Data]) -> str:
    """The sums in one line, below the tables."""
    run, wait = plural(totals["active"], "job runs", "jobs run"), plural(totals["queued"], "waits", "wait")
    line = (
        f"{plural(totals['policies'], 'policy', 'policies')}, {totals['notReady']} not ready: "
        f"{format_bytes(totals['debtBytes'])} of debt; {run}, {wait}, {totals['faulty']} faulty; "
        f"{format_bytes(totals['bytesReclaimed'])} reclaimed"
    )
    line += f" for {format_cpu(totals['cpuSeconds'])} of CPU" if totals["cpuSeconds"] else ""
    if not catalogs:
        return line
    behind = sum(row["behindVersions"] or 0 for row in catalogs)
    unready = sum(row["ready"] != "True" for row in catalogs)
    return f"{line}; {plural(len(catalogs), 'catalog')}, {unready} not ready: {plural(behind, 'version')} behind"


def job_data(job: CompactionJob, now: datetime, leases: Sequence[Lease] | None = None) -> Data:
    """One job, in exact values; seconds since its newest attempt started, since it ended, and since its creation.
    `leases`: of its namespace, which have the exact progress; the status has it only now and then.
    """
    status = job.status
    ready = get_condition(status.conditions, ConditionType.READY)
    return {
        "name": job.metadata.name,
        "state": status.state.value,
        "progress": progress_percent(job, leases),
        "worker": status.worker,
        "token": status.fencing_token,
        "failures": status.failures,
        "estimatedBytes": job.spec.estimated_bytes,
        "bytesReclaimed": status.receipt.bytes_reclaimed if status.receipt is not None else None,
        "level": job.spec.level,
        "target": job.spec.target,
        "reason": ready.reason if ready is not None else None,
        "startedSeconds": seconds_between(status.assigned_at, now),
        "finishedSeconds": seconds_between(status.finished_at, now),
        "tookSeconds": seconds_between(status.assigned_at, status.finished_at),
        "cpuSeconds": status.usage.cpu_seconds if status.usage is not None else None,
        "ageSeconds": seconds_between(job.metadata.creation_timestamp, now),
    }


# Runs of a policy, and rounds of a catalog.

_RUNNING: Final = "running"


def run_data(run: RunRecord, now: datetime) -> dict[str, Any]:
    """One run of a policy, in exact values; `givenUp` once it has ended."""
    # While it runs, a job that has neither succeeded nor is parked is one that waits or works.
    ended = run.ended_at is not None
    seconds = seconds_between(run.started_at, run.ended_at or now)
    return {
        "plan": run.plan,
        "startedAt": time_text(run.started_at),
        "endedAt": time_text(run.ended_at),
        "approvedAt": time_text(run.approved_at),
        "reason": run.reason,
        "approvedBy": run.approved_by,
        "debtBytes": run.debt_bytes,
        "tookSeconds": seconds if ended else None,
        "took": age_text(seconds) if ended else f"{_RUNNING} {age_text(seconds)}",
        "jobs": run.jobs,
        "succeeded": run.succeeded,
        "faulty": run.faulty,
        "givenUp": max(0, run.jobs - run.succeeded - run.faulty) if ended else None,
        "bytesRead": run.bytes_read,
        "bytesWritten": run.bytes_written,
        "bytesReclaimed": run.bytes_reclaimed,
        "workSeconds": run.seconds,
        "cpuSeconds": run.cpu_seconds,
        "driverPeakBytes": run.driver_peak_bytes,
        "executorPeakBytes": run.executor_peak_bytes,
        "work": [item.to_object() for item in run.work],
    }


def round_data(record: RoundRecord) -> dict[str, Any]:
    """One round of a catalog, in exact values."""
    seconds = seconds_between(record.started_at, record.ended_at)
    return {
        "startedAt": time_text(record.started_at),
        "endedAt": time_text(record.ended_at),
        "tookSeconds": seconds,
        "took": age_text(seconds),
        "trigger": record.trigger.value,
        "compaction": record.compaction,
        "propagation": record.propagation,
        "versionsCut": record.versions_cut,
        "bytesCut": record.bytes_cut,
    }


def sorted_jobs(jobs: Iterable[CompactionJob]) -> list[CompactionJob]:
    """Return the jobs in the order of the table: what runs first, then what waits, what is parked, and what is done."""
    order = (JobState.IN_PROGRESS, JobState.ABANDONED, JobState.UNASSIGNED, JobState.FAULTY, JobState.SUCCEEDED)
    return sorted(jobs, key=lambda job: (order.index(job.status.state), job.metadata.name))


def show_policy(
    policy: CompactionPolicy,
    jobs: Sequence[CompactionJob],
    now: datetime,
    coordinator: Coordination = UNKNOWN,
    leases: Sequence[Lease] | None = None,
) -> None:
    """All about one policy as text."""
    data = policy_data(policy, now, coordinator)
    first, *rest = _pairs(policy, data, now)
    print_pairs([first, *outdated_pairs(policy, "policy", coordinator, now), *rest])
    if jobs:
        click.echo()
        show_jobs(jobs, now, leases)


def show_jobs(jobs: Iterable[CompactionJob], now: datetime, leases: Sequence[Lease] | None = None) -> None:
    """Jobs as a table."""
    print_table([job_data(job, now, leases) for job in sorted_jobs(jobs)], _JOBS)


def _pairs(policy: CompactionPolicy, data: Data, now: datetime) -> list[tuple[str, str]]:
    name = f"{data['namespace']}/{data['name']}"
    since, kind = since_text(policy.status, now), kind_of(policy.spec.store)
    run, wait = plural(data["active"], "runs", "run"), plural(data["queued"], "waits", "wait")
    run += f" ({data['progressPercent']}%)" if data["progressPercent"] is not None else ""
    pairs = [
        ("Policy", f"{name} ({data['store'] or 'not scanned yet'})"),
        ("State", f"{data['reason'] or 'unknown'}{since}" + (f": {data['message']}" if data["message"] else "")),
        ("Debt", _debt(policy, data)),
        *kind.rows(policy.status),
        ("Jobs", f"{run}, {wait}, {data['faulty']} faulty"),
    ]
    pairs += _wait_pairs(policy, data, now)
    if data["etaSeconds"] is not None:
        pairs.append(("ETA", age_text(data["etaSeconds"])))
    plan = policy.status.plan
    if plan is not None and plan.hash and is_current(policy):
        cost, gain = format_bytes(plan.cost_bytes), format_bytes(plan.gain_bytes)
        approval = f"; approval: {plan.approval}" if plan.approval is not None else ""
        pairs.append(("Plan", f"{plan.hash}: {plural(plan.jobs, 'job')}, copies {cost}, reclaims {gain}{approval}"))
    granted, limit = policy.status.granted_bytes_per_second, policy.spec.limits.bytes_per_second
    if limit is not None:
        pairs.append(("Speed", f"{format_bytes(granted or 0)} of {format_bytes(limit)} per second granted"))
    pairs.append(("Next", _next(data)))
    pairs.append(("Workers", f"{data['workers']} of {policy.spec.workers.max}"))
    pairs += _worker_pairs(policy)
    done = policy.status.succeeded
    success = f", the last {age_text(data['lastSuccessSeconds'])} ago" if data["lastSuccessSeconds"] is not None else ""
    pairs.append(("Reclaimed", f"{format_bytes(data['bytesReclaimed'])} by {plural(done, 'job')}{success}"))
    if data["cpuSeconds"] is not None:
        pairs.append(("Cost", format_cost(data["cpuSeconds"], data["gainPerCpuSecond"])))
    if data["quarantined"]:
        more = f"kubectl compaction quarantine {data['name']} -n {data['namespace']}"
        pairs.append(("Quarantined", f"{plural(data['quarantined'], kind.nouns.source)}: {more}"))
    alarms = {measure.alarm.reason for measure in kind.measures if measure.alarm is not None}
    return pairs + [
        ("Lost" if error.reason in alarms else "Not planned", f"{error.reason}: {error.message}")
        for error in policy.status.target_errors
    ]


def _worker_pairs(policy: CompactionPolicy) -> list[tuple[str, str]]:
    """Workers of which there is more to say than that they are there."""
    status = policy.status
    grown = (
        ("drivers get", status.driver_memory_bytes, "one"),
        ("executors get", status.executor_memory_bytes, "some"),
    )
    pairs = [
        ("Worker", f"{status.name} waits ({status.reason}): {status.message}")
        for status in policy.status.worker_statuses
        if status.reason
    ]
    pairs += [("Worker", f"{status.name}: {status.ui}") for status in policy.status.worker_statuses if status.ui]
    pairs += [
        ("Memory", f"{who} {format_bytes(now)}: {some} ran out of it") for who, now, some in grown if now is not None
    ]
    return pairs


def _wait_pairs(policy: CompactionPolicy, data: Data, now: datetime) -> list[tuple[str, str]]:
    """Each reason for which something waits; the main one alone when that is all the operator wrote."""
    waits = [
        ("Waiting", f"{wait.count} for {wait.reason} ({age_text(seconds_between(wait.since, now))}): {wait.message}")
        for wait in policy.status.waits
    ]
    if not waits and data["waiting"] is not None:
        waits.append(("Waiting", f"{_wait(data['waiting'])}: {data['waiting']['message']}"))
    return waits


def _debt(policy: CompactionPolicy, data: Data) -> str:
    debt = policy.status.debt
    if debt is None:
        return "unknown"
    if not debt.bytes and not debt.sources:
        return "none"
    oldest = f", the oldest for {age_text(data['oldestDebtSeconds'])}" if data["oldestDebtSeconds"] is not None else ""
    nouns = kind_of(policy.spec.store).nouns
    where = f"{plural(debt.sources, nouns.source)} of {plural(debt.targets, nouns.target, nouns.targets)}"
    return f"{format_bytes(debt.bytes)} in {where}{oldest}"
