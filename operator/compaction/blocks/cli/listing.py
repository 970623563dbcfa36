"""`compactor blocks list` and `quarantine`: live blocks, and those in quarantine, from the index alone."""

from __future__ import annotations

from typing import Any, Final

import click

from compaction.api.text.printing import format_age, format_bytes, plural
from compaction.blocks.cli.options import StorePlace, TimeParameter, age, store_options, time_text
from compaction.blocks.cli.shapes import BLOCK_COLUMNS, WIDE_COLUMNS, block_object
from compaction.blocks.errors import UnknownBlockError
from compaction.blocks.index.live_blocks import BlockFilter, BlockRecord, streamed
from compaction.blocks.index.tables import BlockState, TombstoneReason
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_table,
    stream,
)

# `compactor blocks list`: the live blocks, from the index alone.


@click.command("list")
@store_options()
@click.option("--tenant", help="Only of this tenant.")
@click.option("--shard", type=click.IntRange(0), help="Only of this shard.")
@click.option("--level", type=click.IntRange(0), help="Only of this level.")
@click.option("--from", "start", type=TimeParameter(), help="Only with rows at this time or later.")
@click.option("--to", "end", type=TimeParameter(), help="Only with rows at this time or earlier.")
@output_option(wide=True, jsonl=True)
def list_command(
    *,
    place: StorePlace,
    tenant: str | None,
    shard: int | None,
    level: int | None,
    start: int | None,
    end: int | None,
    output: OutputFormat,
) -> None:
    """List the live blocks, all as of the same instant: what a reader is to read, through any compaction.

    Their objects stay readable for the grace after that instant.

    Example: compactor blocks list --store DIR --tenant acme --from 2026-11-21 --to 2026-11-21T12:00:00Z -o jsonl
    """
    which = BlockFilter(tenant, shard, level, start, end)
    with place.open() as store:
        if output is OutputFormat.JSONL:
            with streamed(store.index, which) as (_, blocks):
                stream(map(block_object, blocks), output, columns=())
            return
        listing = store.live(which)
    rows = [block_object(block) for block in listing.blocks]
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"version": listing.version, "items": rows}, output)
        return
    if rows:
        print_table(rows, WIDE_COLUMNS if output is OutputFormat.WIDE else BLOCK_COLUMNS)
    size = format_bytes(sum(block.bytes for block in listing.blocks))
    click.echo(f"{plural(len(rows), 'block')}, {sum(block.rows for block in listing.blocks)} rows, {size}")


# `compactor blocks quarantine`: blocks that cannot be compacted and were quarantined, so that the others can.
#
# A block in quarantine is live: readers get it. It waits for a person: `retry` when the cause is gone, `drop` when
# its rows are given up.

_COLUMNS: Final = (
    OutputColumn("block", "Block"),
    OutputColumn("tenant", "Tenant"),
    OutputColumn("shard", "Shard", right=True),
    OutputColumn("level", "Level", right=True),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
    OutputColumn("reason", "Reason"),
    OutputColumn("seconds", "Age", format_age),
)
_WIDE: Final = (
    *_COLUMNS,
    OutputColumn("job", "Job", optional),
    OutputColumn("path", "Path"),
    OutputColumn("message", "Message"),
)


@click.group("quarantine")
def group() -> None:
    """Manage quarantined blocks: damaged ones that plans leave out, so that the others are compacted."""


@group.command("list")
@store_options()
@output_option(wide=True)
def list_quarantine_command(*, place: StorePlace, output: OutputFormat) -> None:
    """List quarantined blocks, the oldest first. -o wide adds the damage."""
    with place.open() as store:
        now = store.now()
        rows: list[dict[str, Any]] = [
            {
                "block": item.block.id,
                "tenant": item.block.tenant,
                "shard": item.block.shard,
                "level": item.block.level,
                "path": item.block.path,
                "rows": item.block.rows,
                "bytes": item.block.bytes,
                "reason": item.fault.reason,
                "message": item.fault.message,
                "job": item.job,
                "since": time_text(item.since),
                "seconds": age(item.since, now),
            }
            for item in store.quarantined()
        ]
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"items": rows}, output)
    elif rows:
        print_table(rows, _WIDE if output is OutputFormat.WIDE else _COLUMNS)
    else:
        click.echo("no block is quarantined")


@group.command("retry")
@click.argument("blocks", metavar="ID...", nargs=-1, required=True)
@store_options()
def retry(*, blocks: tuple[str, ...], place: StorePlace) -> None:
    """Let blocks wait for compaction again, at the end of the queue.

    The next job that reads a damaged block quarantines it again; retrying loses nothing.
    """
    with place.open() as store:
        for block in blocks:
            released = store.release(block)
            outcome = "waits for compaction again" if released else "was not quarantined"
            click.echo(f"block {block} {outcome}")


@group.command("drop")
@click.argument("blocks", metavar="ID...", nargs=-1, required=True)
@store_options()
@click.option("--yes", is_flag=True, help="Do not prompt.")
def drop(*, blocks: tuple[str, ...], place: StorePlace, yes: bool) -> None:
    """Drop quarantined blocks and their rows: readers no longer get them, their objects are deleted after the
    grace.
    """
    with place.open() as store:
        known = {item.block.id: item.block.rows for item in store.quarantined()}
        for block in blocks:
            if block not in known:
                _refuse_drop(block, store.inspect(block))
        if not yes:
            lost = sum(known.get(block, 0) for block in blocks)
            click.confirm(f"Give up {plural(len(blocks), 'block')} with {lost} rows?", abort=True)
        for block in blocks:
            dropped = store.drop(block)
            click.echo(f"block {block} dropped" if dropped else f"block {block} was dropped before")


def _refuse_drop(block: str, record: BlockRecord | None) -> None:
    """Users can drop only quarantined blocks; repeating a drop is harmless. Raises UnknownBlockError."""
    if record is None:
        raise UnknownBlockError(block, "unknown")
    if record.state is BlockState.LIVE:
        raise UnknownBlockError(block, "not in quarantine")
    if record.ended not in (None, TombstoneReason.DROPPED):
        raise UnknownBlockError(block, f"{record.ended}, not in quarantine")
