"""`compactor segments debug wal` and `follow`: the write-ahead log of a system, and changes of logs as they happen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.printing import plural
from compaction.api.text.quantities import Duration
from compaction.cli.lazy import EXIT_DATA_ERROR, describe, report, warn
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    TableStream,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_table,
    stream,
)
from compaction.cli.values import DurationParameter
from compaction.segments.checking.facts import WalFacts, WriterFacts
from compaction.segments.checking.reading import read_wal_files
from compaction.segments.directory.fs import storage_errors
from compaction.segments.errors import InvalidStopError, NotALogDirectoryError, SegmentLogError
from compaction.segments.following.changes import ChangeKind, LogChange
from compaction.segments.following.follower import Follower
from compaction.segments.model import segment_name
from compaction.segments.wal.codec import WalRecord, WriterState
from compaction.segments.wal.files import lost_since_stop, read_writers, wal_files
from compaction.segments.wal.wal_reader import read_wal

# `compactor segments debug wal`: what the write-ahead log of a system holds, per file and writer, or record by record.

_FILES: Final = (
    OutputColumn("file", "file"),
    OutputColumn("bytes", "bytes", optional_bytes, right=True),
    OutputColumn("records", "records", right=True),
    OutputColumn("writers", "writers", right=True),
    OutputColumn("state", "state"),
    OutputColumn("offset", "offset", optional, right=True),
    OutputColumn("reason", "reason", optional),
)
_WRITERS: Final = (
    OutputColumn("log", "log"),
    OutputColumn("records", "records", right=True),
    OutputColumn("first", "first", right=True),
    OutputColumn("last", "last", right=True),
    OutputColumn("term", "term", right=True),
    OutputColumn("payloadBytes", "payload", optional_bytes, right=True),
    OutputColumn("truncations", "truncations", right=True),
    OutputColumn("files", "files", right=True),
    OutputColumn("atRoll", "at roll", optional),
    OutputColumn("directory", "directory"),
)
_RECORDS: Final = tuple(
    OutputColumn(key, key) for key in ("file", "offset", "log", "index", "term", "length", "truncate")
)


@click.command("wal")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--records", is_flag=True, help="Print each record instead of the summary.")
@click.option("--log", "name", help="Only the records of this log.")
@output_option(jsonl=True)
@click.pass_context
def wal_command(
    context: click.Context, /, *, directory: Path, records: bool, name: str | None, output: OutputFormat
) -> None:
    """Show the write-ahead log of the system of logs in DIR: its files, and what each log wrote to them.

    Reads only, also while the owner writes. A torn record at the end of a file was not acknowledged, unless the system
    was stopped cleanly; that, and damage before a whole record, is named on stderr, what precedes it is shown, and the
    exit code is then 1.

    Example: compactor segments debug wal system --records -o jsonl
    """
    with storage_errors(directory):
        if not wal_files(directory) and not lost_since_stop(directory):
            raise NotALogDirectoryError(str(directory), "it holds no write-ahead log file (NNNNNNNNNNNNNNNN.wal)")
        if records:
            errors: list[SegmentLogError] = []
            stream(_record_rows(directory, name, errors.append), output, columns=_RECORDS)
        else:
            errors = _print_summary(directory, name, output)
    for error in errors:
        report(error)
    if errors:
        context.exit(EXIT_DATA_ERROR)


def _record_rows(
    directory: Path, name: str | None, on_error: Callable[[SegmentLogError], None]
) -> Iterator[dict[str, Any]]:
    for path in wal_files(directory):
        try:
            with read_wal(path) as reader:
                for record in reader:
                    row = _record_row(path, record)
                    if name is None or row["log"] == name:
                        yield row
            if reader.tail is not None:
                warn(f"{path}: the record at offset {reader.tail.offset} does not count: {reader.tail.reason}")
        except FileNotFoundError:
            continue  # its entries are in segments by now
        except SegmentLogError as error:
            on_error(error)
    with suppress(InvalidStopError):  # each file says so
        for lost in lost_since_stop(directory):
            on_error(lost)


def _record_row(path: Path, record: WalRecord) -> dict[str, Any]:
    return {
        "file": path.name,
        "offset": record.offset,
        "log": record.writer.decode(errors="backslashreplace"),
        "index": record.index,
        "term": record.term,
        "length": len(record.payload),
        "truncate": record.truncate,
    }


def _print_summary(directory: Path, name: str | None, output: OutputFormat) -> list[SegmentLogError]:
    files = read_wal_files(directory, on_record=lambda _record, _number: None)
    errors = [wal.damage for wal in files if wal.damage is not None]
    at_roll: Mapping[bytes, WriterState] = {}
    try:
        at_roll = read_writers(directory)
    except SegmentLogError as error:
        warn(f"{describe(error)}: the owner writes it again when it starts")
    rows = [_file_row(wal) for wal in files]
    writers = [row for row in _writer_rows(directory, files, at_roll) if name is None or row["log"] == name]
    if output is OutputFormat.TABLE:
        print_table(rows, _FILES)
        click.echo()
        print_table(writers, _WRITERS)
        click.echo(f"\n{plural(sum(wal.records for wal in files), 'record')} in {plural(len(files), 'file')}")
    else:
        emit({"system": str(directory), "files": rows, "writers": writers}, output)
    return errors


def _file_row(wal: WalFacts) -> dict[str, Any]:
    row: dict[str, Any] = {
        "file": wal.path.name,
        "bytes": wal.size,
        "records": wal.records,
        "writers": len(wal.writers),
        "state": "Whole",
        "offset": None,
        "reason": None,
    }
    if wal.damage is not None:
        offset = getattr(wal.damage, "offset", 0)
        row |= {"state": "Damaged", "offset": offset, "reason": getattr(wal.damage, "reason", str(wal.damage))}
    elif wal.tail is not None:
        row |= {"state": "TornEnd", "offset": wal.tail.offset, "reason": wal.tail.reason}
    elif wal.is_held:
        row |= {"state": "Held", "reason": "its owner could not open the logs whose records it holds"}
    return row


def _writer_rows(
    directory: Path, files: Sequence[WalFacts], at_roll: Mapping[bytes, WriterState]
) -> Iterator[dict[str, Any]]:
    """One per log that has records in the files, or is in the snapshot of writers; in name order."""
    found: dict[bytes, list[WriterFacts]] = {uid: [] for uid in at_roll}
    for wal in files:
        for writer in wal.writers:
            found.setdefault(writer.writer, []).append(writer)
    for uid, parts in sorted(found.items()):
        state = at_roll.get(uid)
        folder = uid.decode(errors="surrogateescape")
        exists = bool(folder) and "/" not in folder and "\0" not in folder and (directory / folder).is_dir()
        yield {
            "log": uid.decode(errors="backslashreplace"),
            "records": sum(part.records for part in parts),
            "first": min((part.first for part in parts), default="-"),
            "last": parts[-1].last if parts else "-",
            "term": parts[-1].term if parts else "-",
            "payloadBytes": sum(part.payload_bytes for part in parts),
            "truncations": sum(part.truncations for part in parts),
            "files": len(parts),
            "atRoll": None if state is None else f"{state.last} {state.standing}",
            "directory": "present" if exists else "gone",
        }


# `compactor segments debug follow`: what happens in a log, or a system of logs, one line per change.

_KIND_WIDTH: Final = max(len(kind) for kind in ChangeKind)
_NAME_WIDTH: Final = len(segment_name(0))
"""From the first line on: a table that is read as it comes does not widen."""
_COLUMNS: Final = (
    OutputColumn("time", "time", lambda text: text[11:23]),
    OutputColumn("log", "log", lambda name: name or "-"),
    OutputColumn("change", "change", lambda kind: kind.ljust(_KIND_WIDTH)),
    OutputColumn("file", "file", lambda name: (name or "-").ljust(_NAME_WIDTH)),
    OutputColumn("detail", "detail"),
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
    help="Format of the changes.",
)
def follow(
    *, directory: Path, once: bool, duration: Duration | None, name: str | None, every: Duration, output: str
) -> None:
    """Show what happens in the log, or the system of logs, in DIR until Ctrl-C: what is written, rolled, moved into
    segments, snapshots and what they keep live, what is compacted, linked and deleted. It begins with what is there.

    Reads only and takes no lock, so neither an owner nor a compactor waits for it. Changes that are undone between two
    readings are not seen. Times are UTC.

    Exit codes: 0 --once or --for ended; 1 DIR could not be read; 130 Ctrl-C.

    Example: compactor segments debug follow system --for 10m -o jsonl
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


def _print(moment: str, change: LogChange, output: OutputFormat, table: TableStream) -> None:
    row = {"time": moment, "log": change.log, "change": str(change.kind), "file": change.file, "detail": change.detail}
    if output is OutputFormat.JSONL:
        click.echo(json.dumps(row))
    else:
        table.print(row)
