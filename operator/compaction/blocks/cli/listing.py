"""`compactor blocks list`: the live blocks, from the index alone."""

from __future__ import annotations

import click

from compaction.api.text.formatting import format_bytes, plural
from compaction.blocks.cli.options import StorePlace, store_options
from compaction.blocks.cli.shapes import BLOCK_COLUMNS, WIDE_COLUMNS, block_object
from compaction.blocks.cli.times import TimeParameter
from compaction.blocks.index.listing import BlockFilter, streamed
from compaction.cli.output import OutputFormat, emit, output_option, print_table, stream


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
