"""`compactor staging sst read` and `write`: any range or metarange, without a store."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import click

from compaction.api.text.formatting import format_bytes, plural
from compaction.cli.histories.lines import STDIN, STDIN_NAME
from compaction.cli.output import Column, OutputFormat, emit, optional, output_option, print_pairs, stream
from compaction.staging.cli.tables.lines import properties_object, properties_of, read_lines, record_line
from compaction.staging.format.ranges import RangeInfo, RangeWriter, TableKind, table_id
from compaction.staging.format.sources import FileSource
from compaction.staging.format.table_reader import TableReader

COLUMNS: Final = (
    Column("key", "Key"),
    Column("identity", "Identity", optional),
    Column("data", "Data", optional),
)


@click.group()
def group() -> None:
    """Read and write files of ranges and metaranges; a store is not needed."""


@group.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--properties", is_flag=True, help="What the table says about itself, its kind and its id, instead.")
@output_option(default=OutputFormat.JSONL, jsonl=True)
def read(*, file: Path, properties: bool, output: OutputFormat) -> None:
    """Print the records of a range or metarange, every byte of it checked.

    A line per record: key and value as base64; where the value is framed, identity and data too; of a range the entry,
    of a metarange the range that the record lists.

    Example: compactor staging sst read range.sst -o jsonl
    """
    with FileSource(file) as source:
        reader = TableReader(source)
        kind = _kind_of(reader)
        if properties:
            _show_properties(reader, kind, source.size, output)
            return
        rows = (record_line(key, value, kind) for batch in reader.batches() for key, value in batch.pairs())
        stream(rows, output, columns=COLUMNS)


@group.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--type", "kind", type=click.Choice([one.value for one in TableKind]), required=True, help="What it is.")
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file to write; one that exists is replaced when all was written.",
)
@click.option(
    "--properties",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Properties as `sst read --properties -o json` prints them, for a table of another writer.",
)
def write(*, file: Path, kind: str, target: Path, properties: Path | None) -> None:
    """Write a range or metarange of the records of FILE (- is standard input), and print its id.

    Lines are those of `sst read`, in the order of their keys; of each, `value` counts, or `identity` and `data`, or
    `entry`. All records go into one table, however many there are.

    Example: compactor staging sst write --type ranges records.jsonl -o range.sst
    """
    user = None if properties is None else properties_of(properties)
    name = STDIN_NAME if str(file) == STDIN else str(file)
    with click.open_file(str(file), "rb") as lines, _replacing(target) as sink:
        writer = RangeWriter(sink, TableKind(kind))
        for batch in read_lines(lines, name=name):
            writer.add(batch)
        info = writer.finish(user=user)
    click.echo(info.id)
    click.echo(_words(info, target), err=True)


def _words(info: RangeInfo, target: Path) -> str:
    return f"{plural(info.count, 'record')}, {format_bytes(target.stat().st_size)}"


def _kind_of(reader: TableReader) -> TableKind | None:
    """What a table is by its properties, None when they do not say."""
    said = reader.properties.user.get(b"type", b"").decode(errors="replace")
    return TableKind(said) if said in set(TableKind) else None


def _show_properties(reader: TableReader, kind: TableKind | None, size: int, output: OutputFormat) -> None:
    found = reader.properties
    shown: dict[str, Any] = {
        "id": None if kind is None else table_id(reader, kind),
        "type": kind,
        "records": found.records,
        "bytes": size,
        "dataBlocks": found.data_blocks,
        "indexLevels": 2 if found.two_levels else 1,
    }
    user = properties_object(found.user)
    if output is OutputFormat.TABLE:
        print_pairs([(name, optional(value)) for name, value in (user | shown).items()])
        return
    shown["properties"] = user
    if output is OutputFormat.JSONL:
        click.echo(json.dumps(shown))
    else:
        emit(shown, output)


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """A file beside the target that takes its place at the end; after an error it is gone, and the target as it was."""
    if target.exists() and not target.is_file():
        # A device or a pipe cannot be replaced.
        with tempfile.TemporaryFile() as spool:
            yield spool
            spool.seek(0)
            with target.open("wb") as device:
                shutil.copyfileobj(spool, device)
        return
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:100]}-", delete=False) as sink:
        done = False
        try:
            yield sink
            sink.flush()
            os.fchmod(sink.fileno(), 0o666 & ~_umask())
            os.replace(sink.name, target)
            done = True
        finally:
            if not done:
                Path(sink.name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
