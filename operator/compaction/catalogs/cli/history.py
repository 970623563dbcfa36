"""`compactor catalogs history`: the versions that a log keeps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from compaction.catalogs.cli.place import LogPlace, log_options
from compaction.catalogs.cli.versions import moment
from compaction.catalogs.codec import canonical
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.model.entries import Snapshot
from compaction.cli.output import Column, OutputFormat, emit, output_option

_COLUMNS = (
    Column("version", "Version", right=True),
    Column("activeAt", "Active at"),
    Column("kind", "Kind"),
    Column("changes", "Changes"),
)


@click.command("history")
@log_options
@output_option(jsonl=True)
def history_command(*, place: LogPlace, output: OutputFormat) -> None:
    """List the versions that the update log keeps: a snapshot first when history was cut, then each update.

    json, yaml and jsonl have the whole value in its canonical form, and the hybrid timestamp of its activation.

    Example: compactor catalogs history --etcd http://127.0.0.1:2379 --prefix /catalogs/orders
    """
    with place.opened() as log:
        events = log.recover().events
    if output is OutputFormat.TABLE:
        emit([_row(one) for one in events], output, columns=_COLUMNS)
    else:
        emit([_whole(one) for one in events], output)


def _row(one: LogEvent) -> dict[str, Any]:
    row = {"version": one.event.version, "activeAt": moment(one.activation_time)}
    if isinstance(one.event, Snapshot):
        tables = sum(len(contents.tables) for contents in one.event.schemas)
        return {**row, "kind": "Snapshot", "changes": f"{len(one.event.schemas)} schemas, {tables} tables"}
    counted = Counter(canonical.entry(entry)["@type"] for entry in one.event.entries)
    changes = ", ".join(name if count == 1 else f"{name} x {count}" for name, count in counted.items())
    return {**row, "kind": "Update", "changes": changes}


def _whole(one: LogEvent) -> dict[str, Any]:
    return {"version": one.event.version, "activationTime": one.activation_time, "value": canonical.event(one.event)}
