"""`quarantine` and `retry`: damaged sources, and faulty jobs that may try again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.base import format_timestamp
from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob
from compaction.api.names import ANNOTATION_RELEASE, ANNOTATION_RETRY
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.text.printing import format_age, mark_of, plural
from compaction.cli.cluster.flags import CommandTarget, cluster_options, complete
from compaction.cli.lazy import EXIT_DATA_ERROR, report
from compaction.cli.output import OutputColumn, OutputFormat, emit, optional, output_option, print_table
from compaction.kube.errors import ClusterCommandError
from compaction.leases.record import format_micro_time
from compaction.registry import kind_of

if TYPE_CHECKING:
    from compaction.cli.cluster.access import ClusterAccess

# `quarantine`: the damaged sources that are in quarantine.
#
# Exit codes: 0 shown or requested; 1 not, and stderr says why; 2 wrong usage.

RELEASE_ALL: Final = "all"
_NAMESPACE: Final = OutputColumn("namespace", "Namespace")
_COLUMNS: Final = (
    OutputColumn("policy", "Policy"),
    OutputColumn("target", "Target"),
    OutputColumn("source", "Source"),
    OutputColumn("index", "Index", optional),
    OutputColumn("offset", "Offset", optional),
    OutputColumn("reason", "Reason"),
    OutputColumn("seconds", "Age", format_age),
)
_MESSAGE: Final = OutputColumn("message", "Message")


@click.command("quarantine")
@click.argument("policy", required=False, shell_complete=complete("policies"))
@click.argument("sources", metavar="[TARGET/SOURCE]...", nargs=-1)
@click.option("--release", "releasing", is_flag=True, help="Release the named sources of POLICY.")
@click.option("--all", "everything", is_flag=True, help="With --release: all quarantined sources of POLICY.")
@cluster_options(all_namespaces=True)
@output_option(wide=True)
def quarantine_command(
    *,
    policy: str | None,
    sources: tuple[str, ...],
    releasing: bool,
    everything: bool,
    target: CommandTarget,
    output: OutputFormat,
) -> None:
    """List damaged sources that are in quarantine, of all policies or of POLICY; everything beside them is compacted.
    -o wide adds what was found.

    With --release the named sources of POLICY are planned unchanged again; for a block, the id is enough. A source that
    is still damaged is quarantined again by the next job that reads it; nothing is lost by trying.

    Example: kubectl compaction quarantine logs --release --all
    """
    if not releasing:
        if everything:
            raise click.UsageError("--all says what to release: give --release too")
        _list(policy, sources, target, output)
    elif policy is None or everything == bool(sources):
        raise click.UsageError("name a policy and sources as `quarantine` prints them (TARGET/SOURCE), or give --all")
    elif target.all_namespaces or output is not OutputFormat.TABLE:
        raise click.UsageError("--release takes neither -A nor -o: it changes one policy, and says so in one line")
    else:
        from compaction.cli.cluster.access import ask  # has a client of the API, which help does without

        count = ask(target, lambda cluster: _release(cluster, policy, sources))
        click.echo(
            f"policy {policy}: release of {plural(count, 'source')} requested; they are planned at the next scan"
        )


def _list(policy: str | None, sources: tuple[str, ...], target: CommandTarget, output: OutputFormat) -> None:
    from compaction.cli.cluster.access import ask, nothing_found

    async def read(cluster: ClusterAccess) -> tuple[list[CompactionPolicy], str]:
        if policy is None:
            return await cluster.policies(), cluster.namespace
        found = await cluster.policy(policy)
        _require_quarantined(found, sources)
        return [found], cluster.namespace

    policies, namespace = ask(target, read)
    rows = [
        row
        for row in _rows(policies, datetime.now(UTC))
        if not sources or row["source"] in sources or f"{row['target']}/{row['source']}" in sources
    ]
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"items": rows}, output)
    elif not rows:
        nothing_found(namespace, target, "quarantined sources")
    else:
        columns = (_NAMESPACE, *_COLUMNS) if target.all_namespaces else _COLUMNS
        print_table(rows, (*columns, _MESSAGE) if output is OutputFormat.WIDE else columns)


def _rows(policies: Iterable[CompactionPolicy], now: datetime) -> list[dict[str, Any]]:
    return [
        {
            "namespace": policy.metadata.namespace,
            "policy": policy.metadata.name,
            "target": item.target,
            "source": item.source,
            "index": item.index,
            "offset": item.offset,
            "reason": item.reason,
            "since": format_timestamp(item.since),
            "seconds": max(0, int((now - item.since).total_seconds())),
            "message": item.message,
        }
        for policy in policies
        for item in policy.status.quarantined
    ]


def _require_quarantined(policy: CompactionPolicy, sources: Iterable[str]) -> None:
    """Raises ClusterCommandError that names the sources that are not in quarantine."""
    known = {f"{item.target}/{item.source}" for item in policy.status.quarantined}
    if kind_of(policy.spec.store).immutable_sources:
        known |= {item.source for item in policy.status.quarantined}
    strangers = [source for source in sources if source not in known]
    if strangers:
        name = policy.metadata.name
        raise ClusterCommandError(
            f"policy {name}: not in quarantine: {', '.join(strangers)}; `quarantine {name}` shows what is"
        )


async def _release(cluster: ClusterAccess, name: str, sources: tuple[str, ...]) -> int:
    """Request the release and return the number of sources that the request names. Raises ClusterCommandError when it
    names one that is not in quarantine.
    """
    from compaction.kube.client.api import COMPACTION_POLICIES

    policy = await cluster.policy(name)
    quarantined = {(item.target, item.source) for item in policy.status.quarantined}
    if not quarantined:
        raise ClusterCommandError(f"policy {name}: no source is in quarantine, so there is nothing to release")
    _require_quarantined(policy, sources)
    if any("," in source for source in sources):
        raise ClusterCommandError(f"policy {name}: a path with a comma cannot be named in the request: give --all")
    value = request(sources, released=policy.status.released)
    await cluster.annotate(COMPACTION_POLICIES, name, ANNOTATION_RELEASE, value)
    return len(set(sources)) or len(quarantined)


def request(sources: Iterable[str], *, released: str) -> str:
    """The annotation's value: another one than was acted upon last (`status.released`), because each counts once."""
    named = tuple(dict.fromkeys(sources)) or (RELEASE_ALL,)
    value = ",".join(named)
    return value if mark_of(value) != released else f"{value},{named[0]}"


