"""`compactor blocks orphans`: objects that lie where blocks do and belong to none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from compaction.api.text.formatting import format_age, format_bytes, plural
from compaction.api.text.values import Duration
from compaction.blocks.cli.options import StorePlace, store_options
from compaction.blocks.model import SECOND
from compaction.blocks.store import BlockStore
from compaction.blocks.sweep.orphan_collector import Collected, OrphanSearch, collect_orphans, find_orphans
from compaction.cli.durations import DurationParameter
from compaction.cli.errors import EXIT_DATA_ERROR, report_all
from compaction.cli.output import Column, OutputFormat, emit, optional_bytes, output_option, print_table

COLUMNS: Final = (
    Column("path", "Path"),
    Column("bytes", "Bytes", optional_bytes, right=True),
    Column("seconds", "Age", format_age, right=True),
)


@click.command()
@store_options()
@click.option("--delete", "deleting", is_flag=True, help="Apply (default: dry run).")
@click.option(
    "--older-than",
    type=DurationParameter(),
    default="24h",
    show_default=True,
    help="Minimum age of objects: longer than any writer takes between upload and registration.",
)
@output_option()
@click.pass_context
def orphans(
    context: click.Context, *, place: StorePlace, deleting: bool, older_than: Duration, output: OutputFormat
) -> None:
    """Objects that belong to no block: left by writers and attempts that died. Changes nothing without --delete.

    What an open job may still commit is no orphan, however old. Files that are not named as blocks are
    (TENANT/SHARD/ULID.parquet) are never touched.

    Example: compactor blocks orphans --store DIR --older-than 48h --delete
    """
    age = int(older_than * SECOND)
    with place.open() as store:
        if deleting:
            _show_collected(context, _collect_all(store, age), output)
        else:
            _show_found(find_orphans(store.objects, store.index, older_than=age), output)


def _collect_all(store: BlockStore, age: int) -> Collected:
    """Collect until nothing is left but what the store refuses to delete."""
    objects = size = 0
    failed: Mapping[str, str] = {}
    while True:
        one = collect_orphans(store.objects, store.index, now=store.now(), older_than=age)
        objects, size, failed = objects + one.objects, size + one.bytes, one.failed
        if not one.more or not one.objects:
            return Collected(objects, size, failed, one.more)


def _show_found(found: OrphanSearch, output: OutputFormat) -> None:
    rows: list[dict[str, Any]] = [
        {"path": one.path, "bytes": one.bytes, "seconds": one.age // SECOND} for one in found.orphans
    ]
    if output is not OutputFormat.TABLE:
        data = {"protected": found.protected, "waiting": found.waiting, "more": found.more, "items": rows}
        data["owned"] = [{"path": path, "reason": reason} for path, reason in found.owned.items()]
        emit(data, output)
        return
    if rows:
        print_table(rows, COLUMNS)
    more = "at least " if found.more else ""
    size = format_bytes(sum(one.bytes for one in found.orphans))
    click.echo(f"{more}{plural(len(rows), 'orphan')} with {size}; nothing was changed (--delete does it)")
    if found.protected:
        click.echo(f"{plural(found.protected, 'object')} kept: an open job may still commit them")
    if found.owned:
        path, reason = next(iter(found.owned.items()))
        click.echo(f"{plural(len(found.owned), 'object')} kept: {path}: {reason.removeprefix('it is kept: ')}")
    if found.waiting:
        click.echo(f"{plural(found.waiting, 'object')} kept for a week after the index was created: review them first")


def _show_collected(context: click.Context, found: Collected, output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        failed = [{"path": path, "reason": reason} for path, reason in found.failed.items()]
        emit({"deleted": found.objects, "bytes": found.bytes, "failed": failed}, output)
    else:
        click.echo(f"{plural(found.objects, 'orphan')} with {format_bytes(found.bytes)} deleted")
    if found.failed:
        report_all([f"{path} could not be deleted: {reason}" for path, reason in found.failed.items()])
        context.exit(EXIT_DATA_ERROR)
