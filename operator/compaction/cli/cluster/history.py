"""`history`: the last plans of a policy that were carried out, or the last rounds of a catalog that changed something.

Exit codes: 0 shown; 1 it could not be read; 2 wrong usage.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.cluster.flags import CommandTarget, cluster_options, complete
from compaction.cli.cluster.status_view import cpu_text, round_data, run_data
from compaction.cli.output import OutputColumn, OutputFormat, emit, optional, optional_bytes, output_option, print_table

if TYPE_CHECKING:
    pass

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
    OutputColumn("cpuSeconds", "CPU", cpu_text),
    OutputColumn("executorPeakBytes", "Peak", optional_bytes),
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

    found = ask(target, lambda cluster: cluster.policy_or_catalog(name))
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
