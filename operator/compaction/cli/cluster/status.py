"""`status`: what is behind, why, until when and at what cost; for all policies and catalogs or for one.

Exit codes: 0 shown (whatever the state is); 1 it could not be read; 2 wrong usage; 130 a watch that was
interrupted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

import click

from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.policy.policy import CompactionPolicy
from compaction.catalogs.cli.catalog_view import (
    catalog_columns,
    catalog_data,
    catalog_row,
    participant_data,
    show_catalog,
)
from compaction.cli.cluster.flags import CommandTarget, ObjectKind, cluster_options, complete, kind_and_name
from compaction.cli.cluster.status_view import (
    Data,
    fleet_columns,
    fleet_row,
    job_data,
    policy_data,
    show_policy,
    sorted_jobs,
)
from compaction.cli.output import OutputColumn, OutputFormat, TableStream, emit, output_option, print_table
from compaction.core.explain.explanation import Coordination, coordination
from compaction.errors import ApiUnavailableError, GoneError

if TYPE_CHECKING:
    from compaction.cli.cluster.access import ClusterAccess

RECONNECT_SECONDS: Final = 2.0
CoordinatorOf = Callable[[str], Coordination]
Watched = TypeVar("Watched", CompactionPolicy, CatalogCompaction)


@click.command("status")
@click.argument("name", metavar="[POLICY|CATALOG]", required=False, shell_complete=complete("policies catalogs"))
@cluster_options(all_namespaces=True)
@click.option("-w", "--watch", is_flag=True, help="After listing, print the row of a policy at each change.")
@output_option(wide=True)
def command(*, name: str | None, target: CommandTarget, watch: bool, output: OutputFormat) -> None:
    """Show what is behind, why, until when, at what cost: of all policies and catalogs, or of one of them.

    If a policy and a catalog share the name, the policy is shown; ccat/NAME selects the catalog. --watch follows
    policies, or the catalog that is named.
    """
    if name is not None and target.all_namespaces:
        raise click.UsageError("one object is in one namespace: give -n, not -A")
    if watch and output is OutputFormat.YAML:
        raise click.UsageError("--watch prints tables or, with -o json, one object per line")
    from compaction.cli.cluster.access import ask  # has a client of the API, which help does without

    if name is None and not watch:
        _show_fleet(target, output)
    elif name is None:
        ask(target, lambda cluster: _watch(cluster, None, target, output))
    else:
        ask(target, lambda cluster: _show_one(cluster, name, target, output, watch=watch))


def _show_fleet(target: CommandTarget, output: OutputFormat) -> None:
    from compaction.cli.cluster.access import ask, nothing_found

    async def read(
        cluster: ClusterAccess,
    ) -> tuple[list[CompactionPolicy], list[CatalogCompaction], str, CoordinatorOf]:
        coordinators = await _coordinators(cluster)
        return await cluster.policies(), await cluster.catalogs() or [], cluster.namespace, coordinators

    policies, catalogs, namespace, coordinator_of = ask(target, read)
    now = datetime.now(UTC)
    namespaces = {policy.metadata.namespace for policy in policies} | {
        catalog.metadata.namespace for catalog in catalogs
    }
    found = {namespace: coordinator_of(namespace) for namespace in namespaces}
    rows = [policy_data(policy, now, found[policy.metadata.namespace]) for policy in policies]
    more = [catalog_data(catalog, now, found[catalog.metadata.namespace]) for catalog in catalogs]
    _warn(found, now)
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"items": rows, "catalogs": more}, output)
    elif not rows and not more:
        nothing_found(namespace, target, "policies or catalogs")
    else:
        _print_tables(rows, more, namespaces=target.all_namespaces, wide=output is OutputFormat.WIDE)


def _print_tables(policies: list[Data], catalogs: list[Data], *, namespaces: bool, wide: bool) -> None:
    """One table of each kind that there is."""
    if policies:
        print_table([fleet_row(row) for row in policies], fleet_columns(namespaces=namespaces, wide=wide))
    if policies and catalogs:
        click.echo()
    if catalogs:
        print_table([catalog_row(row) for row in catalogs], catalog_columns(namespaces=namespaces, wide=wide))


async def _show_one(
    cluster: ClusterAccess, text: str, target: CommandTarget, output: OutputFormat, *, watch: bool
) -> None:
    """The policy or the catalog of that name; with `watch` its rows. Raises ClusterCommandError for one that does not
    exist: it is no silent wait.
    """
    kind, name = kind_and_name(text, ObjectKind.POLICY, ObjectKind.CATALOG)
    policy = await cluster.find_policy(name) if kind is not ObjectKind.CATALOG else None
    catalog = None
    if policy is None:
        catalog = await cluster.find_catalog(name) if kind is None else None
        if catalog is None and kind is ObjectKind.CATALOG:
            catalog = await cluster.catalog(name)
        if catalog is None:
            policy = await cluster.policy(name)
    coordinator_of, now = await _coordinators(cluster), datetime.now(UTC)
    coordinator, data = coordinator_of(cluster.namespace), output in (OutputFormat.JSON, OutputFormat.YAML)
    if watch and policy is not None:
        await _watch(cluster, name, target, output)
    elif watch:
        await _watch_catalog(cluster, name, output)
    elif catalog is not None and data:
        rows = [participant_data(participant, now) for participant in catalog.status.participants]
        emit(catalog_data(catalog, now, coordinator) | {"participantRows": rows}, output)
    elif catalog is not None:
        show_catalog(catalog, now, coordinator)
    elif policy is not None:
        jobs, leases = await cluster.jobs(name), await cluster.leases()
        if data:
            rows = [job_data(job, now, leases) for job in sorted_jobs(jobs)]
            emit(policy_data(policy, now, coordinator) | {"jobs": rows}, output)
        else:
            show_policy(policy, jobs, now, coordinator, leases)


async def _coordinators(cluster: ClusterAccess) -> CoordinatorOf:
    """Return the function that says who coordinates a namespace, as of now."""
    leases, complete = await cluster.coordinators()
    now = datetime.now(UTC)
    return lambda namespace: coordination(leases, namespace, now, complete=complete)


def _warn(found: Mapping[str, Coordination], now: datetime) -> None:
    """Warn on stderr that tables are out of date when no operator updates them."""
    for namespace, item in sorted(found.items()):
        if item.is_missing:
            click.echo(
                f"namespace {namespace}: {item.sentence(now)} The table shows the last recorded state.", err=True
            )


async def _watch(cluster: ClusterAccess, name: str | None, target: CommandTarget, output: OutputFormat) -> None:
    """Rows of policies until interrupted."""
    coordinator_of = await _coordinators(cluster)
    if not target.all_namespaces:
        _warn({cluster.namespace: coordinator_of(cluster.namespace)}, datetime.now(UTC))
    columns = fleet_columns(namespaces=target.all_namespaces, wide=output is OutputFormat.WIDE)
    # A row is news, so an operator writes: what the Leases said at the beginning says less than that.
    await _follow(
        lambda: cluster.watch_policies(name),
        lambda item: policy_data(item, datetime.now(UTC)),
        fleet_row,
        columns,
        output,
    )


async def _watch_catalog(cluster: ClusterAccess, name: str, output: OutputFormat) -> None:
    """Rows of one catalog until interrupted."""
    coordinator_of = await _coordinators(cluster)
    _warn({cluster.namespace: coordinator_of(cluster.namespace)}, datetime.now(UTC))
    columns = catalog_columns(namespaces=False, wide=output is OutputFormat.WIDE)
    await _follow(
        lambda: cluster.watch_catalog(name),
        lambda item: catalog_data(item, datetime.now(UTC)),
        catalog_row,
        columns,
        output,
    )


async def _follow(
    watch: Callable[[], AsyncIterator[Watched]],
    data_of: Callable[[Watched], Data],
    row_of: Callable[[Data], Data],
    columns: Sequence[OutputColumn],
    output: OutputFormat,
) -> None:
    """A row at each change; a watch that ends or breaks is restarted, which repeats no row."""
    table = TableStream(columns)
    seen: dict[tuple[str, str], str] = {}
    lost = False
    while True:
        try:
            async for item in watch():
                lost = False
                meta = item.metadata
                if seen.get((meta.namespace, meta.name)) == meta.resource_version:
                    continue
                seen[meta.namespace, meta.name] = meta.resource_version
                data = data_of(item)
                if output is OutputFormat.JSON:
                    click.echo(json.dumps(data))
                else:
                    table.print(row_of(data))
        except GoneError:
            continue
        except ApiUnavailableError as error:
            if not lost:
                click.echo(f"the watch broke, trying again: {error}", err=True)
            lost = True
            await asyncio.sleep(RECONNECT_SECONDS)
