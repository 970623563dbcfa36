"""`status`: what is behind, why, until when and at what cost; for all policies or for one.

Exit codes: 0 shown (whatever the state of the policies); 1 it could not be read; 2 wrong usage; 130 a watch that was
interrupted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import click

from compaction.api.job.resource import CompactionJob
from compaction.api.policy.resource import CompactionPolicy
from compaction.cli.cluster.access import ClusterAccess, ask, cluster_options, nothing_found
from compaction.cli.cluster.flags import CommandTarget, complete
from compaction.cli.cluster.status_view import fleet_columns, fleet_row, job_data, policy_data, show_policy, sorted_jobs
from compaction.cli.output import OutputFormat, TableStream, emit, output_option, print_table
from compaction.exceptions import ApiUnavailableError, GoneError
from compaction.explain.coordination import Coordination, coordination

RECONNECT_SECONDS: Final = 2.0
CoordinatorOf = Callable[[str], Coordination]


@click.command("status")
@click.argument("policy", required=False, shell_complete=complete("policies"))
@cluster_options(all_namespaces=True)
@click.option("-w", "--watch", is_flag=True, help="After listing, print the row of a policy at each change.")
@output_option(wide=True)
def command(*, policy: str | None, target: CommandTarget, watch: bool, output: OutputFormat) -> None:
    """What is behind, why, until when, at what cost: of all policies, or of POLICY with its jobs."""
    if policy is not None and target.all_namespaces:
        raise click.UsageError("one policy is in one namespace: give -n, not -A")
    if watch:
        if output is OutputFormat.YAML:
            raise click.UsageError("--watch prints tables or, with -o json, one object per line")
        ask(target, lambda cluster: _watch(cluster, policy, target, output))
    elif policy is None:
        _show_fleet(target, output)
    else:
        _show_one(target, policy, output)


def _show_fleet(target: CommandTarget, output: OutputFormat) -> None:
    async def read(cluster: ClusterAccess) -> tuple[list[CompactionPolicy], str, CoordinatorOf]:
        return await cluster.policies(), cluster.namespace, await _coordinators(cluster)

    policies, namespace, coordinator_of = ask(target, read)
    now = datetime.now(UTC)
    found = {policy.metadata.namespace: coordinator_of(policy.metadata.namespace) for policy in policies}
    rows = [policy_data(policy, now, found[policy.metadata.namespace]) for policy in policies]
    _warn(found, now)
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"items": rows}, output)
    elif not rows:
        nothing_found(namespace, target, "policies")
    else:
        print_table(
            [fleet_row(row) for row in rows],
            fleet_columns(namespaces=target.all_namespaces, wide=output is OutputFormat.WIDE),
        )


def _show_one(target: CommandTarget, name: str, output: OutputFormat) -> None:
    async def read(cluster: ClusterAccess) -> tuple[CompactionPolicy, list[CompactionJob], CoordinatorOf]:
        return await cluster.policy(name), await cluster.jobs(name), await _coordinators(cluster)

    policy, jobs, coordinator_of = ask(target, read)
    coordinator = coordinator_of(policy.metadata.namespace)
    now = datetime.now(UTC)
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit(policy_data(policy, now, coordinator) | {"jobs": [job_data(job) for job in sorted_jobs(jobs)]}, output)
    else:
        show_policy(policy, jobs, now, coordinator)


async def _coordinators(cluster: ClusterAccess) -> CoordinatorOf:
    """Who coordinates the policies of a namespace, as of now."""
    leases, complete = await cluster.coordinators()
    now = datetime.now(UTC)
    return lambda namespace: coordination(leases, namespace, now, complete=complete)


def _warn(found: Mapping[str, Coordination], now: datetime) -> None:
    """Warn on stderr that tables are out of date when no operator updates them."""
    for namespace, one in sorted(found.items()):
        if one.is_missing:
            click.echo(f"namespace {namespace}: {one.sentence(now)} The table shows the last recorded state.", err=True)


async def _watch(cluster: ClusterAccess, name: str | None, target: CommandTarget, output: OutputFormat) -> None:
    """Rows until interrupted; a watch that ends or breaks is restarted, which repeats the rows."""
    if name is not None:
        await cluster.policy(name)  # one that does not exist is an error at once, not a silent wait
    coordinator_of = await _coordinators(cluster)
    if not target.all_namespaces:
        _warn({cluster.namespace: coordinator_of(cluster.namespace)}, datetime.now(UTC))
    table = TableStream(fleet_columns(namespaces=target.all_namespaces, wide=output is OutputFormat.WIDE))
    seen: dict[tuple[str, str], str] = {}
    lost = False
    while True:
        try:
            async for policy in cluster.watch_policies(name):
                lost = False
                meta = policy.metadata
                if seen.get((meta.namespace, meta.name)) == meta.resource_version:
                    continue
                seen[meta.namespace, meta.name] = meta.resource_version
                # A row is news, so somebody writes: what the Leases said at the beginning says less than that.
                row = policy_data(policy, datetime.now(UTC))
                if output is OutputFormat.JSON:
                    click.echo(json.dumps(row))
                else:
                    table.print(fleet_row(row))
        except GoneError:
            continue
        except ApiUnavailableError as error:
            if not lost:
                click.echo(f"the watch broke, trying again: {error}", err=True)
            lost = True
            await asyncio.sleep(RECONNECT_SECONDS)
