"""`status`: what is behind, why, until when and at what cost; for all policies and catalogs or for one.

Exit codes: 0 shown (whatever the state is); 1 it could not be read; 2 wrong usage; 130 a watch that was
interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.names import ANNOTATION_VERSION
from compaction.api.policy.policy import CompactionPolicy
from compaction.catalogs.cli.catalog_view import (
    catalog_columns,
    catalog_data,
    catalog_row,
    participant_data,
    show_catalog,
)
from compaction.cli.cluster.flags import CommandTarget, cluster_options, complete
from compaction.cli.cluster.status_view import (
    Data,
    fleet_columns,
    fleet_row,
    job_data,
    policy_data,
    show_policy,
    sorted_jobs,
    totals_data,
    totals_line,
)
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    TableStream,
    emit,
    output_option,
    print_pairs,
    print_table,
)
from compaction.core.explain.explanation import Coordination, coordination

if TYPE_CHECKING:
    from compaction.cli.cluster.access import ClusterAccess
    from compaction.leases.record import Lease

_THINGS: Final = "policies or catalogs"


def _largest(*keys: str) -> Callable[[Data], tuple[float, str, str]]:
    """Order by the first of these figures that a row has, the largest first; what is not known comes last."""

    def key(row: Data) -> tuple[float, str, str]:
        found = next((row[name] for name in keys if row.get(name) is not None), -1)
        return -float(found), row["namespace"], row["name"]

    return key


def _pinned(row: Data) -> tuple[float, str, str]:
    """Order by the age of the oldest debt; of a catalog, by how long it is pinned."""
    pinned = (row.get("pin") or {}).get("sinceSeconds")
    return _largest("oldestDebtSeconds", "pinnedSeconds")(row | {"pinnedSeconds": pinned})


ORDERS: Final[Mapping[str, Callable[[Data], tuple[float, str, str]]]] = {
    "debt": _largest("debtBytes", "behindVersions"),
    "oldest": _pinned,
    "age": _largest("ageSeconds"),
}
"""Values of --sort: the most debt, the oldest debt, the oldest object first."""
CoordinatorOf = Callable[[str], Coordination]


@click.command("status")
@click.argument("name", metavar="[POLICY|CATALOG]", required=False, shell_complete=complete("policies catalogs"))
@cluster_options(all_namespaces=True)
@click.option("-l", "--selector", metavar="SELECTOR", help="Only those with these labels, such as team=blue.")
@click.option("--not-ready", is_flag=True, help="Only those whose condition Ready is not True.")
@click.option("--sort", "order", type=click.Choice(sorted(ORDERS)), help="What comes first; default: by name.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many rows of each table.")
@click.option("-w", "--watch", is_flag=True, help="After listing, print the row of a policy at each change.")
@output_option(wide=True)
def command(
    *,
    name: str | None,
    target: CommandTarget,
    selector: str | None,
    not_ready: bool,
    order: str | None,
    limit: int | None,
    watch: bool,
    output: OutputFormat,
) -> None:
    """Show what is behind, why, until when, at what cost: of all policies and catalogs, or of one of them.

    If a policy and a catalog share the name, the policy is shown; ccat/NAME selects the catalog. --watch follows
    policies, or the catalog that is named. Below several policies stand the sums over all of them.

    Example: kubectl compaction status -A --not-ready --sort oldest
    """
    if name is not None and (selector is not None or not_ready or order or limit):
        raise click.UsageError("-l, --not-ready, --sort and --limit are about several: give no name")
    if watch and (not_ready or order or limit):
        raise click.UsageError("--watch prints a row at each change: give no --not-ready, --sort or --limit")
    if name is not None and target.all_namespaces:
        raise click.UsageError("one object is in one namespace: give -n, not -A")
    if watch and output is OutputFormat.YAML:
        raise click.UsageError("--watch prints tables or, with -o json, one object per line")
    from compaction.cli.cluster.access import ask  # has a client of the API, which help does without

    if name is None and not watch:
        _show_fleet(target, FleetFilter(selector, not_ready, order, limit), output)
    elif name is None:
        ask(target, lambda cluster: _watch(cluster, None, target, output, labels=selector))
    else:
        ask(target, lambda cluster: _show_one(cluster, name, target, output, watch=watch))


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """The rows that are asked for, and their order; None for all, and for the order of names."""

    selector: str | None = None
    not_ready: bool = False
    order: str | None = None
    limit: int | None = None

    def rows(self, data: list[Data]) -> list[Data]:
        """Those that are shown, before the limit."""
        chosen = [row for row in data if not self.not_ready or row["ready"] != "True"]
        return chosen if self.order is None else sorted(chosen, key=ORDERS[self.order])


def _show_fleet(target: CommandTarget, shown: FleetFilter, output: OutputFormat) -> None:
    from compaction.cli.cluster.access import ask, nothing_found

    async def read(
        cluster: ClusterAccess,
    ) -> tuple[list[CompactionPolicy], list[CatalogCompaction], str, CoordinatorOf]:
        coordinators = await _coordinators(cluster)
        policies = await cluster.policies(labels=shown.selector)
        catalogs = await cluster.catalogs(labels=shown.selector) or []
        return policies, catalogs, cluster.namespace, coordinators

    policies, catalogs, namespace, coordinator_of = ask(target, read)
    now = datetime.now(UTC)
    namespaces = {policy.metadata.namespace for policy in policies} | {
        catalog.metadata.namespace for catalog in catalogs
    }
    found = {namespace: coordinator_of(namespace) for namespace in namespaces}
    every = [policy_data(policy, now, found[policy.metadata.namespace]) for policy in policies]
    every_catalog = [catalog_data(catalog, now, found[catalog.metadata.namespace]) for catalog in catalogs]
    rows, more = shown.rows(every), shown.rows(every_catalog)
    _warn(found, now)
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"items": rows[: shown.limit], "catalogs": more[: shown.limit], "totals": totals_data(every)}, output)
        return
    if not rows and not more:
        nothing_found(namespace, target, "policies or catalogs that are not ready" if shown.not_ready else _THINGS)
    else:
        wide, spaces = output is OutputFormat.WIDE, target.all_namespaces
        _print_tables(rows, more, shown.limit, namespaces=spaces, wide=wide)
    if len(every) > 1:
        click.echo(f"\n{totals_line(totals_data(every), every_catalog)}")


def _print_tables(
    policies: list[Data], catalogs: list[Data], limit: int | None, *, namespaces: bool, wide: bool
) -> None:
    """One table of each kind that there is."""
    if policies:
        table = [fleet_row(row) for row in policies[:limit]]
        _print_rows(table, fleet_columns(namespaces=namespaces, wide=wide), left=len(policies) - len(table))
    if policies and catalogs:
        click.echo()
    if catalogs:
        table = [catalog_row(row) for row in catalogs[:limit]]
        _print_rows(table, catalog_columns(namespaces=namespaces, wide=wide), left=len(catalogs) - len(table))


def _print_rows(rows: Sequence[Data], columns: Sequence[OutputColumn], *, left: int) -> None:
    print_table(rows, columns)
    if left:
        click.echo(f"and {left} more: raise --limit")


async def _show_one(
    cluster: ClusterAccess, text: str, target: CommandTarget, output: OutputFormat, *, watch: bool
) -> None:
    """The policy or the catalog of that name; with `watch` its rows. Raises ClusterCommandError for one that does not
    exist: it is no silent wait.
    """
    found = await cluster.policy_or_catalog(text)
    name = found.metadata.name
    coordinator_of, now = await _coordinators(cluster), datetime.now(UTC)
    coordinator, data = coordinator_of(cluster.namespace), output in (OutputFormat.JSON, OutputFormat.YAML)
    if isinstance(found, CatalogCompaction):
        if watch:
            await _watch_catalog(cluster, name, output)
        elif data:
            rows = [participant_data(participant, now) for participant in found.status.participants]
            emit(catalog_data(found, now, coordinator) | {"participantRows": rows}, output)
        else:
            show_catalog(found, now, coordinator)
        return
    if watch:
        await _watch(cluster, name, target, output)
        return
    jobs, leases = await cluster.jobs(name), await cluster.leases()
    if data:
        rows = [job_data(job, now, leases) for job in sorted_jobs(jobs)]
        emit(policy_data(found, now, coordinator) | {"jobs": rows}, output)
    else:
        show_policy(found, jobs, now, coordinator, leases)


async def _coordinators(cluster: ClusterAccess) -> CoordinatorOf:
    """Return the function that says who coordinates a namespace, as of now."""
    leases, complete = await cluster.coordinators()
    now = datetime.now(UTC)
    return lambda namespace: coordination(leases, namespace, now, complete=complete)


# `version`: of this program, and of the operators that lead.
#
# Exit codes: 0 shown, also when no operator is found; 1 the cluster could not be read; 2 wrong usage.


@click.command("version")
@click.option("--client", "client_only", is_flag=True, help="Only that of this program: no cluster is asked.")
@cluster_options()
@output_option()
def version_command(*, client_only: bool, target: CommandTarget, output: OutputFormat) -> None:
    """Show the version of this program, and that of each operator in the cluster, as its Lease says it."""
    from importlib.metadata import version

    own = version("compaction-operator")
    leases: list[Lease] | None = []
    if not client_only:
        from compaction.cli.cluster.access import ask

        leases, _ = ask(target, lambda cluster: cluster.coordinators())
    operators = [
        {
            "namespace": lease.namespace,
            "version": lease.annotations.get(ANNOTATION_VERSION) or None,
            "leader": lease.record.holder,
        }
        for lease in sorted(leases or (), key=lambda lease: lease.namespace)
    ]
    if output is not OutputFormat.TABLE:
        emit({"client": own, "operators": operators}, output)
        return
    rows = [("Client", own)]
    rows += [
        ("Operator", f"{item['version'] or 'unknown'} in {item['namespace']}, led by {item['leader'] or 'no replica'}")
        for item in operators
    ]
    if leases is None:
        rows.append(("Operator", "not known: this user may not read its Lease (role compaction-viewer)"))
    elif not operators and not client_only:
        rows.append(("Operator", "none is found"))
    print_pairs(rows)


def _warn(found: Mapping[str, Coordination], now: datetime) -> None:
    """Warn on stderr that tables are out of date when no operator updates them."""
    for namespace, item in sorted(found.items()):
        if item.is_missing:
            click.echo(
                f"namespace {namespace}: {item.sentence(now)} The table shows the last recorded state.", err=True
            )


async def _watch(
    cluster: ClusterAccess, name: str | None, target: CommandTarget, output: OutputFormat, *, labels: str | None = None
) -> None:
    """Rows of policies until interrupted."""
    coordinator_of = await _coordinators(cluster)
    if not target.all_namespaces:
        _warn({cluster.namespace: coordinator_of(cluster.namespace)}, datetime.now(UTC))
    columns = fleet_columns(namespaces=target.all_namespaces, wide=output is OutputFormat.WIDE)
    from compaction.cli.cluster.access import follow

    def show(policy: CompactionPolicy) -> None:
        # A row is news, so an operator writes: what the Leases said at the beginning says less than that.
        data = policy_data(policy, datetime.now(UTC))
        print_row(data, fleet_row(data))

    print_row = _row_printer(columns, output)
    await follow(lambda: cluster.watch_policies(name, labels=labels), _version, show)


async def _watch_catalog(cluster: ClusterAccess, name: str, output: OutputFormat) -> None:
    """Rows of one catalog until interrupted."""
    coordinator_of = await _coordinators(cluster)
    _warn({cluster.namespace: coordinator_of(cluster.namespace)}, datetime.now(UTC))
    columns = catalog_columns(namespaces=False, wide=output is OutputFormat.WIDE)
    from compaction.cli.cluster.access import follow

    def show(catalog: CatalogCompaction) -> None:
        data = catalog_data(catalog, datetime.now(UTC))
        print_row(data, catalog_row(data))

    print_row = _row_printer(columns, output)
    await follow(lambda: cluster.watch_catalog(name), _version, show)


def _version(item: CompactionPolicy | CatalogCompaction) -> tuple[str, str]:
    return item.metadata.uid, item.metadata.resource_version


def _row_printer(columns: Sequence[OutputColumn], output: OutputFormat) -> Callable[[Data, Data], None]:
    """Return a printer of one object at a time: its row in a table, or its exact values as JSON in a line."""
    table = TableStream(columns)

    def show(data: Data, row: Data) -> None:
        if output is OutputFormat.JSON:
            click.echo(json.dumps(data))
        else:
            table.print(row)

    return show
