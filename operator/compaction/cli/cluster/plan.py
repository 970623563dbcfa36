"""`plan` and `approve`: the newest plan of a policy, and carrying it out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from compaction.api.base import format_timestamp
from compaction.api.enums import Approval, JobState, PlanApproval
from compaction.api.job.job import CompactionJob
from compaction.api.names import ANNOTATION_APPROVE, ANNOTATION_APPROVED_BY, LABEL_PLAN
from compaction.api.policy.policy import CompactionPolicy, LeftOutStatus, PlanStatus
from compaction.api.text.printing import format_age, format_bytes, format_cost, plural
from compaction.api.text.quantities import Duration
from compaction.cli.cluster.flags import CommandTarget, ObjectKind, cluster_options, complete, kind_and_name
from compaction.cli.cluster.status_view import is_current, job_data, show_jobs, sorted_jobs
from compaction.cli.lazy import EXIT_DATA_ERROR, report
from compaction.cli.output import OutputColumn, OutputFormat, emit, optional, optional_bytes, output_option, print_table
from compaction.cli.values import DurationParameter
from compaction.core.explain.words import left_out_words
from compaction.core.meaning import meaning_of
from compaction.errors import InvalidManifestError
from compaction.kube.errors import ClusterCommandError
from compaction.registry import kind_of

if TYPE_CHECKING:
    from compaction.cli.cluster.access import ClusterAccess

# `plan`: the newest plan of a policy: its hash, its cost and gain, its jobs, and a reason for all that was left out.
#
# Exit codes: 0 shown; 1 it could not be read; 2 wrong usage.

_WORK: Final = (
    OutputColumn("job", "Job"),
    OutputColumn("target", "Target"),
    OutputColumn("groups", "Groups"),
    OutputColumn("obsolete", "Deletes"),
    OutputColumn("costBytes", "Copies", optional_bytes),
    OutputColumn("gainBytes", "Reclaims", optional_bytes),
)
_LEFT_OUT: Final = (
    OutputColumn("reason", "Left out"),
    OutputColumn("count", "Count"),
    OutputColumn("example", "For example", optional),
    OutputColumn("dueAt", "Due", optional),
    OutputColumn("missing", "Missing", lambda count: str(count or "-")),
    OutputColumn("meaning", "Why"),
)


@click.command("plan")
@click.argument("policy", required=False, shell_complete=complete("policies"))
@click.option(
    "-f",
    "--file",
    "source",
    type=click.File("r", encoding="utf-8"),
    help="What its policies and catalogs would do now (- reads standard input).",
)
@click.option("--against", metavar="NAME", help="With -f: the object to compare with; default: that of the same name.")
@click.option("--timeout", type=DurationParameter(), help="With -f: give up after this time; default: 5m.")
@cluster_options()
@output_option()
def command(
    *,
    policy: str | None,
    source: TextIO | None,
    against: str | None,
    timeout: Duration | None,
    target: CommandTarget,
    output: OutputFormat,
) -> int:
    """Show the newest plan of POLICY: hash, jobs, cost, gain, and why every other candidate was left out.

    With -f show what a changed spec would do now, beside what is in force. The operator computes both from scans of the
    same moment; nothing is created, and what is in force goes on.

    Example: kubectl compaction plan -f new.yaml
    """
    from compaction.cli.cluster.access import ask  # has a client of the API, which help does without

    if (policy is None) == (source is None):
        raise click.UsageError("give a policy, or -f FILE")
    if source is not None:
        return _preview(source, against, WITHIN if timeout is None else timeout, target, output)
    if against is not None or timeout is not None:
        raise click.UsageError("--against and --timeout are for -f FILE")
    assert policy is not None, "one of the two"

    async def read(cluster: ClusterAccess) -> tuple[CompactionPolicy, list[CompactionJob]]:
        return await cluster.policy(policy), await cluster.jobs(policy)

    found, jobs = ask(target, read)
    if output is OutputFormat.TABLE:
        _show(found, jobs, datetime.now(UTC))
    else:
        emit(_data(found, jobs, datetime.now(UTC)), output)
    return 0


WITHIN: Final = Duration("5m")
"""For so long a preview is waited for."""


def _preview(source: TextIO, against: str | None, within: Duration, target: CommandTarget, output: OutputFormat) -> int:
    """Show what the objects of a file would do; returns the exit code."""
    from compaction.cli.cluster.access import ask
    from compaction.cli.cluster.preview import ask_about, proposed_in
    from compaction.cli.previews import show_previews

    try:
        objects = proposed_in(source.read(), source.name)
    except (InvalidManifestError, UnicodeDecodeError) as error:
        raise click.UsageError(str(error)) from error
    if against is not None and len(objects) != 1:
        raise click.UsageError(f"--against is for one object, and {source.name} holds {len(objects)}")
    found, code = ask(
        target,
        lambda cluster: ask_about(
            cluster, objects, source.name, against=against, namespace=target.namespace, within=float(within)
        ),
    )
    show_previews(found, output)
    return code


def _is_of(plan: PlanStatus, job: CompactionJob) -> bool:
    return bool(plan.hash) and job.metadata.labels.get(LABEL_PLAN) == plan.hash


def _of_plan(plan: PlanStatus, jobs: list[CompactionJob]) -> tuple[list[CompactionJob], int]:
    """The unfinished jobs of the plan, and how many others there are."""
    unfinished = [job for job in jobs if job.status.state is not JobState.SUCCEEDED]
    own = [job for job in unfinished if _is_of(plan, job)]
    return own, len(unfinished) - len(own)


def _data(policy: CompactionPolicy, jobs: list[CompactionJob], now: datetime) -> dict[str, Any]:
    plan = policy.status.plan or PlanStatus()
    return {
        "namespace": policy.metadata.namespace,
        "policy": policy.metadata.name,
        **plan.to_object(),
        "plannedJobs": plan.jobs,
        "cost": policy.status.cost.to_object() if policy.status.cost is not None else None,
        "jobs": [job_data(job, now) for job in sorted_jobs(jobs) if _is_of(plan, job)],
        "leftOut": [_left_out(row) for row in plan.left_out],
        "awaitsApproval": plan.approval is PlanApproval.PENDING,
    }


def _left_out(row: LeftOutStatus) -> dict[str, Any]:
    meaning = meaning_of(left_out_words(), row.reason)
    due = None if row.due_at is None else format_timestamp(row.due_at)
    return {
        "reason": row.reason,
        "count": row.count,
        "example": row.example,
        "dueAt": due,
        "missing": row.missing,
        "meaning": meaning.says,
    }


def _show(policy: CompactionPolicy, jobs: list[CompactionJob], now: datetime) -> None:
    plan = policy.status.plan
    if plan is None:
        click.echo(f"No plan of {policy.metadata.name} yet: its store was not scanned.")
        return
    click.echo(summary(policy, plan, now))
    cost = policy.status.cost
    if cost is not None:
        click.echo(f"Finished jobs took {format_cost(cost.cpu_seconds, cost.gain_per_cpu_second)}.")
    unfinished, others = _of_plan(plan, jobs)
    if plan.approval is PlanApproval.PENDING:
        click.echo()
        show_work(plan)
    if unfinished:
        click.echo()
        show_jobs(unfinished, now)
    if others:
        where = f"{policy.metadata.name} -n {policy.metadata.namespace}"
        of_others = plural(others, "unfinished job is", "unfinished jobs are")
        click.echo(f"{of_others} of other plans, or created by hand: kubectl compaction status {where}")
    if plan.left_out:
        click.echo()
        waits = any(
            row.due_at is not None for row in plan.left_out
        )  # of some kinds sources wait for a time, or for more
        columns = [item for item in _LEFT_OUT if waits or item.key not in {"dueAt", "missing"}]
        print_table([_left_out(row) for row in plan.left_out], columns)
    for conflict in policy.status.conflicts:
        click.echo(conflict.message)
    if plan.approval is PlanApproval.PENDING:
        click.echo(f"\n{_approval(policy, plan, now)}")


def summary(policy: CompactionPolicy, plan: PlanStatus, now: datetime) -> str:
    """The plan in one line."""
    name = f"{policy.metadata.namespace}/{policy.metadata.name}"
    if not plan.hash:
        return f"No plan of {name} had a job yet.{_not_due(policy, plan)}"
    age = f" ({format_age((now - plan.created_at).total_seconds())} ago)" if plan.created_at is not None else ""
    cost, gain = format_bytes(plan.cost_bytes), format_bytes(plan.gain_bytes)
    line = f"Plan {plan.hash} of {name}{age}: {plural(plan.jobs, 'job')}, copies {cost}, reclaims {gain}"
    return line if is_current(policy) else f"{line}; nothing of it is left to do"


def _not_due(policy: CompactionPolicy, plan: PlanStatus) -> str:
    """Say what waits for its time, and until when."""
    waiting = [(row.due_at, row) for row in plan.left_out if row.due_at is not None]
    if not waiting:
        return ""
    due, first = min(waiting, key=lambda item: item[0])
    source = kind_of(policy.spec.store).nouns.source
    what = plural(sum(row.count for _, row in waiting), f"{source} waits", f"{source}s wait")
    sooner = f", or when {first.missing} more have come" if first.missing else ""
    return f" Nothing is due yet: {what}; next due at {format_timestamp(due)}{sooner}."


def show_work(plan: PlanStatus) -> None:
    """The jobs that a plan would create, those with the largest gain."""
    print_table([item.to_object() for item in plan.work], _WORK)
    more = plan.jobs - len(plan.work)
    if more > 0:
        click.echo(f"and {more} more with a smaller gain")


def _approval(policy: CompactionPolicy, plan: PlanStatus, now: datetime) -> str:
    name, namespace = policy.metadata.name, policy.metadata.namespace
    if policy.metadata.annotations.get(ANNOTATION_APPROVE) == plan.hash:
        return "It was approved; the coordinator scans the store again before it creates the jobs."
    since = plan.waiting_since
    age = f"{format_age((now - since).total_seconds())} " if since is not None else ""
    return f"It has waited {age}for approval: kubectl compaction approve {name}={plan.hash} -n {namespace}"


# `approve`: carry out plans that wait for approval.
#
# Exit codes: 0 approved (or it was already); 1 one was not, and stderr says which and why; 2 wrong usage; 130 not
# confirmed.


@click.command("approve")
@click.argument("plans", metavar="[POLICY[=HASH]]...", nargs=-1, shell_complete=complete("policies"))
@click.option("-l", "--selector", metavar="SELECTOR", help="Policies with these labels whose plan waits.")
@click.option("-y", "--yes", is_flag=True, help="Approve the current plans without a prompt.")
@cluster_options()
def approve_command(*, plans: tuple[str, ...], selector: str | None, yes: bool, target: CommandTarget) -> int:
    """Approve the plan of each POLICY; with =HASH, only if it is still the current one.

    Without a hash the plans are shown first, and you are asked; in a script give hashes or --yes. One that cannot be
    approved does not hold up the others.

    Example: kubectl compaction approve logs=497a31287346bc19 events=4d5e00c0ffee1234
    """
    from compaction.cli.cluster.access import ask

    if bool(plans) == (selector is not None):
        raise click.UsageError("give policies, or -l SELECTOR")
    wanted = dict(_named(text) for text in plans)
    policies, code = ask(target, lambda cluster: _policies(cluster, tuple(wanted), selector))
    chosen: list[tuple[CompactionPolicy, PlanStatus]] = []
    for policy in policies:
        name = policy.metadata.name
        try:
            plan = plan_to_approve(policy, wanted.get(name))
        except ClusterCommandError as error:
            report(error)
            code = EXIT_DATA_ERROR
            continue
        if plan is None:
            click.echo(f"policy {name}: its plan was approved already")
        else:
            click.echo(summary(policy, plan, datetime.now(UTC)))
            chosen.append((policy, plan))
    unnamed = [plan for policy, plan in chosen if wanted.get(policy.metadata.name) is None]
    if unnamed and not yes:
        _confirm(unnamed)
    return (ask(target, lambda cluster: _approve(cluster, chosen)) if chosen else 0) or code


async def _approve(cluster: ClusterAccess, chosen: Sequence[tuple[CompactionPolicy, PlanStatus]]) -> int:
    """Approve each plan, and say so; one that cannot be approved does not hold up the others."""
    from compaction.errors import CompactionError
    from compaction.kube.client.api import COMPACTION_POLICIES

    user, code = await cluster.user(), 0
    for policy, plan in chosen:
        name = policy.metadata.name
        try:
            await cluster.patch(COMPACTION_POLICIES, name, approval_patch(plan, user), namespace=cluster.namespace)
        except CompactionError as error:
            report(f"policy {name}: {error}")
            code = EXIT_DATA_ERROR
            continue
        click.echo(
            f"policy {name}: approved; the store is scanned again, and if the plan is still {plan.hash}, its "
            f"{plural(plan.jobs, 'job is', 'jobs are')} created; a changed store makes another plan, which waits again"
        )
    return code


def approval_patch(plan: PlanStatus, user: str) -> dict[str, Any]:
    """The patch of a policy that approves a plan, with the claim of who did."""
    # With the hash, so that the claim of an approval of before is none about this one.
    annotations = {ANNOTATION_APPROVE: plan.hash, ANNOTATION_APPROVED_BY: f"{plan.hash}/{user}"}
    return {"metadata": {"annotations": annotations}}


def _named(text: str) -> tuple[str, str | None]:
    """Split `POLICY=HASH`."""
    name, _, plan = text.partition("=")
    return kind_and_name(name, ObjectKind.POLICY)[1], plan or None


async def _policies(
    cluster: ClusterAccess, names: tuple[str, ...], selector: str | None
) -> tuple[list[CompactionPolicy], int]:
    """The policies, and the exit code so far. Of those with the labels only these whose plan waits."""
    if selector is not None:
        found = [policy for policy in await cluster.policies(labels=selector) if _waits(policy)]
        if not found:
            raise ClusterCommandError("no plan of a policy with these labels waits for approval")
        return found, 0
    policies, code = [], 0
    for name in names:
        try:
            policies.append(await cluster.policy(name))
        except ClusterCommandError as error:
            report(error)
            code = EXIT_DATA_ERROR
    return policies, code


def _waits(policy: CompactionPolicy) -> bool:
    return policy.status.plan is not None and policy.status.plan.approval is PlanApproval.PENDING


def plan_to_approve(policy: CompactionPolicy, wanted: str | None) -> PlanStatus | None:
    """The plan that waits; None when it, or the `wanted` one, was approved already.

    Raises ClusterCommandError when nothing waits for approval, or something else than `wanted` does.
    """
    name, plan, namespace = policy.metadata.name, policy.status.plan, policy.metadata.namespace
    if policy.spec.approval is not Approval.MANUAL:
        raise ClusterCommandError(f"policy {name} carries out its plans by itself (spec.approval: Auto)")
    if plan is None or not plan.hash or plan.approval is None:
        raise ClusterCommandError(
            f"No plan of policy {name} waits for approval. Reason: kubectl compaction why {name} -n {namespace}"
        )
    if wanted is not None and wanted != plan.hash:
        raise ClusterCommandError(
            f"No current plan has hash {wanted}; the current one is {plan.hash}. "
            f"Review: kubectl compaction plan {name} -n {namespace}"
        )
    return plan if plan.approval is PlanApproval.PENDING else None


def _confirm(plans: Sequence[PlanStatus]) -> None:
    if not sys.stdin.isatty():
        hashes = ", ".join(plan.hash for plan in plans)
        raise click.UsageError(f"cannot prompt (stdin is not a terminal): pass =HASH ({hashes}) or --yes")
    for plan in plans:
        show_work(plan)
    click.confirm("Approve it?" if len(plans) == 1 else f"Approve all {len(plans)}?", abort=True)
