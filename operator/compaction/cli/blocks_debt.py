"""`compactor blocks debt`: what waits to be compacted, by level and tenant, all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import click

from compaction.api.formatting import format_age, format_bytes, plural
from compaction.cli.blocks_options import StorePlace, store_options
from compaction.cli.blocks_rules import rules_of
from compaction.cli.blocks_times import age, time_text
from compaction.cli.errors import EXIT_DATA_ERROR
from compaction.cli.open_jobs import OpenJobs
from compaction.cli.output import Column, OutputFormat, emit, optional_bytes, output_option, print_table
from compaction.local.this_process import this_process
from compaction.planning.block_rules import BlockReason, BlockRules
from compaction.stores.blocks.index.queue import QueueEntry

COLUMNS: Final = (
    Column("level", "Level", right=True),
    Column("tenant", "Tenant"),
    Column("blocks", "Blocks", right=True),
    Column("inJobs", "In jobs", right=True),
    Column("bytes", "Bytes", optional_bytes, right=True),
    Column("seconds", "Oldest", format_age, right=True),
)


@dataclass(slots=True)
class Debt:
    """What waits at one level for one tenant. `oldest`: epoch microseconds; `claimed` are blocks of open jobs."""

    blocks: int = 0
    claimed: int = 0
    bytes: int = 0
    oldest: int = 1 << 63

    def add(self, entry: QueueEntry) -> None:
        self.blocks += 1
        self.claimed += entry.job is not None
        self.bytes += entry.bytes
        self.oldest = min(self.oldest, entry.at)


@click.command()
@store_options()
@click.option("--tenant", help="Only of this tenant.")
@output_option()
@click.pass_context
def debt(context: click.Context, /, *, place: StorePlace, tenant: str | None, output: OutputFormat) -> None:
    """What waits to be compacted, by the level at which it is merged and by tenant.

    Blocks that are large enough, or have come through all levels, wait for nothing and are not counted; nor are those
    in quarantine. The levels are those of the policy (-f), or the defaults. Open jobs are named with who has them since
    when; while blocks are parked with one on which nobody seems to work, the exit code is 1.
    """
    with place.open() as store:
        now, entries = store.now(), store.queue().entries
        jobs = [one for one in OpenJobs(store, this_process()).all() if tenant in (None, one.record.key.tenant)]
    found = waiting(entries, rules_of(place.policy), tenant=tenant)
    rows: list[dict[str, Any]] = [
        {
            "level": level,
            "tenant": name,
            "blocks": one.blocks,
            "inJobs": one.claimed,
            "bytes": one.bytes,
            "oldest": time_text(one.oldest),
            "seconds": age(one.oldest, now),
        }
        for (level, name), one in sorted(found.items())
    ]
    blocks, size = sum(one.blocks for one in found.values()), sum(one.bytes for one in found.values())
    if output is not OutputFormat.TABLE:
        open_jobs = [one.to_object() for one in jobs]
        emit({"blocks": blocks, "bytes": size, "items": rows, "openJobs": open_jobs}, output)
    elif rows:
        print_table(rows, COLUMNS)
        click.echo(f"{plural(blocks, 'block')} with {format_bytes(size)} wait")
    else:
        click.echo("nothing waits")
    if output is OutputFormat.TABLE:
        for one in jobs:
            click.echo(one.text)
    if any(one.parked for one in jobs):
        context.exit(EXIT_DATA_ERROR)


def waiting(
    entries: Iterable[QueueEntry], rules: BlockRules, *, tenant: str | None = None
) -> dict[tuple[int, str], Debt]:
    """What waits, by (level at which it is merged, tenant)."""
    found: dict[tuple[int, str], Debt] = {}
    for entry in entries:
        level = rules.level_of(entry.level, entry.bytes)
        if isinstance(level, BlockReason) or tenant not in (None, entry.tenant):
            continue
        found.setdefault((level, entry.tenant), Debt()).add(entry)
    return found
