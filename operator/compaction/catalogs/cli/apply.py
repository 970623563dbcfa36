"""`compactor catalogs apply`: commands of a file, each a version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from compaction.catalogs.cli.ddl import batches_of
from compaction.catalogs.cli.place import LogPlace, log_options
from compaction.catalogs.cli.versions import moment
from compaction.catalogs.commands.command import Command
from compaction.catalogs.manager.executing import Executed
from compaction.catalogs.manager.manager import CatalogManager
from compaction.catalogs.manager.settings import Settings
from compaction.cli.output import Column, OutputFormat, TableStream, emit, output_option

_COLUMNS = (
    Column("step", "Step", right=True),
    Column("version", "Version", right=True),
    Column("applied", "Applied"),
    Column("activeAt", "Active at"),
)


@click.command("apply")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--delay",
    metavar="MILLISECONDS",
    type=click.IntRange(1, 3_600_000),
    default=Settings().delay,
    show_default=True,
    help="From the writing of a version to its activation; all processes of a catalog have the same.",
)
@click.option(
    "--max-skew",
    metavar="MILLISECONDS",
    type=click.IntRange(0, 3_600_000),
    default=Settings().max_skew,
    show_default=True,
    help="Most that the clocks of two processes are apart.",
)
@log_options
@output_option(jsonl=True)
def apply_command(*, file: Path, delay: int, max_skew: int, place: LogPlace, output: OutputFormat) -> None:
    """Run the DDL commands of FILE, a YAML list: each item is a command, or a list of them that becomes one version.

    Each step is shown when all processes see it; the first that is refused ends the run, and those before it stay. A
    step that has nothing to do writes no version. `type` names the command, docs/catalogs.md lists them:

    \b
      - type: CREATE_ZONE
        zone: fast
        storageProfiles: [default]

    Example: compactor catalogs apply ddl.yaml --etcd http://127.0.0.1:2379 --prefix /catalogs/orders
    """
    batches = batches_of(file)
    table = TableStream(_COLUMNS)
    rows: list[dict[str, Any]] = []
    with place.opened() as log:
        manager = CatalogManager(log, settings=Settings(delay=delay, max_skew=max_skew))
        try:
            manager.start()
            manager.initialization.result()
            for row in _run(manager, batches):
                rows.append(row)
                if output is OutputFormat.TABLE:
                    table.print(row)
                elif output is OutputFormat.JSONL:
                    emit(row, output)
        finally:
            manager.close()
            if output in (OutputFormat.JSON, OutputFormat.YAML):
                emit(rows, output)


def _run(manager: CatalogManager, batches: Sequence[Sequence[Command]]) -> Iterator[dict[str, Any]]:
    for step, running in enumerate(manager.execute_in_turn(batches), start=1):
        done = running.result()
        if done is not None:
            yield _row(step, done)


def _row(step: int, done: Executed) -> dict[str, Any]:
    applied = f"{sum(done.applied)} of {len(done.applied)}"
    return {"step": step, "version": done.version, "applied": applied, "activeAt": moment(done.time)}
