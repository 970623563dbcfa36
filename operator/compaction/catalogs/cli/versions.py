"""`compactor catalogs list`, `inspect`, `diff`, `repair` and `debug decode`: the versions of a log, readable or not."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from compaction.api.base import format_timestamp, timestamp_from_epoch
from compaction.catalogs.cli.place import LogPlace, log_options
from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import decode_exact, encode
from compaction.catalogs.errors import CatalogError, CatalogValueError, CatalogValueSizeError
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.manager.history import CatalogHistory, recovered
from compaction.catalogs.manager.repairing import LogRepair, UnreadableVersion
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import MAX_LOGICAL, hybrid, physical
from compaction.catalogs.model.entries import Snapshot
from compaction.cli.lazy import EXIT_DATA_ERROR, report
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_pairs, stream

# Selection of the version that a command shows, and the form of versions in its answers.

Command = TypeVar("Command", bound=Callable[..., Any])


def moment(timestamp: int) -> str:
    """A hybrid timestamp as RFC 3339, whole seconds; `-` for that of version 0."""
    milliseconds = physical(timestamp)
    return format_timestamp(timestamp_from_epoch(milliseconds / 1000)) if milliseconds else "-"


def version_options(command: Command) -> Command:
    """The options `--version` and `--at`, passed to the command as they are."""
    at = click.option("--at", metavar="TIME", help="The version active at this time, RFC 3339.")
    return click.option("--version", type=click.IntRange(0), help="The version of this number.")(at(command))


def chosen(history: CatalogHistory, version: int | None, at: str | None) -> Catalog:
    """The version asked for, the latest without one. Raises click.UsageError and CatalogNotFoundError."""
    if version is not None and at is not None:
        raise click.UsageError("--version and --at name two versions: leave out one")
    if version is not None:
        return history.catalog(version)
    return history.latest if at is None else history.active(_timestamp(at))


def _timestamp(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
        return hybrid(int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000), MAX_LOGICAL)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"--at {text}: not a time; write it as 2026-11-25T20:00:00Z") from error


# `compactor catalogs inspect`: what is in one version.

_OBJECT_COLUMNS = (
    OutputColumn("kind", "Kind"),
    OutputColumn("id", "Id", right=True),
    OutputColumn("schema", "Schema"),
    OutputColumn("name", "Name"),
    OutputColumn("details", "Details"),
)


@click.command("inspect")
@log_options
@version_options
@output_option()
def inspect_command(*, place: LogPlace, version: int | None, at: str | None, output: OutputFormat) -> None:
    """Show a version of a catalog: by default the latest, else that of --version, or the one active --at a time.

    json and yaml have the canonical form, with every column and the fingerprint.

    Example: compactor catalogs inspect --etcd http://127.0.0.1:2379 --prefix /catalogs/orders --version 7
    """
    with place.opened() as log:
        found = chosen(recovered(log.recover().events), version, at)
    if output is not OutputFormat.TABLE:
        emit({**canonical.catalog(found), "fingerprint": canonical.fingerprint(found)}, output)
        return
    zone = found.default_zone
    print_pairs(
        [
            ("Version", str(found.version)),
            ("Active at", moment(found.activation_time)),
            ("Default zone", "-" if zone is None else zone.name),
            ("Fingerprint", canonical.fingerprint(found)),
        ]
    )
    click.echo()
    emit(list(objects(found)), output, columns=_OBJECT_COLUMNS)


def objects(catalog: Catalog) -> Iterator[dict[str, Any]]:
    """A row for each object of a version: zones, then schemas with what is in them, by ascending id."""
    for zone in sorted(catalog.zones.values(), key=lambda zone: zone.id):
        details = f"{zone.partitions} partitions, {zone.replicas} replicas"
        yield {"kind": "Zone", "id": zone.id, "schema": "-", "name": zone.name, "details": details}
    for contents in catalog.contents():
        schema = contents.schema.name
        yield {"kind": "Schema", "id": contents.schema.id, "schema": "-", "name": schema, "details": "-"}
        for table in contents.tables:
            details = f"{len(table.columns)} columns, {len(table.versions)} column sets"
            yield {"kind": "Table", "id": table.id, "schema": schema, "name": table.name, "details": details}
        for index in contents.indexes:
            details = f"{index.kind.name.lower()}, {index.status.name.lower()}, of table {index.table_id}"
            yield {"kind": "Index", "id": index.id, "schema": schema, "name": index.name, "details": details}
        for view in contents.views:
            yield {
                "kind": "View",
                "id": view.id,
                "schema": schema,
                "name": view.name,
                "details": view.kind.name.lower(),
            }


# `compactor catalogs diff`: what two versions of a catalog have in common, left out.

_DIFFERENCE_COLUMNS = (
    OutputColumn("change", "Change"),
    OutputColumn("kind", "Kind"),
    OutputColumn("id", "Id", right=True),
    OutputColumn("name", "Name"),
    OutputColumn("fields", "Fields", lambda value: ", ".join(value) or "-"),
)
_NESTED = frozenset({"tables", "indexes", "systemViews"})
_KINDS = {"zones": "Zone", "schemas": "Schema", "tables": "Table", "indexes": "Index", "systemViews": "View"}
Objects = dict[tuple[str, int], dict[str, Any]]


@click.command("diff")
@click.argument("first", metavar="A", type=click.IntRange(0))
@click.argument("second", metavar="B", type=click.IntRange(0))
@log_options
@output_option()
def diff_command(*, first: int, second: int, place: LogPlace, output: OutputFormat) -> None:
    """List what changed from version A to version B: objects that were created, changed or deleted.

    Example: compactor catalogs diff 3 7 --etcd http://127.0.0.1:2379 --prefix /catalogs/orders
    """
    with place.opened() as log:
        history = recovered(log.recover().events)
    emit(list(differences(history.catalog(first), history.catalog(second))), output, columns=_DIFFERENCE_COLUMNS)


def differences(before: Catalog, after: Catalog) -> Iterator[dict[str, Any]]:
    """A row {change, kind, id, name, fields} for each object that is not the same, by kind and id."""
    old, new = _objects(before), _objects(after)
    for place in sorted(old.keys() | new.keys()):
        mine, theirs = old.get(place), new.get(place)
        if mine == theirs:
            continue
        fields: list[str] = []
        if mine is not None and theirs is not None:
            fields = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        change = "Created" if mine is None else "Deleted" if theirs is None else "Changed"
        kind, id = place
        named = theirs if theirs is not None else mine
        yield {"change": change, "kind": kind, "id": id, "name": (named or {})["name"], "fields": fields}


def _objects(catalog: Catalog) -> Objects:
    """(kind, id) -> its canonical form, without what is in it."""
    found: Objects = {}
    shown = canonical.catalog(catalog)
    for schema in shown["schemas"]:
        for part in _NESTED:
            for item in schema[part]:
                found[_KINDS[part], item["id"]] = item
        found["Schema", schema["id"]] = {name: value for name, value in schema.items() if name not in _NESTED}
    for zone in shown["zones"]:
        found["Zone", zone["id"]] = zone
    return found


# `compactor catalogs list`: the versions that a log keeps.

_EVENT_COLUMNS = (
    OutputColumn("version", "Version", right=True),
    OutputColumn("activeAt", "Active at"),
    OutputColumn("kind", "Kind"),
    OutputColumn("changes", "Changes"),
)


@click.command("list")
@log_options
@output_option(jsonl=True)
def list_command(*, place: LogPlace, output: OutputFormat) -> None:
    """List the versions that the update log keeps: a snapshot first when history was cut, then each update.

    json, yaml and jsonl have the whole value in its canonical form, and the hybrid timestamp of its activation.

    Example: compactor catalogs list --etcd http://127.0.0.1:2379 --prefix /catalogs/orders
    """
    with place.opened() as log:
        events = log.recover().events
    if output is OutputFormat.TABLE:
        emit([_event_row(event) for event in events], output, columns=_EVENT_COLUMNS)
    else:
        emit([_whole(event) for event in events], output)


def _event_row(logged: LogEvent) -> dict[str, Any]:
    row = {"version": logged.event.version, "activeAt": moment(logged.activation_time)}
    if isinstance(logged.event, Snapshot):
        tables = sum(len(contents.tables) for contents in logged.event.schemas)
        return {**row, "kind": "Snapshot", "changes": f"{len(logged.event.schemas)} schemas, {tables} tables"}
    counted = Counter(canonical.entry(entry)["@type"] for entry in logged.event.entries)
    changes = ", ".join(name if count == 1 else f"{name} x {count}" for name, count in counted.items())
    return {**row, "kind": "Update", "changes": changes}


def _whole(logged: LogEvent) -> dict[str, Any]:
    return {
        "version": logged.event.version,
        "activationTime": logged.activation_time,
        "value": canonical.event(logged.event),
    }


# `compactor catalogs debug decode`: values of an update log in the canonical form.

LARGEST: Final = 64 << 20
"""Bytes of a value that are read: far beyond what a log accepts."""


@click.command("decode")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--reencode", is_flag=True, help="Encode each value again, with the newest serializers of its protocol.")
@output_option(default=OutputFormat.JSONL, jsonl=True)
@click.pass_context
def decode_command(context: click.Context, *, files: Sequence[Path], reencode: bool, output: OutputFormat) -> None:
    """Show each FILE, a value of an update log in protocol 1 or 2 of Apache Ignite 3, as a line of canonical JSON.

    A value that is damaged, of an unknown type or version, or that the newest serializers cannot hold (`reencoded` is
    null then), is named on stderr; the others are shown, and the exit code is 1.

    Example: compactor catalogs debug decode updates/*.bin --reencode
    """
    refused: list[Path] = []
    rows = _rows(files, reencode, refused)
    if output is OutputFormat.JSONL:
        for row in rows:
            click.echo(canonical.text(row))
    else:
        stream(rows, output, columns=())
    if refused:
        context.exit(EXIT_DATA_ERROR)


def _rows(files: Sequence[Path], reencode: bool, refused: list[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        try:
            found = decode_exact(_read(file), str(file))
        except (CatalogError, OSError, ValueError) as error:
            report(error)
            refused.append(file)
            continue
        row = {"file": str(file), "protocol": found.protocol, "value": canonical.event(found.event)}
        if reencode:
            try:
                row["reencoded"] = encode(found.event, found.protocol).hex()
            except CatalogValueError as error:
                report(f"{file}: {error}")
                refused.append(file)
                row["reencoded"] = None
        yield row


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise CatalogValueSizeError(str(file), LARGEST)
    return data


# `compactor catalogs repair`: versions that no process reads, and a way past them.

_UNREADABLE_COLUMNS = (
    OutputColumn("version", "Version", right=True),
    OutputColumn("bytes", "Bytes", right=True),
    OutputColumn("reason", "Reason"),
    OutputColumn("saved", "Saved"),
)


@click.command("repair")
@click.option(
    "--step-over",
    "versions",
    metavar="VERSION",
    type=click.IntRange(1),
    multiple=True,
    help="Replace this version, which cannot be read, by one that changes nothing; may be repeated.",
)
@click.option(
    "--save",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory that keeps the bytes of each replaced version, as version-N.bin; required with --step-over.",
)
@log_options
@output_option(jsonl=True)
@click.pass_context
def repair_command(
    context: click.Context, *, versions: tuple[int, ...], directory: Path | None, place: LogPlace, output: OutputFormat
) -> None:
    """List the versions of an update log that no process can read, and step over them on request.

    Such a version stops every process of the catalog. Without --step-over nothing is changed, and the exit code is 1
    when there is one. What the version was to change is lost to the catalog; its bytes are saved first. A version that
    can be read is never replaced, nor is one that a later version needs.

    Example: compactor catalogs repair --step-over 17 --save ./saved --etcd http://127.0.0.1:2379 --prefix
    /catalogs/orders
    """
    if bool(versions) != (directory is not None):
        raise click.UsageError("--step-over needs --save DIRECTORY, and the other way round")
    with place.client() as client:
        log = LogRepair(client, place.prefix)
        if directory is None:
            found = log.unreadable()
            emit([_unreadable_row(item, "") for item in found], output, columns=_UNREADABLE_COLUMNS)
            if found:
                context.exit(EXIT_DATA_ERROR)
            return
        repair = log.plan(frozenset(versions))
        directory.mkdir(parents=True, exist_ok=True)
        rows = [_unreadable_row(item, str(_save(directory, item))) for item, _ in repair.steps]
        log.replace(repair)
        emit(rows, output, columns=_UNREADABLE_COLUMNS)


def _save(directory: Path, version: UnreadableVersion) -> Path:
    """On disk before the log changes. An earlier run may have saved the same; another copy is not written over:
    FileExistsError.
    """
    file = directory / f"version-{version.version}.bin"
    if file.exists() and file.read_bytes() == version.value:
        return file
    with file.open("xb") as opened:
        opened.write(version.value)
        opened.flush()
        os.fsync(opened.fileno())
    return file


def _unreadable_row(version: UnreadableVersion, saved: str) -> dict[str, object]:
    return {"version": version.version, "bytes": len(version.value), "reason": version.reason, "saved": saved}