# `retry`: reset the attempts of faulty jobs and retry them.
#
# Exit codes: 0 asked for all of them; 1 not for all, and stderr says for which and why; 2 wrong usage.

_NOT_PARKED: Final = {
    JobState.UNASSIGNED: "it waits for its first attempt",
    JobState.IN_PROGRESS: "a worker is at it",
    JobState.ABANDONED: "its next attempt comes by itself",
    JobState.SUCCEEDED: "it is done",
}


@click.command("retry")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete("jobs"))
@cluster_options()
def command(*, jobs: tuple[str, ...], target: CommandTarget) -> int:
    """Reset the attempts of faulty jobs and retry them. Fix the cause first: `why JOB` names it."""
    from compaction.cli.cluster.access import ask

    return ask(target, lambda cluster: _retry(cluster, jobs))


async def _retry(cluster: ClusterAccess, names: tuple[str, ...]) -> int:
    """Each by itself: one that cannot be retried does not hold up the others."""
    from compaction.kube.client.api import COMPACTION_JOBS

    code = 0
    for name in dict.fromkeys(names):
        bare = name.rpartition("/")[2]
        try:
            job = await cluster.job(bare)
            check_parked(job)
            check_useful(job, await cluster.find_policy(job.spec.policy_ref.name))
            await cluster.annotate(COMPACTION_JOBS, bare, ANNOTATION_RETRY, format_micro_time(datetime.now(UTC)))
        except ClusterCommandError as error:
            report(error)
            code = EXIT_DATA_ERROR
        else:
            click.echo(f"job {bare}: {what_follows(job)}")
    return code


def what_follows(job: CompactionJob) -> str:
    """The answer to a retry that may be useful: for a planned job only the store tells whether it is."""
    if job.metadata.controller is None:
        return "retry requested; the coordinator resets its attempts"
    where = f"{job.metadata.name} -n {job.metadata.namespace}"
    return (
        "retry requested; the coordinator resets its attempts if the store still offers its sources, otherwise it "
        f"answers with the Event RetryRefused (kubectl events --for cjob/{where})"
    )


def check_parked(job: CompactionJob) -> None:
    """Raises ClusterCommandError for a job that is not parked."""
    state = job.status.state
    if state is not JobState.FAULTY:
        raise ClusterCommandError(
            f"job {job.metadata.name} is {state}, not Faulty: {_NOT_PARKED[state]}, so there is nothing to retry"
        )


def check_useful(job: CompactionJob, policy: CompactionPolicy | None) -> None:
    """Raises ClusterCommandError for a retry that, by its objects, cannot change anything. What only the
    store tells, the coordinator knows: it answers such a retry with the Event RetryRefused.
    """
    # Only who retries waits for the import of what decides about jobs.
    from compaction.core.reconcile.jobs.ending import futile

    why_not = futile(job, policy.status.quarantined if policy is not None else ())
    if why_not:
        raise ClusterCommandError(f"job {job.metadata.name} is not retried: {why_not}")
