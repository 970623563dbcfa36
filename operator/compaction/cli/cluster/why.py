"""`why`: a policy, a job or a catalog explained in sentences.

Exit codes: 0 explained; 1 it could not be read; 2 wrong usage.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from compaction.api.text.printing import printable
from compaction.cli.cluster.flags import CommandTarget, ObjectKind, cluster_options, complete, kind_and_name
from compaction.cli.output import OutputFormat, emit, output_option
from compaction.kube.errors import ClusterCommandError

if TYPE_CHECKING:
    from compaction.cli.cluster.access import ClusterAccess
    from compaction.core.explain.explanation import Explanation

HEADINGS: Final = {"state": "State", "debt": "Debt", "next": "Next", "actions": "Actions"}
MIN_WIDTH: Final = 60


@click.command("why")
@click.argument("name", metavar="POLICY|JOB|CATALOG", shell_complete=complete("policies jobs catalogs"))
@cluster_options()
@output_option()
def command(*, name: str, target: CommandTarget, output: OutputFormat) -> None:
    """Explain the state of a policy, a job or a catalog: its debt, what it waits for and since when, what happens next,
    what to do.

    If they share the name, the policy is explained, then the job; cjob/NAME selects the job, ccat/NAME the catalog.
    """
    # Who asks for help waits for no import of a client of the API, nor of the models of what it answers.
    from compaction.cli.cluster.access import ask

    explanation = ask(target, lambda cluster: explain(cluster, name))
    if output is OutputFormat.TABLE:
        show(explanation)
    else:
        emit(explanation.to_object(), output)


async def explain(cluster: ClusterAccess, name: str) -> Explanation:
    """Read the object, its jobs and Leases, and explain it. Raises ClusterCommandError when there is no such object."""
    from compaction.catalogs.explaining import explain_catalog
    from compaction.core.explain.why_job import explain_job
    from compaction.core.explain.why_policy import explain_policy

    kind, bare = kind_and_name(name, *ObjectKind)
    leases = await cluster.leases()
    if kind is ObjectKind.CATALOG:
        return explain_catalog(await cluster.catalog(bare), leases, datetime.now(UTC))
    policy = await cluster.find_policy(bare) if kind is not ObjectKind.JOB else None
    if policy is not None:
        return explain_policy(policy, await cluster.jobs(bare), leases, datetime.now(UTC))
    if kind is ObjectKind.POLICY:
        policy = await cluster.policy(bare)
    job = await cluster.find_job(bare)
    if job is not None:
        return explain_job(job, await cluster.find_policy(job.spec.policy_ref.name), leases, datetime.now(UTC))
    catalog = await cluster.find_catalog(bare) if kind is None else None
    if catalog is not None:
        return explain_catalog(catalog, leases, datetime.now(UTC))
    nothing = "CompactionJob" if kind is not None else "CompactionPolicy, CompactionJob or CatalogCompaction"
    raise ClusterCommandError(f'no {nothing} "{bare}" in namespace "{cluster.namespace}": see kubectl get compaction')


def show(explanation: Explanation) -> None:
    """Print it. Names of directories may hold anything: control characters in them never reach the terminal."""
    click.echo(printable(explanation.subject))
    for key, heading in HEADINGS.items():
        sentences = getattr(explanation, key)
        if sentences:
            click.echo(f"\n{heading}:")
        for sentence in sentences:
            click.echo(_wrapped(printable(sentence)))


def _wrapped(sentence: str) -> str:
    """Wrapped to the terminal; in a pipe or file a sentence is a line. Words are never broken: they may be commands."""
    if not sys.stdout.isatty():
        return f"  {sentence}"
    return textwrap.fill(
        sentence,
        max(MIN_WIDTH, shutil.get_terminal_size().columns),
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
