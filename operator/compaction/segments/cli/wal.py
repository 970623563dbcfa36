"""`compactor segments wal`: what the write-ahead log of a system holds, per file and writer, or record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.formatting import plural
from compaction.cli.errors import EXIT_DATA_ERROR, describe, report, warn
from compaction.cli.output import (
    Column,
    OutputFormat,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_table,
    stream,
)
from compaction.segments.checking.facts import WalFacts, WriterFacts
from compaction.segments.checking.wal import read_wal_files
from compaction.segments.directory.faults import storage_errors
from compaction.segments.errors import InvalidStopError, NotALogDirectoryError, SegmentLogError
from compaction.segments.wal.acceptance import WriterState
from compaction.segments.wal.codec import WalRecord
from compaction.segments.wal.files import lost_since_stop, read_writers, wal_files
from compaction.segments.wal.reader import read_wal

_FILES: Final = (
    Column("file", "file"),
    Column("bytes", "bytes", optional_bytes, right=True),
    Column("records", "records", right=True),
    Column("writers", "writers", right=True),
    Column("state", "state"),
    Column("offset", "offset", optional, right=True),
    Column("reason", "reason", optional),
)
_WRITERS: Final = (
    Column("log", "log"),
    Column("records", "records", right=True),
    Column("first", "first", right=True),
    Column("last", "last", right=True),
    Column("term", "term", right=True),
    Column("payloadBytes", "payload", optional_bytes, right=True),
    Column("truncations", "truncations", right=True),
    Column("files", "files", right=True),
    Column("atRoll", "at roll", optional),
    Column("directory", "directory"),
)
_RECORDS: Final = tuple(Column(key, key) for key in ("file", "offset", "log", "index", "term", "length", "truncate"))


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

    Example: compactor segments wal system --records -o jsonl
    """
    with storage_errors(directory):
        if not wal_files(directory) and not lost_since_stop(directory):
            raise NotALogDirectoryError(str(directory), "it holds no write-ahead log file (NNNNNNNNNNNNNNNN.wal)")
        errors = _print_records(directory, name, output) if records else _print_summary(directory, name, output)
    for error in errors:
        report(error)
    if errors:
        context.exit(EXIT_DATA_ERROR)


def _print_records(directory: Path, name: str | None, output: OutputFormat) -> list[SegmentLogError]:
    errors: list[SegmentLogError] = []
    stream(_record_rows(directory, name, errors.append), output, columns=_RECORDS)
    return errors


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
        for one in wal.writers:
            found.setdefault(one.writer, []).append(one)
    for uid, parts in sorted(found.items()):
        state = at_roll.get(uid)
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
            "directory": "present" if _is_directory(directory, uid) else "gone",
        }


def _is_directory(directory: Path, uid: bytes) -> bool:
    name = uid.decode(errors="surrogateescape")
    return bool(name) and "/" not in name and "\0" not in name and (directory / name).is_dir()
