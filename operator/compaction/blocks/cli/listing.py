"""`compactor blocks list` and `quarantine`: live blocks, and those in quarantine, from the index alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from compaction.api.text.printing import format_age, format_bytes, plural
from compaction.blocks.cli.options import StorePlace, TimeParameter, age, store_options, time_text
from compaction.blocks.cli.shapes import BLOCK_COLUMNS, WIDE_COLUMNS, block_object
from compaction.blocks.errors import UnknownBlockError
from compaction.blocks.index.live_blocks import BlockFilter, BlockRecord, streamed
from compaction.blocks.index.queued import Quarantined
from compaction.blocks.index.tables import BlockState, TombstoneReason
from compaction.blocks.store import BlockStore
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
from compaction.cli.places import is_given

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
# A block in quarantine is live: readers get it. It waits for a person: --release when the cause is gone, --drop when
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


@click.command()
@click.argument("blocks", metavar="[ID]...", nargs=-1)
@store_options()
@click.option("--release", is_flag=True, help="Let the named blocks wait for compaction again.")
@click.option("--drop", is_flag=True, help="Drop the named blocks and their rows.")
@click.option("--yes", is_flag=True, help="Do not prompt (with --drop).")
@output_option(wide=True)
def quarantine(
    *, blocks: tuple[str, ...], place: StorePlace, release: bool, drop: bool, yes: bool, output: OutputFormat
) -> None:
    """List quarantined blocks, all or those named, the oldest first; release or drop those named.

    They are damaged blocks that plans leave out, so that the others are compacted. -o wide adds the damage.

    With --release they wait for compaction again, at the end of the queue; the next job that reads a damaged block
    quarantines it again, so releasing loses nothing. With --drop they and their rows are given up: readers no longer
    get them, their objects are deleted after the grace.

    Example: compactor blocks quarantine ID --release
    """
    _check_flags(named=bool(blocks), release=release, drop=drop, yes=yes)
    with place.open() as store:
        if release:
            _release(store, blocks)
        elif drop:
            _drop(store, blocks, asking=not yes)
        else:
            _list_quarantined(store, blocks, output)


def _check_flags(*, named: bool, release: bool, drop: bool, yes: bool) -> None:
    """Raises click.UsageError: a flag without what it is about."""
    if release and drop:
        raise click.UsageError("give --release or --drop, not both")
    acting = "--release" if release else "--drop" if drop else None
    if acting is not None and not named:
        raise click.UsageError(f"{acting} of which blocks? Name them by their ids")
    if acting is not None and is_given("output"):
        raise click.UsageError(f"-o is about the list: leave it out with {acting}")
    if yes and not drop:
        raise click.UsageError("--yes goes with --drop")


def _list_quarantined(store: BlockStore, blocks: Sequence[str], output: OutputFormat) -> None:
    now, found = store.now(), store.quarantined()
    known = {item.block.id for item in found}
    for block in blocks:
        if block not in known:
            raise _not_quarantined(block, store.inspect(block))
    rows = [_quarantined_object(item, now) for item in found if not blocks or item.block.id in blocks]
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"items": rows}, output)
    elif rows:
        print_table(rows, _WIDE if output is OutputFormat.WIDE else _COLUMNS)
    else:
        click.echo("no block is quarantined")


def _quarantined_object(item: Quarantined, now: int) -> dict[str, Any]:
    return {
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


def _release(store: BlockStore, blocks: Sequence[str]) -> None:
    for block in blocks:
        released = store.release(block)
        outcome = "waits for compaction again" if released else "was not quarantined"
        click.echo(f"block {block} {outcome}")


def _drop(store: BlockStore, blocks: Sequence[str], *, asking: bool) -> None:
    known = {item.block.id: item.block.rows for item in store.quarantined()}
    for block in blocks:
        if block not in known:
            # Users can drop only quarantined blocks; repeating a drop is harmless.
            record = store.inspect(block)
            ended = record is not None and record.state is not BlockState.LIVE
            if record is None or not ended or record.ended not in (None, TombstoneReason.DROPPED):
                raise _not_quarantined(block, record)
    if asking:
        lost = sum(known.get(block, 0) for block in blocks)
        click.confirm(f"Give up {plural(len(blocks), 'block')} with {lost} rows?", abort=True)
    for block in blocks:
        dropped = store.drop(block)
        click.echo(f"block {block} dropped" if dropped else f"block {block} was dropped before")


def _not_quarantined(block: str, record: BlockRecord | None) -> UnknownBlockError:
    if record is None:
        return UnknownBlockError(block, "unknown")
    if record.state is BlockState.LIVE:
        return UnknownBlockError(block, "not in quarantine")
    return UnknownBlockError(block, f"{record.ended or record.state.value}, not in quarantine")
