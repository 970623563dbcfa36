"""`compactor blocks quarantine`: blocks that cannot be compacted and were quarantined, so that the others can.

A block in quarantine is live: readers get it. It waits for a person: `retry` when the cause is gone, `drop` when its
rows are given up.
"""

from __future__ import annotations

from typing import Any, Final

import click

from compaction.api.text.formatting import format_age, plural
from compaction.blocks.cli.options import StorePlace, store_options
from compaction.blocks.cli.times import age, time_text
from compaction.blocks.errors import UnknownBlockError
from compaction.blocks.index.listing import BlockRecord
from compaction.blocks.index.tables import BlockState, TombstoneReason
from compaction.cli.output import Column, OutputFormat, emit, optional, optional_bytes, output_option, print_table

_COLUMNS: Final = (
    Column("block", "Block"),
    Column("tenant", "Tenant"),
    Column("shard", "Shard", right=True),
    Column("level", "Level", right=True),
    Column("bytes", "Bytes", optional_bytes, right=True),
    Column("reason", "Reason"),
    Column("seconds", "Age", format_age),
)
_WIDE: Final = (*_COLUMNS, Column("job", "Job", optional), Column("path", "Path"), Column("message", "Message"))


@click.group("quarantine")
def group() -> None:
    """Manage quarantined blocks: damaged ones that plans leave out, so that the others are compacted."""


@group.command("list")
@store_options()
@output_option(wide=True)
def list_command(*, place: StorePlace, output: OutputFormat) -> None:
    """List quarantined blocks, the oldest first. -o wide adds the damage."""
    with place.open() as store:
        now = store.now()
        rows: list[dict[str, Any]] = [
            {
                "block": one.block.id,
                "tenant": one.block.tenant,
                "shard": one.block.shard,
                "level": one.block.level,
                "path": one.block.path,
                "rows": one.block.rows,
                "bytes": one.block.bytes,
                "reason": one.fault.reason,
                "message": one.fault.message,
                "job": one.job,
                "since": time_text(one.since),
                "seconds": age(one.since, now),
            }
            for one in store.quarantined()
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
        known = {one.block.id: one.block.rows for one in store.quarantined()}
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
