"""`compactor blocks rebuild-index`: rebuild the content of a lost database from block footers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.text.printing import format_bytes, plural, printable
from compaction.blocks.cli.options import StorePlace, store_options, tell_skipped
from compaction.blocks.errors import NoBlockStoreError
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.model import MAX_SHARD, escape_tenant
from compaction.blocks.store import BlockStore
from compaction.cli.lazy import EXIT_DATA_ERROR
from compaction.cli.output import OutputFormat, emit, output_option
from compaction.cli.places import PATIENCE
from compaction.storage.objects.store import open_objects

if TYPE_CHECKING:
    from rich.progress import Progress

    from compaction.blocks.rebuild.rebuilding import Lake, RebuildProgress, Rebuilt

SHOWN: Final = 20


class LakeParameter(click.ParamType["Lake"]):
    """`2026/=acme/0`: folder, tenant and shard."""

    name = "folder=tenant/shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lake:
        # Who asks for help waits for no import of what reads Parquet.
        from compaction.blocks.rebuild.rebuilding import Lake

        if isinstance(value, Lake):
            return value
        folder, sign, whose = str(value).partition("=")
        tenant, slash, shard = whose.rpartition("/")
        if not (sign and slash and tenant and shard.isascii() and shard.isdecimal() and int(shard) <= MAX_SHARD):
            self.fail("write FOLDER=TENANT/SHARD, such as 2026/=acme/0", param, ctx)
        escape_tenant(tenant)
        return Lake(folder, tenant, int(shard))


@click.command("rebuild-index")
@store_options(may_be_new=True)
@click.option(
    "--lake",
    "lakes",
    type=LakeParameter(),
    metavar="FOLDER=TENANT/SHARD",
    multiple=True,
    help="Tenant of files below FOLDER that were registered in place.",
)
@click.option("--time-column", default="", metavar="NAME", help="The column of time of blocks whose footer names none.")
@click.option(
    "--drop-path-column",
    "given_up",
    metavar="NAME",
    multiple=True,
    help="A column that only paths hold (NAME=VALUE/), given up when the files were registered.",
)
@output_option()
@click.pass_context
def rebuild(
    context: click.Context,
    *,
    place: StorePlace,
    lakes: Sequence[Lake],
    time_column: str,
    given_up: tuple[str, ...],
    output: OutputFormat,
) -> None:
    """Rebuild a lost index from block footers, into an empty database. Only for a store whose index is lost.

    Stop everything that works on the store before. An index that exists is never replaced; the one that was lost is
    refused from then on, should it come back. What cannot be read and what is doubtful is named, and the exit code is
    then 1; nothing is deleted. docs/block-stores.md lists what differs from the lost index.

    Example: compactor blocks rebuild-index --store DIR
    """
    from compaction.blocks.rebuild.rebuilding import rebuild_index

    folder = place.folder
    if folder is not None and not folder.is_dir():
        raise NoBlockStoreError(f"{folder}: folder not found")
    place.check()
    # Not through `place.open`, which refuses a store that names another index: the lost one.
    objects = open_objects(place.url, options=place.connection.options)
    index = IndexDatabase.open(place.connection.index_url, patience=PATIENCE)
    try:
        with _bar() as bar:
            task = bar.add_task("reading footers", total=None)

            def show(progress: RebuildProgress) -> None:
                bar.update(
                    task, total=progress.of, completed=progress.read, description=printable(progress.tenant[:40])
                )

            now = BlockStore(objects, index).now()
            result = rebuild_index(
                objects, index, now=now, lakes=lakes, time_column=time_column, given_up=given_up, report=show
            )
    finally:
        index.close()
        tell_skipped(objects)
    if output is OutputFormat.TABLE:
        _print(result)
    else:
        emit(_object(result), output)
    for path, reason in result.unreadable.items():
        click.echo(f"error: {path} is in no index: {reason}", err=True)
    for doubt in result.doubts:
        click.echo(f"doubtful: {doubt}", err=True)
    if result.unreadable or result.doubts:
        context.exit(EXIT_DATA_ERROR)


def _bar() -> Progress:
    """On standard error, and only when that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print(result: Rebuilt) -> None:
    click.echo(
        f"{plural(result.blocks, 'block')} with {result.rows} rows and {format_bytes(result.bytes)} are live, and wait "
        "for compaction"
    )
    if result.replaced or result.unused:
        replaced, unused = plural(result.replaced, "block"), plural(result.unused, "output")
        click.echo(
            f"skipped: {replaced} that were replaced, {unused} not known to have been committed; collected as "
            "orphans after a week"
        )
    for path in result.left[:SHOWN]:
        click.echo(f"skipped, delete it yourself: {path}")
    if result.foreign:
        shown = ", ".join(result.examples[:3])
        click.echo(f"{plural(result.foreign, 'file')} are named as no block is, and were left alone: {shown}, ...")


def _object(result: Rebuilt) -> dict[str, Any]:
    return {
        "blocks": result.blocks,
        "rows": result.rows,
        "bytes": result.bytes,
        "replaced": result.replaced,
        "unused": result.unused,
        "left": result.left,
        "foreign": result.foreign,
        "failures": [{"path": path, "reason": reason} for path, reason in result.unreadable.items()],
        "doubts": result.doubts,
    }
