"""`quarantine list|release`: the damaged sources that are in quarantine.

Exit codes: 0 shown or requested; 1 not, and stderr says why; 2 wrong usage.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import click

from compaction.api.names import ANNOTATION_RELEASE
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.formatting import format_age, plural
from compaction.api.text.safe import mark_of
from compaction.api.text.times import format_timestamp
from compaction.cli.cluster.access import ClusterAccess, ask, cluster_options, nothing_found
from compaction.cli.cluster.flags import CommandTarget, complete
from compaction.cli.output import Column, OutputFormat, emit, optional, output_option, print_table
from compaction.kube.client.api import COMPACTION_POLICIES
from compaction.kube.errors import ClusterCommandError
from compaction.registry import kind_of

RELEASE_ALL: Final = "all"
_NAMESPACE: Final = Column("namespace", "Namespace")
_COLUMNS: Final = (
    Column("policy", "Policy"),
    Column("target", "Target"),
    Column("source", "Source"),
    Column("index", "Index", optional),
    Column("offset", "Offset", optional),
    Column("reason", "Reason"),
    Column("seconds", "Age", format_age),
)
_MESSAGE: Final = Column("message", "Message")


@click.group("quarantine")
def group() -> None:
    """List damaged sources that are in quarantine, so that everything beside them is compacted; release them."""


@group.command("list")
@click.argument("policy", required=False, shell_complete=complete("policies"))
@cluster_options(all_namespaces=True)
@output_option(wide=True)
def list_command(*, policy: str | None, target: CommandTarget, output: OutputFormat) -> None:
    """List the sources in quarantine: of all policies, or of POLICY. -o wide adds what was found."""

    async def read(cluster: ClusterAccess) -> tuple[list[CompactionPolicy], str]:
        found = await cluster.policies() if policy is None else [await cluster.policy(policy)]
        return found, cluster.namespace

    policies, namespace = ask(target, read)
    rows = _rows(policies, datetime.now(UTC))
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
            "target": one.target,
            "source": one.source,
            "index": one.index,
            "offset": one.offset,
            "reason": one.reason,
            "since": format_timestamp(one.since),
            "seconds": max(0, int((now - one.since).total_seconds())),
            "message": one.message,
        }
        for policy in policies
        for one in policy.status.quarantined
    ]


@group.command("release")
@click.argument("policy", shell_complete=complete("policies"))
@click.argument("sources", metavar="[TARGET/SOURCE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Release all quarantined sources.")
@cluster_options()
def release(*, policy: str, sources: tuple[str, ...], everything: bool, target: CommandTarget) -> None:
    """Release sources of POLICY from quarantine, so that they are planned unchanged. For a block, the id is enough.

    A source that is still damaged is quarantined again by the next job that reads it; nothing is lost by trying.
    """
    if everything == bool(sources):
        raise click.UsageError("name sources as `quarantine list` prints them (TARGET/SOURCE), or give --all")
    count = ask(target, lambda cluster: _release(cluster, policy, sources))
    click.echo(f"policy {policy}: release of {plural(count, 'source')} requested; they are planned at the next scan")


async def _release(cluster: ClusterAccess, name: str, sources: tuple[str, ...]) -> int:
    """How many sources the request names. Raises ClusterCommandError when it names one that is not in quarantine."""
    policy = await cluster.policy(name)
    known = {f"{one.target}/{one.source}" for one in policy.status.quarantined}
    by_name = kind_of(policy.spec.store).immutable_sources
    alone = {one.source for one in policy.status.quarantined} if by_name else set()
    if not known:
        raise ClusterCommandError(f"policy {name}: no source is in quarantine, so there is nothing to release")
    strangers = [source for source in sources if source not in known | alone]
    if strangers:
        raise ClusterCommandError(
            f"policy {name}: not in quarantine: {', '.join(strangers)}; `quarantine list {name}` shows what is"
        )
    if any("," in source for source in sources):
        raise ClusterCommandError(f"policy {name}: a path with a comma cannot be named in the request: give --all")
    value = request(sources, released=policy.status.released)
    await cluster.annotate(COMPACTION_POLICIES, name, ANNOTATION_RELEASE, value)
    return len(set(sources)) or len(known)


def request(sources: Iterable[str], *, released: str) -> str:
    """The annotation's value: another one than was acted upon last (`status.released`), because each counts once."""
    named = tuple(dict.fromkeys(sources)) or (RELEASE_ALL,)
    value = ",".join(named)
    return value if mark_of(value) != released else f"{value},{named[0]}"
