"""`events`: what happened to a policy and its jobs, to one job, or to a catalog; with --watch also what happens.

Exit codes: 0 shown; 1 it could not be read; 2 wrong usage; 130 a watch that was interrupted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.names import CATALOG_KIND, JOB_KIND, POLICY_KIND, name_stem
from compaction.api.text.printing import format_age
from compaction.cli.cluster.flags import CommandTarget, ObjectKind, cluster_options, complete, kind_and_name
from compaction.cli.output import OutputColumn, OutputFormat, TableStream, emit, output_option, print_table
from compaction.kube.errors import ClusterCommandError

if TYPE_CHECKING:
    from compaction.cli.cluster.access import ClusterAccess

    Event = dict[str, Any]

_SHORT: Final = {POLICY_KIND: "cpol", JOB_KIND: "cjob", CATALOG_KIND: "ccat"}
_PLANNED: Final = re.compile(r"-[0-9a-f]{10}")
"""The end of a planned job's name: Events outlive the job, which tells no more whose it was."""
_COLUMNS: Final = (
    OutputColumn("lastSeconds", "Last seen", lambda seconds: "-" if seconds is None else format_age(seconds)),
    OutputColumn("count", "Count"),
    OutputColumn("type", "Type"),
    OutputColumn("reason", "Reason"),
    OutputColumn("object", "Object"),
    OutputColumn("message", "Message"),
)


@dataclass(frozen=True, slots=True)
class EventSubject:
    """The objects whose Events are asked for: one by kind and name, and of a policy its jobs."""

    kind: str
    name: str
    jobs: frozenset[str] = field(default_factory=frozenset)

    def has(self, event: Event) -> bool:
        """Return whether the Event is about one of them."""
        about = event.get("involvedObject") or {}
        kind, name = about.get("kind"), str(about.get("name", ""))
        if (kind, name) == (self.kind, self.name):
            return True
        if self.kind != POLICY_KIND or kind != JOB_KIND:
            return False
        # Jobs go long before their Events do, so a name is judged by its form where the job is not there any more.
        stem = name_stem(self.name)
        return name in self.jobs or (name.startswith(stem) and _PLANNED.fullmatch(name[len(stem) :]) is not None)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the objects."""
        return (POLICY_KIND, JOB_KIND) if self.kind == POLICY_KIND else (self.kind,)


@click.command("events")
@click.argument("name", metavar="POLICY|JOB|CATALOG", shell_complete=complete("policies jobs catalogs"))
@click.option("-w", "--watch", is_flag=True, help="After listing, print each further Event.")
@cluster_options()
@output_option()
def command(*, name: str, watch: bool, target: CommandTarget, output: OutputFormat) -> None:
    """List Events of a policy and its jobs, of one job, or of a catalog, the newest last. Clusters keep them an hour.

    If they share the name, the policy is meant, then the job; cjob/NAME selects the job, ccat/NAME the catalog.
    """
    if watch and output is OutputFormat.YAML:
        raise click.UsageError("--watch prints a table or, with -o json, one object per line")
    from compaction.cli.cluster.access import ask

    ask(target, lambda cluster: _show(cluster, name, target, output, watch=watch))


async def _show(cluster: ClusterAccess, text: str, target: CommandTarget, output: OutputFormat, *, watch: bool) -> None:
    from compaction.cli.cluster.access import nothing_found

    subject = await _subject(cluster, text)
    if watch:
        await _follow(cluster, subject, output)
        return
    found = [event for kind in subject.kinds for event in await cluster.events(kind) if subject.has(event)]
    rows = sorted_rows(found, datetime.now(UTC))
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"items": rows}, output)
    elif rows:
        print_table(rows, _COLUMNS)
    else:
        nothing_found(cluster.namespace, target, f"events of {subject.name}")


async def _subject(cluster: ClusterAccess, text: str) -> EventSubject:
    """Raises ClusterCommandError when there is no such object."""
    kind, name = kind_and_name(text, *ObjectKind)
    if kind is ObjectKind.CATALOG:
        return EventSubject(CATALOG_KIND, (await cluster.catalog(name)).metadata.name)
    if kind is not ObjectKind.JOB and await cluster.find_policy(name) is not None:
        return EventSubject(POLICY_KIND, name, frozenset(job.metadata.name for job in await cluster.jobs(name)))
    if kind is not ObjectKind.POLICY and await cluster.find_job(name) is not None:
        return EventSubject(JOB_KIND, name)
    if kind is None and await cluster.find_catalog(name) is not None:
        return EventSubject(CATALOG_KIND, name)
    raise ClusterCommandError(f'nothing of ours is named "{text}" in namespace "{cluster.namespace}"')


def sorted_rows(events: Iterable[Event], now: datetime) -> list[dict[str, Any]]:
    """Rows of Events, in exact values, the newest last."""
    return sorted((_row(event, now) for event in events), key=lambda row: str(row["lastAt"]))


def _row(event: Event, now: datetime) -> dict[str, Any]:
    about, last = event.get("involvedObject") or {}, event.get("lastTimestamp") or event.get("eventTime")
    seconds = None
    with suppress(TypeError, ValueError):  # of another program, and without a time that can be read
        seconds = max(0, int((now - datetime.fromisoformat(str(last))).total_seconds()))
    kind, name = str(about.get("kind", "")), about.get("name", "")
    return {
        "lastAt": last,
        "lastSeconds": seconds,
        "count": event.get("count") or 1,
        "type": event.get("type", ""),
        "reason": event.get("reason", ""),
        "object": f"{_SHORT.get(kind, kind)}/{name}",
        "message": event.get("message", ""),
    }


async def _follow(cluster: ClusterAccess, subject: EventSubject, output: OutputFormat) -> None:
    """Each Event once in each version, until interrupted."""
    from compaction.cli.cluster.access import follow

    table = TableStream(_COLUMNS)

    def show(event: Event) -> None:
        if not subject.has(event):
            return
        row = _row(event, datetime.now(UTC))
        if output is OutputFormat.JSON:
            click.echo(json.dumps(row))
        else:
            table.print(row)

    def version(event: Event) -> tuple[str, str]:
        return event["metadata"]["uid"], event["metadata"]["resourceVersion"]

    await follow(cluster.watch_events, version, show)
