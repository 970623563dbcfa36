"""`compactor staging debug sst`: any range or metarange as lines of JSON, and back, without a store."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import click

from compaction.api.text.printing import format_bytes, plural
from compaction.cli.histories import STDIN, STDIN_NAME, bytes_of_base64, object_of, quoted, text_fields
from compaction.cli.output import OutputColumn, OutputFormat, emit, optional, output_option, print_pairs, stream
from compaction.cli.places import is_given
from compaction.errors import RecordLineError, RecordTextError, shown_bytes
from compaction.staging.cli.values import entry_from, entry_object, entry_of, entry_value
from compaction.staging.errors import CorruptMessageError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import FramingError, frame_value, split_value
from compaction.staging.format.messages import RangeData
from compaction.staging.format.ranges import RangeWriter, TableKind, table_id
from compaction.staging.format.table_reader import FileSource, TableReader
from compaction.staging.format.table_writer import MAX_KEY_BYTES, MAX_VALUE_BYTES

# Records as lines of JSON: a record per line, its bytes as base64.
#
#     {"key": "YQ==", "value": "..."}
#
# `value` is the value as the table has it. Instead of it a line may have `identity` and `data` (the parts of a framed
# value, base64), or `entry` (docs/design/staging.md#values). Lines that were read have all of them; then `value`
# counts.

_BASE64: Final = "Base64"
FIELDS: Final = ("key", "value", "identity", "data", "entry", "range")
MAX_LINE_BYTES: Final = 4 * (MAX_KEY_BYTES + 3 * MAX_VALUE_BYTES)
BATCH_RECORDS: Final = 8192
BATCH_BYTES: Final = 8 << 20


def record_line(key: bytes, value: bytes, kind: TableKind | None) -> dict[str, Any]:
    """The line of a record; what its value means where it has that meaning. `kind`: of the table, None: unknown."""
    line: dict[str, Any] = {"key": _text(key), "value": _text(value)}
    try:
        identity, data = split_value(value)
    except FramingError:
        return line
    line |= {"identity": _text(identity), "data": _text(data)}
    if kind is TableKind.METARANGES:
        try:
            return line | {"range": _range_object(identity, RangeData.decode(data))}
        except CorruptMessageError:
            # The command shows damaged tables too: of such a record it has the bytes.
            return line
    entry = entry_of(identity, data, strictly=False)
    return line if entry is None else line | {"entry": entry_object(entry)}


def read_lines(file: IO[bytes], *, name: str) -> Iterator[RecordColumns]:
    """The records of a file, in batches. OSError; RecordLineError names the first bad line: one that is no record, or
    whose key is not greater than the one before it.
    """
    batch: list[tuple[bytes, bytes]] = []
    size = number = 0
    last: bytes | None = None
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if not raw.strip():
            continue
        try:
            key, value = _record(raw)
            _check_order(last, key)
        except RecordTextError as error:
            raise RecordLineError(name, number, str(error)) from None
        last = key
        batch.append((key, value))
        size += len(key) + len(value)
        if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield RecordColumns.of(batch)
            batch, size = [], 0
    if batch:
        yield RecordColumns.of(batch)


def properties_object(user: Mapping[bytes, bytes]) -> dict[str, str]:
    """The properties of a writer: texts, or under `<name>Base64` what is none."""
    shown: dict[str, str] = {}
    for name, value in sorted(user.items()):
        shown |= text_fields(name.decode(errors="backslashreplace"), value)
    return shown


def properties_of(path: Path) -> dict[bytes, bytes]:
    """The properties in a file that has what `debug sst --properties -o json` prints. OSError, RecordTextError."""
    document = object_of(path.read_bytes(), most=MAX_LINE_BYTES)
    found = document.get("properties")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise RecordTextError(f'{path}: it has no "properties", an object of texts')
    return {
        name.removesuffix(_BASE64).encode(): bytes_of_base64(value, name) if name.endswith(_BASE64) else value.encode()
        for name, value in found.items()
    }


def _record(raw: bytes) -> tuple[bytes, bytes]:
    fields = object_of(raw, most=MAX_LINE_BYTES)
    if unknown := sorted(set(fields) - set(FIELDS)):
        raise RecordTextError(f"a record has no {quoted(unknown[0])}: write {', '.join(FIELDS)}")
    if "key" not in fields:
        raise RecordTextError('a record needs "key"')
    key, value = bytes_of_base64(fields["key"], "key"), _value(fields)
    if len(key) > MAX_KEY_BYTES:
        raise RecordTextError(f'"key" has {len(key)} bytes, more than {MAX_KEY_BYTES}')
    if len(value) > MAX_VALUE_BYTES:
        raise RecordTextError(f"the value has {len(value)} bytes, more than {MAX_VALUE_BYTES}")
    return key, value


def _value(fields: Mapping[str, Any]) -> bytes:
    if "value" in fields:
        return bytes_of_base64(fields["value"], "value")
    if "identity" in fields and "data" in fields:
        parts = (bytes_of_base64(fields[name], name) for name in ("identity", "data"))
        return frame_value(*parts)
    if isinstance(fields.get("entry"), dict):
        return entry_value(entry_from(fields["entry"]))
    raise RecordTextError('a record needs "value", or "identity" and "data", or "entry"')


def _check_order(last: bytes | None, key: bytes) -> None:
    if last is None or last < key:
        return
    wrong = "is there twice" if last == key else f"is not greater than {shown_bytes(last)} before it"
    raise RecordTextError(f"the key {shown_bytes(key)} {wrong}: sort the records by the bytes of their keys")


def _range_object(identity: bytes, data: RangeData) -> dict[str, Any]:
    return {
        "id": identity.decode("ascii", errors="backslashreplace"),
        "minKey": _text(data.min_key),
        "maxKey": _text(data.max_key),
        "count": data.count,
        "estimatedSize": data.estimated_size,
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# `compactor staging debug sst`: any range or metarange is read, or written, without a store.

COLUMNS: Final = (
    OutputColumn("key", "Key"),
    OutputColumn("identity", "Identity", optional),
    OutputColumn("data", "Data", optional),
)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option(
    "--properties", is_flag=True, help="Print what the table says about itself, its kind and its id, instead."
)
@click.option(
    "--write",
    "target",
    metavar="TABLE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the records of FILE into this file; one that exists is replaced when all was written.",
)
@click.option(
    "--type", "kind", type=click.Choice([item.value for item in TableKind]), help="With --write: the kind of the table."
)
@click.option(
    "--with-properties",
    "given",
    metavar="JSON",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --write: properties as `--properties -o json` prints them, for a table of another writer.",
)
@output_option(default=OutputFormat.JSONL, jsonl=True)
def sst(
    *, file: Path, properties: bool, target: Path | None, kind: str | None, given: Path | None, output: OutputFormat
) -> None:
    """Print the records of a range or metarange, every byte of it checked; with --write write one, and print its id.

    A line per record: key and value as base64; where the value is framed, identity and data too; of a range the entry,
    of a metarange the range that the record lists. With --write FILE (- is standard input) has such lines, in the order
    of their keys; of each, `value` counts, or `identity` and `data`, or `entry`. All records go into one table, however
    many there are.

    Example: compactor staging debug sst range.sst -o jsonl
    """
    if target is None:
        if kind is not None or given is not None:
            raise click.UsageError(f"{'--with-properties' if kind is None else '--type'} is of --write: give both")
        if str(file) == STDIN:
            raise click.UsageError("a table is read from a file, not from standard input")
        _read(file, output, properties=properties)
        return
    if kind is None:
        raise click.UsageError(f"which table is written? Give --type {' or '.join(TableKind)}")
    if properties or is_given("output"):
        raise click.UsageError(f"--write prints the id alone: leave out {'--properties' if properties else '--output'}")
    _write(file, target, TableKind(kind), given)


def _read(file: Path, output: OutputFormat, *, properties: bool) -> None:
    with FileSource(file) as source:
        reader = TableReader(source)
        said = reader.properties.user.get(b"type", b"").decode(errors="replace")
        kind = TableKind(said) if said in set(TableKind) else None
        if properties:
            _show_properties(reader, kind, source.size, output)
            return
        rows = (record_line(key, value, kind) for batch in reader.batches() for key, value in batch.pairs())
        stream(rows, output, columns=COLUMNS)


def _write(file: Path, target: Path, kind: TableKind, properties: Path | None) -> None:
    user = None if properties is None else properties_of(properties)
    name = STDIN_NAME if str(file) == STDIN else str(file)
    with click.open_file(str(file), "rb") as lines, _replacing(target) as sink:
        writer = RangeWriter(sink, kind)
        for batch in read_lines(lines, name=name):
            writer.add(batch)
        info = writer.finish(user=user)
    click.echo(info.id)
    click.echo(f"{plural(info.count, 'record')}, {format_bytes(target.stat().st_size)}", err=True)


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
