"""`retry`: give parked jobs their attempts anew.

Exit codes: 0 asked for all of them; 1 not for all, and stderr says for which and why; 2 wrong usage.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click

from compaction.api.enums import JobState
from compaction.api.job import CompactionJob
from compaction.api.names import ANNOTATION_RETRY
from compaction.cli.cluster import Cluster, ask, cluster_options
from compaction.cli.cluster_flags import Target, complete
from compaction.cli.errors import EXIT_DATA_ERROR, report
from compaction.exceptions import ClusterCommandError
from compaction.kube.client import COMPACTION_JOBS
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
def command(*, jobs: tuple[str, ...], target: Target) -> int:
    """Give the parked (Faulty) jobs JOB... their attempts anew. Mend the cause first: `why JOB` names it."""
    return ask(target, lambda cluster: _retry(cluster, jobs))


async def _retry(cluster: Cluster, names: tuple[str, ...]) -> int:
    """Each by itself: one that cannot be retried does not hold up the others."""
    code = 0
    for name in dict.fromkeys(names):
        bare = name.rpartition("/")[2]
        try:
            check_parked(await cluster.job(bare))
            await cluster.annotate(COMPACTION_JOBS, bare, ANNOTATION_RETRY, format_micro_time(datetime.now(UTC)))
        except ClusterCommandError as error:
            report(error)
            code = EXIT_DATA_ERROR
        else:
            click.echo(f"job {bare}: asked for; the coordinator gives it its attempts anew")
    return code


def check_parked(job: CompactionJob) -> None:
    """Raises ClusterCommandError for a job that is not parked."""
    state = job.status.state
    if state is not JobState.FAULTY:
        raise ClusterCommandError(
            f"job {job.metadata.name} is {state}, not Faulty: {_NOT_PARKED[state]}, so there is nothing to retry"
        )
