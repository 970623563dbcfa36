"""`compactor segments follow`: what happens in a log, or a system of logs, one line per change."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from compaction.api.text.values import Duration
from compaction.cli.durations import DurationParameter
from compaction.cli.output import Column, OutputFormat, TableStream
from compaction.segments.following.changes import Change, ChangeKind
from compaction.segments.following.follower import Follower
from compaction.segments.model import segment_name

_KIND_WIDTH: Final = max(len(kind) for kind in ChangeKind)
_NAME_WIDTH: Final = len(segment_name(0))
"""From the first line on: a table that is read as it comes does not widen."""
_COLUMNS: Final = (
    Column("time", "time", lambda text: text[11:23]),
    Column("log", "log", lambda name: name or "-"),
    Column("change", "change", lambda kind: kind.ljust(_KIND_WIDTH)),
    Column("file", "file", lambda name: (name or "-").ljust(_NAME_WIDTH)),
    Column("detail", "detail"),
)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--once", is_flag=True, help="Print what is there now, and end.")
@click.option("--for", "duration", type=DurationParameter(), metavar="DURATION", help="End after this time.")
@click.option("--log", "name", help="Only changes of this log.")
@click.option(
    "--every", type=DurationParameter(least=0.01), default="500ms", show_default=True, help="Time between two readings."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice([OutputFormat.TABLE.value, OutputFormat.JSONL.value]),
    default=OutputFormat.TABLE.value,
    show_default=True,
    help="How to print the changes.",
)
def follow(
    *, directory: Path, once: bool, duration: Duration | None, name: str | None, every: Duration, output: str
) -> None:
    """Show what happens in the log, or the system of logs, in DIR until Ctrl-C: what is written, rolled, moved into
    segments, snapshots and what they keep live, what is compacted, linked and deleted. It begins with what is there.

    Reads only and takes no lock, so neither an owner nor a compactor waits for it. Changes that are undone between two
    readings are not seen. Times are UTC.

    Exit codes: 0 --once or --for ended; 1 DIR could not be read; 130 Ctrl-C.

    Example: compactor segments follow system --for 10m -o jsonl
    """
    if once and duration is not None:
        raise click.UsageError("give --once or --for, not both")
    follower = Follower(directory)
    end = None if duration is None else time.monotonic() + float(duration)
    table = TableStream(_COLUMNS)
    while True:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for change in follower.poll():
            if name is None or change.log == name:
                _print(moment, change, OutputFormat(output), table)
        if once or (end is not None and time.monotonic() >= end):
            return
        time.sleep(float(every) if end is None else max(0.0, min(float(every), end - time.monotonic())))


def _print(moment: str, change: Change, output: OutputFormat, table: TableStream) -> None:
    row = {"time": moment, "log": change.log, "change": str(change.kind), "file": change.file, "detail": change.detail}
    if output is OutputFormat.JSONL:
        click.echo(json.dumps(row))
    else:
        table.print(row)
