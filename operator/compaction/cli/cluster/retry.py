"""`retry`: reset the attempts of faulty jobs and retry them.

Exit codes: 0 asked for all of them; 1 not for all, and stderr says for which and why; 2 wrong usage.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click

from compaction.api.enums import JobState
from compaction.api.job.resource import CompactionJob
from compaction.api.names import ANNOTATION_RETRY
from compaction.api.policy.resource import CompactionPolicy
from compaction.cli.cluster.access import ClusterAccess, ask, cluster_options
from compaction.cli.cluster.flags import CommandTarget, complete
from compaction.cli.errors import EXIT_DATA_ERROR, report
from compaction.core.reconcile.jobs.futile import futile
from compaction.kube.client.api import COMPACTION_JOBS
from compaction.kube.errors import ClusterCommandError
from compaction.leases.record import format_micro_time

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
    return ask(target, lambda cluster: _retry(cluster, jobs))


async def _retry(cluster: ClusterAccess, names: tuple[str, ...]) -> int:
    """Each by itself: one that cannot be retried does not hold up the others."""
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
    why_not = futile(job, policy.status.quarantined if policy is not None else ())
    if why_not:
        raise ClusterCommandError(f"job {job.metadata.name} is not retried: {why_not}")
