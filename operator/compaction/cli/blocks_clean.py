"""`compactor blocks tombstones`, `orphans` and `retention`: what is deleted, when, and doing it now."""

from __future__ import annotations

from typing import Any, Final

import click

from compaction.api.formatting import format_bytes, plural
from compaction.api.values import Duration
from compaction.cli.blocks_options import DurationParameter, StorePlace, store_options
from compaction.cli.blocks_shapes import TOMBSTONE_COLUMNS, WIDE_TOMBSTONE_COLUMNS, tombstone_object
from compaction.cli.output import OutputFormat, emit, output_option, print_table
from compaction.stores.blocks.index.rows import MAX_INTEGER
from compaction.stores.blocks.index.tombstones import due, summary
from compaction.stores.blocks.store import MICROSECONDS

grace_option: Final = click.option(
    "--grace",
    type=DurationParameter(),
    help="How long replaced blocks stay readable; default: cleanup.delay of the policy, else 10m.",
)
DEFAULT_GRACE: Final = Duration("10m")
SHOWN: Final = 1000


def grace_of(place: StorePlace, given: Duration | None) -> Duration:
    """As the option says, else the policy, else the default of a policy."""
    if given is not None:
        return given
    return place.policy.spec.cleanup.delay if place.policy is not None else DEFAULT_GRACE


@click.command()
@store_options()
@grace_option
@click.option("--limit", type=click.IntRange(1), default=SHOWN, show_default=True, help="Show so many, the oldest.")
@output_option(wide=True)
def tombstones(*, place: StorePlace, grace: Duration | None, limit: int, output: OutputFormat) -> None:
    """What is no longer live and waits for its deletion: since when, why, and when it is due."""
    kept = int(grace_of(place, grace) * MICROSECONDS)
    with place.open() as store:
        now, total = store.now(), summary(store.index)
        waiting = due(store.index, now=MAX_INTEGER, grace=0, limit=limit)
    rows: list[dict[str, Any]] = [tombstone_object(one, grace=kept) for one in waiting]
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"blocks": total.blocks, "bytes": total.bytes, "failing": total.failing, "items": rows}, output)
        return
    if rows:
        print_table(rows, WIDE_TOMBSTONE_COLUMNS if output is OutputFormat.WIDE else TOMBSTONE_COLUMNS)
    ready = sum(one.since + kept <= now for one in waiting)
    text = f"{plural(total.blocks, 'block')} with {format_bytes(total.bytes)} wait for their deletion"
    click.echo(f"{text}, {ready} of those shown are due; {total.failing} could not be deleted so far")
