"""`history`: the last plans of a policy that were carried out, or the last rounds of a catalog that changed something.

Exit codes: 0 shown; 1 it could not be read; 2 wrong usage.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.catalog.catalog import CatalogCompaction, RoundRecord
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.policy.policy_status import RunRecord
from compaction.cli.cluster.flags import CommandTarget, ObjectKind, cluster_options, complete, kind_and_name
from compaction.cli.cluster.status_view import age_text, seconds_between, time_text
from compaction.cli.output import OutputColumn, OutputFormat, emit, optional, optional_bytes, output_option, print_table
from compaction.kube.errors import ClusterCommandError

if TYPE_CHECKING:
    from compaction.cli.cluster.access import ClusterAccess

RUNNING: Final = "running"
_RUNS: Final = (
    OutputColumn("plan", "Plan"),
    OutputColumn("reason", "Reason", lambda reason: reason or "-"),
    OutputColumn("startedAt", "Started"),
    OutputColumn("took", "Took"),
    OutputColumn("jobs", "Jobs"),
    OutputColumn("succeeded", "Succeeded"),
    OutputColumn("faulty", "Faulty"),
    OutputColumn("givenUp", "Given up", optional),
    OutputColumn("bytesRead", "Read", optional_bytes),
    OutputColumn("bytesWritten", "Written", optional_bytes),
    OutputColumn("bytesReclaimed", "Reclaimed", optional_bytes),
)
_APPROVALS: Final = (
    OutputColumn("approvedAt", "Approved", optional),
    OutputColumn("approvedBy", "By", lambda name: name or "-"),
)
_ROUNDS: Final = (
    OutputColumn("startedAt", "Started"),
    OutputColumn("took", "Took"),
    OutputColumn("trigger", "Trigger"),
    OutputColumn("compaction", "Compaction", lambda reason: reason or "-"),
    OutputColumn("propagation", "Propagation", lambda reason: reason or "-"),
    OutputColumn("versionsCut", "Cut"),
    OutputColumn("bytesCut", "Bytes cut", optional_bytes),
)


@click.command("history")
@click.argument("name", metavar="POLICY|CATALOG", shell_complete=complete("policies catalogs"))
@cluster_options()
@output_option()
def command(*, name: str, target: CommandTarget, output: OutputFormat) -> None:
    """List the last 20 plans of a policy that were carried out, the newest last: why and when, who approved, what came
    of the jobs. Of a catalog, the last 20 rounds that cut versions, were asked for, or ended unlike the one before.

    If a policy and a catalog share the name, the policy is meant; ccat/NAME selects the catalog.
    """
    from compaction.cli.cluster.access import ask

    found = ask(target, lambda cluster: _read(cluster, name))
    now = datetime.now(UTC)
    if isinstance(found, CompactionPolicy):
        rows = [run_data(run, now) for run in found.status.history]
        approvals = _APPROVALS if any(row["approvedAt"] for row in rows) else ()
        columns: tuple[OutputColumn, ...] = _RUNS + approvals
    else:
        rows, columns = [round_data(record) for record in found.status.history], _ROUNDS
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"items": rows}, output)
    elif rows:
        print_table(rows, columns)
    else:
        click.echo(f"No history of {found.metadata.name} yet.", err=True)


async def _read(cluster: ClusterAccess, text: str) -> CompactionPolicy | CatalogCompaction:
    kind, name = kind_and_name(text, ObjectKind.POLICY, ObjectKind.CATALOG)
    if kind is ObjectKind.CATALOG:
        return await cluster.catalog(name)
    policy = await cluster.find_policy(name)
    if policy is None and kind is None:
        catalog = await cluster.find_catalog(name)
        if catalog is not None:
            return catalog
        raise ClusterCommandError(
            f'no CompactionPolicy or CatalogCompaction "{name}" in namespace "{cluster.namespace}": '
            "see kubectl get compaction -A"
        )
    return policy or await cluster.policy(name)


def run_data(run: RunRecord, now: datetime) -> dict[str, Any]:
    """One run of a policy, in exact values; `givenUp` once it has ended."""
    ended = run.ended_at is not None
    seconds = seconds_between(run.started_at, run.ended_at or now)
    return {
        "plan": run.plan,
        "startedAt": time_text(run.started_at),
        "endedAt": time_text(run.ended_at),
        "approvedAt": time_text(run.approved_at),
        "reason": run.reason,
        "approvedBy": run.approved_by,
        "tookSeconds": seconds if ended else None,
        "took": age_text(seconds) if ended else f"{RUNNING} {age_text(seconds)}",
        "jobs": run.jobs,
        "succeeded": run.succeeded,
        "faulty": run.faulty,
        "givenUp": max(0, run.jobs - run.succeeded - run.faulty) if ended else None,
        "bytesRead": run.bytes_read,
        "bytesWritten": run.bytes_written,
        "bytesReclaimed": run.bytes_reclaimed,
        "workSeconds": run.seconds,
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
