"""`run-now`, `scan`, `suspend` and `resume`: what many policies and catalogs are asked for at once.

Exit codes: 0 all of them took it (with --wait: and it is done); 1 one did not, and stderr says which and why; 2 wrong
usage. What one object answers does not hold up the others.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from compaction.api.names import ANNOTATION_SCAN, CATALOG_KIND
from compaction.api.requests import RequestOutcome, RequestStatus, run_now_annotations
from compaction.api.text.printing import format_bytes, mark_of, plural
from compaction.api.text.quantities import Duration
from compaction.cli.cluster.flags import CommandTarget, cluster_options, complete
from compaction.cli.lazy import EXIT_DATA_ERROR, report, warn
from compaction.cli.values import DurationParameter
from compaction.kube.errors import ClusterCommandError

if TYPE_CHECKING:
    from compaction.api.catalog.catalog import CatalogCompaction
    from compaction.api.policy.policy import CompactionPolicy
    from compaction.cli.cluster.access import ClusterAccess

    Subject = CompactionPolicy | CatalogCompaction

Command = TypeVar("Command", bound=Callable[..., Any])
READ_EVERY: Final = 1.0
"""Seconds between two reads of --wait: one list of each kind, however many objects are waited for."""
SILENT_AFTER: Final = 30.0
"""Seconds without an answer after which --wait says that an operator may be missing."""


# The objects that a command is about, as kubectl lets one name them: NAME..., -l SELECTOR, or --all.


@dataclass(frozen=True, slots=True)
class ObjectSelection:
    """Exactly one of the three."""

    names: tuple[str, ...] = ()
    selector: str | None = None
    everything: bool = False


def selection_options(command: Command) -> Command:
    """NAME..., -l and --all, passed to the command as `selection: ObjectSelection`."""

    @functools.wraps(command)
    def choose(*, names: tuple[str, ...], selector: str | None, everything: bool, **more: Any) -> Any:
        if bool(names) + (selector is not None) + everything != 1:
            raise click.UsageError("give names, or -l SELECTOR, or --all")
        if names and more["target"].all_namespaces:
            raise click.UsageError("one object is in one namespace: give -n, not -A")
        return command(selection=ObjectSelection(names, selector, everything), **more)

    result: Any = cluster_options(all_namespaces=True)(choose)
    for option in (
        click.option("--all", "everything", is_flag=True, help="All policies and catalogs."),
        click.option("-l", "--selector", metavar="SELECTOR", help="Those with these labels, such as team=blue."),
        click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete("policies catalogs")),
    ):
        result = option(result)
    return result  # type: ignore[no-any-return]


def wait_options(what: str) -> Callable[[Command], Command]:
    """--wait, and --timeout for it."""

    def decorate(command: Command) -> Command:
        timeout = click.option("--timeout", type=DurationParameter(), help="With --wait: give up after this time.")
        wait = click.option("--wait", is_flag=True, help=f"Wait until {what}.")
        return wait(timeout(command))

    return decorate


async def selected(cluster: ClusterAccess, selection: ObjectSelection) -> tuple[list[Subject], int]:
    """The objects that are there, and the exit code so far: names that are not there are reported."""
    if not selection.names:
        found: list[Subject] = [*await cluster.policies(labels=selection.selector)]
        catalogs = await cluster.catalogs(labels=selection.selector)
        if catalogs is None:
            warn("catalogs are left out: this user may not list them, or the cluster has no such kind")
        found += catalogs or []
        if not found:
            raise ClusterCommandError("no policy and no catalog matches")
        # One that an older definition let in was named, and did not take what all were asked for.
        return found, EXIT_DATA_ERROR if cluster.left_out else 0
    subjects: list[Subject] = []
    code = 0
    for text in dict.fromkeys(selection.names):
        try:
            subjects.append(await cluster.policy_or_catalog(text, only_one=True))
        except ClusterCommandError as error:
            report(error)
            code = EXIT_DATA_ERROR
    return subjects, code


def _is_catalog(subject: Subject) -> bool:
    return subject.kind == CATALOG_KIND


def _key(subject: Subject) -> tuple[str, str, str]:
    return subject.kind, subject.metadata.namespace, subject.metadata.name


def _called(subject: Subject, *, namespaces: bool) -> str:
    where = f"{subject.metadata.namespace}/" if namespaces else ""
    return f"{'catalog' if _is_catalog(subject) else 'policy'} {where}{subject.metadata.name}"


async def _each(
    subjects: Sequence[Subject], change: Callable[[Subject], Awaitable[str]], *, spaces: bool
) -> tuple[list[Subject], int]:
    """Change each, and say so; one that cannot be changed does not hold up the others."""
    from compaction.errors import CompactionError

    done: list[Subject] = []
    code = 0
    for subject in subjects:
        name = _called(subject, namespaces=spaces)
        try:
            click.echo(f"{name}: {await change(subject)}")
        except CompactionError as error:
            report(f"{name}: {error}")
            code = EXIT_DATA_ERROR
        else:
            done.append(subject)
    return done, code


async def _patch(cluster: ClusterAccess, subject: Subject, patch: dict[str, Any]) -> None:
    from compaction.kube.client.transport import CATALOG_COMPACTIONS, COMPACTION_POLICIES

    resource = CATALOG_COMPACTIONS if _is_catalog(subject) else COMPACTION_POLICIES
    await cluster.patch(resource, subject.metadata.name, patch, namespace=subject.metadata.namespace)


# Waiting: what each object says, until all have come to an end of what was asked for.

Verdict = tuple[bool, str]
"""Whether it ended as it should, and in words how."""


async def _wait(
    cluster: ClusterAccess,
    subjects: Sequence[Subject],
    judge: Callable[[Subject, Subject], Verdict | None],
    *,
    within: Duration | None,
    spaces: bool,
) -> int:
    """Until `judge` (the object before, and now) has a verdict about each; 1 when one is bad, or the time is over."""
    before = {_key(subject): subject for subject in subjects}
    waiting, code, began, hinted = dict(before), 0, time.monotonic(), False
    while waiting:
        now: list[Subject] = [*await cluster.policies()]
        catalogs = await cluster.catalogs() if any(map(_is_catalog, waiting.values())) else []
        present = {_key(subject): subject for subject in (*now, *(catalogs or ()))}
        for key, subject in tuple(waiting.items()):
            name = _called(subject, namespaces=spaces)
            found = present.get(key)
            if found is None and catalogs is None and _is_catalog(subject):
                continue  # they cannot be listed now, which says nothing about this one
            # One that is not valid any more is left out of the list as well, and named on stderr.
            gone = (False, "it was deleted, or is not valid any more")
            verdict = gone if found is None else judge(before[key], found)
            if verdict is None:
                continue
            # Said as it ends, in that order: the first of hundreds is news before the last.
            del waiting[key]
            done, words = verdict
            if done:
                click.echo(f"{name}: {words}")
            else:
                report(f"{name}: {words}")
                code = EXIT_DATA_ERROR
        passed = time.monotonic() - began
        if waiting and within is not None and passed >= float(within):
            for subject in waiting.values():
                report(f"{_called(subject, namespaces=spaces)}: not done within {within}")
            return EXIT_DATA_ERROR
        # Once one has answered an operator runs, and the others take the time they take.
        if waiting and not hinted and passed >= SILENT_AFTER and len(waiting) == len(before):
            warn("nothing has answered for 30 s: does an operator run? kubectl compaction status says")
            hinted = True
        if waiting:
            await asyncio.sleep(READ_EVERY)
    return code


# `run-now` and `scan`.


@click.command("run-now")
@selection_options
@click.option("--outside-window", is_flag=True, help="Do not wait for one of trigger.windows.")
@wait_options("what it starts has ended")
def run_now_command(
    *, selection: ObjectSelection, outside_window: bool, wait: bool, timeout: Duration | None, target: CommandTarget
) -> int:
    """Compact now what is due, whatever the schedule and the cooldown say; of a catalog, begin a round.

    Thresholds, limits and approval stand. The answer of the operator is in status.runNow and in an Event: one that can
    do nothing (suspended, outside of the windows, nothing due) says why.

    Example: kubectl compaction run-now -l team=blue --wait
    """
    value = _value()
    annotations = run_now_annotations(value, outside_window=outside_window)

    def judge(before: Subject, now: Subject) -> Verdict | None:
        answer = _answered(now.status.last_handled_run_now, now.status.run_now, value)
        if answer is None or answer.outcome is RequestOutcome.REFUSED:
            return None if answer is None else (False, f"{answer.reason}: {answer.message}")
        return _ended(before, now, answer)

    return _request(selection, target, annotations, "run requested", judge if wait else None, timeout)


@click.command("scan")
@selection_options
@wait_options("the scan has ended")
def scan_command(*, selection: ObjectSelection, wait: bool, timeout: Duration | None, target: CommandTarget) -> int:
    """Scan stores now, without a plan from what is found; of a catalog, ask the participants and cut nothing.

    Example: kubectl compaction scan logs --wait
    """
    value = _value()

    def judge(before: Subject, now: Subject) -> Verdict | None:
        answer = _answered(now.status.last_handled_scan, now.status.scan, value)
        if answer is None:
            return None
        return answer.outcome is RequestOutcome.ACCEPTED, f"{answer.reason}: {answer.message}"

    return _request(selection, target, {ANNOTATION_SCAN: value}, "scan requested", judge if wait else None, timeout)


def _value() -> str:
    """Another one each time, and for people the time of the request."""
    from compaction.leases.record import format_micro_time

    return format_micro_time(datetime.now(UTC))


def _answered(mark: str, answer: RequestStatus | None, value: str) -> RequestStatus | None:
    return answer if mark == mark_of(value) else None


def _ended(before: Subject, now: Subject, answer: RequestStatus) -> Verdict | None:
    """Return how the run ended; None while jobs of the policy run or wait, or its plan waits for approval."""
    from compaction.api.enums import PlanApproval
    from compaction.api.policy.policy import CompactionPolicy

    if not isinstance(now, CompactionPolicy) or not isinstance(before, CompactionPolicy):
        return True, f"{answer.reason}: {answer.message}"
    status = now.status
    # Not by what is waited for: on hold that is the hold.
    approval = status.plan is not None and status.plan.approval is PlanApproval.PENDING
    if status.active or status.queued or approval:
        return None
    faulty = status.faulty - before.status.faulty
    if faulty > 0:
        where = f"{now.metadata.name} -n {now.metadata.namespace}"
        return False, f"{plural(faulty, 'job is', 'jobs are')} parked: kubectl compaction why {where}"
    succeeded = status.succeeded - before.status.succeeded
    reclaimed = format_bytes(status.bytes_reclaimed - before.status.bytes_reclaimed)
    return True, f"{plural(succeeded, 'job has', 'jobs have')} succeeded, {reclaimed} reclaimed"


def _request(
    selection: ObjectSelection,
    target: CommandTarget,
    annotations: dict[str, str | None],
    said: str,
    judge: Callable[[Subject, Subject], Verdict | None] | None,
    timeout: Duration | None,
) -> int:
    async def change(cluster: ClusterAccess, subject: Subject) -> str:
        await _patch(cluster, subject, {"metadata": {"annotations": annotations}})
        return said

    return _change_all(selection, target, change, judge, timeout)


def _change_all(
    selection: ObjectSelection,
    target: CommandTarget,
    change: Callable[[ClusterAccess, Subject], Awaitable[str]],
    judge: Callable[[Subject, Subject], Verdict | None] | None,
    timeout: Duration | None,
) -> int:
    """Change each selected object; with `judge` wait until there is a verdict about each. Returns the exit code."""
    from compaction.cli.cluster.access import ask

    async def changing(cluster: ClusterAccess) -> int:
        spaces = target.all_namespaces
        subjects, code = await selected(cluster, selection)
        done, failed = await _each(subjects, lambda subject: change(cluster, subject), spaces=spaces)
        if judge is None:
            return code or failed
        return await _wait(cluster, done, judge, within=timeout, spaces=spaces) or code or failed

    return ask(target, changing)


# `suspend` and `resume`: a user's own edit of spec.suspend, of many at once.


@click.command("suspend")
@selection_options
@wait_options("nothing of them runs")
def suspend_command(*, selection: ObjectSelection, wait: bool, timeout: Duration | None, target: CommandTarget) -> int:
    """Suspend policies and catalogs: what runs ends, and nothing else starts until `resume`.

    Example: kubectl compaction suspend --all --wait
    """
    return _set_suspend(selection, target, suspend=True, wait=wait, timeout=timeout)


@click.command("resume")
@selection_options
def resume_command(*, selection: ObjectSelection, target: CommandTarget) -> int:
    """Resume policies and catalogs that are suspended."""
    return _set_suspend(selection, target, suspend=False, wait=False, timeout=None)


def _set_suspend(
    selection: ObjectSelection, target: CommandTarget, *, suspend: bool, wait: bool, timeout: Duration | None
) -> int:
    async def change(cluster: ClusterAccess, subject: Subject) -> str:
        if subject.spec.suspend == suspend:
            return "suspended already" if suspend else "not suspended"
        await _patch(cluster, subject, {"spec": {"suspend": suspend}})
        return "suspended" if suspend else "resumed"

    return _change_all(selection, target, change, _is_still if wait else None, timeout)


def _is_still(before: Subject, now: Subject) -> Verdict | None:
    """Return the verdict about a suspended object once the status of this spec says that nothing of it runs."""
    from compaction.api.conditions import get_condition
    from compaction.api.enums import ConditionType
    from compaction.api.policy.policy import CompactionPolicy

    if not now.spec.suspend:
        return False, "it was resumed meanwhile"
    if now.status.observed_generation < now.metadata.generation:
        return None
    if isinstance(now, CompactionPolicy):
        return None if now.status.active else (True, "nothing runs")
    ready = get_condition(now.status.conditions, ConditionType.READY)
    return (True, "nothing runs") if ready is not None and ready.reason in ("Suspended", "Held") else None


# `hold` and `release`: one Lease stops a whole operator.


@click.command("hold")
@click.option("--reason", required=True, help="Why, for the status of every policy and catalog.")
@click.option("--drain", is_flag=True, help="Stop the workers that run, too; their jobs are retried after the hold.")
@cluster_options()
def hold_command(*, reason: str, drain: bool, target: CommandTarget) -> None:
    """Put an operator on hold: it plans, starts and deletes nothing until `release`, also after a restart.

    -n names the operator's namespace, where it holds its Lease; without it, that of the only operator in the cluster.

    Example: kubectl compaction hold --reason "the bucket moves" --drain
    """
    from compaction.cli.cluster.access import ask

    if not reason.strip():
        raise click.UsageError("--reason says why, in words")
    namespace = ask(target, lambda cluster: cluster.hold(target.namespace, reason.strip(), drain=drain))
    what = "workers are stopped, and nothing starts" if drain else "jobs that run end, and nothing else starts"
    click.echo(f"operator in {namespace}: on hold; {what}. Release it: kubectl compaction release -n {namespace}")


@click.command("release")
@cluster_options()
def release_command(*, target: CommandTarget) -> None:
    """Release the hold of an operator: everything goes on. -n as with `hold`."""
    from compaction.cli.cluster.access import ask

    namespace = ask(target, lambda cluster: cluster.release(target.namespace))
    click.echo(f"operator in {namespace}: released")
