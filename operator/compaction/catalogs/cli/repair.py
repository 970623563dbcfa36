"""`compactor catalogs repair`: versions that no process reads, and a way past them."""

from __future__ import annotations

import os
from pathlib import Path

import click

from compaction.catalogs.cli.place import LogPlace, log_options
from compaction.catalogs.manager.repairing import LogRepair, UnreadableVersion
from compaction.cli.errors import EXIT_DATA_ERROR
from compaction.cli.output import Column, OutputFormat, emit, output_option

_COLUMNS = (
    Column("version", "Version", right=True),
    Column("bytes", "Bytes", right=True),
    Column("reason", "Reason"),
    Column("saved", "Saved"),
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
            emit([_row(one, "") for one in found], output, columns=_COLUMNS)
            if found:
                context.exit(EXIT_DATA_ERROR)
            return
        repair = log.plan(frozenset(versions))
        directory.mkdir(parents=True, exist_ok=True)
        rows = [_row(one, str(_save(directory, one))) for one, _ in repair.steps]
        log.replace(repair)
        emit(rows, output, columns=_COLUMNS)


def _save(directory: Path, one: UnreadableVersion) -> Path:
    """On disk before the log changes. An earlier run may have saved the same; another copy is not written over:
    FileExistsError.
    """
    file = directory / f"version-{one.version}.bin"
    if file.exists() and file.read_bytes() == one.value:
        return file
    with file.open("xb") as opened:
        opened.write(one.value)
        opened.flush()
        os.fsync(opened.fileno())
    return file


def _row(one: UnreadableVersion, saved: str) -> dict[str, object]:
    return {"version": one.version, "bytes": len(one.value), "reason": one.reason, "saved": saved}
