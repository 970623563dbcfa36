"""`compactor blocks inspect`: blocks that wait to be compacted, by level and tenant, or one block in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.text.printing import format_age, format_bytes, plural
from compaction.blocks.cli.open_jobs import OpenJobs
from compaction.blocks.cli.options import StorePlace, age, short_time, store_options, time_text
from compaction.blocks.cli.shapes import at_rest, conflict_object
from compaction.blocks.model import SECOND
from compaction.blocks.planning.batches import BlockRules
from compaction.blocks.planning.queue import Waits, figures_of
from compaction.blocks.store import BlockStore
from compaction.blocks.waiting import WaitingBlocks
from compaction.cli.lazy import EXIT_DATA_ERROR
from compaction.cli.output import OutputColumn, OutputFormat, emit, optional_bytes, output_option, print_table
from compaction.local.processes.process import this_process

if TYPE_CHECKING:
    import pyarrow as pa

    from compaction.api.policy.policy import CompactionPolicy


# The rules by which blocks are planned: those of a policy, or the defaults.


def _rules_of(policy: CompactionPolicy | None) -> BlockRules:
    """Return the rules of the policy; the defaults of blockStore without one."""
    store = policy.spec.store.block_store if policy is not None else None
    if policy is None or store is None:
        return BlockRules()
    # Whoever has no policy waits for no import of what reads one.
    from compaction.blocks import adapter

    return adapter.rules_of(store, max_bytes_per_job=int(policy.spec.limits.max_bytes_per_job))


# `compactor blocks inspect`: what waits to be compacted, by level and tenant, all of it; with an ID one block.

COLUMNS: Final = (
    OutputColumn("level", "Level", right=True),
    OutputColumn("tenant", "Tenant"),
    OutputColumn("blocks", "Blocks", right=True),
    OutputColumn("due", "Due", right=True),
    OutputColumn("inJobs", "In jobs", right=True),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
    OutputColumn("seconds", "Oldest", format_age, right=True),
    OutputColumn("nextDue", "Next due", short_time),
    OutputColumn("missing", "Missing", right=True),
)


@click.command()
@click.argument("block", metavar="[ID]", required=False)
@store_options()
@click.option("--tenant", help="Without an ID: only of this tenant.")
@output_option()
@click.pass_context
def inspect(
    context: click.Context, /, *, block: str | None, place: StorePlace, tenant: str | None, output: OutputFormat
) -> None:
    """Show what waits to be compacted, by the level at which it is merged and by tenant, or one block in detail.

    Due is what `plan` would merge; the rest waits for more blocks, or until it is old enough. Blocks that are large
    enough, have come through all levels or have nothing to be merged with are no debt; nor are those in quarantine.
    Open jobs are named with who has them since when; while blocks are parked with one on which no process seems to
    work, the exit code is 1.

    With an ID: what the index knows about the block, why it is not merged now, and what its object says: row groups,
    columns, who made it of what. An object that is missing or damaged is named; the exit code is then 1.

    The levels and the other rules are those of the policy (-f), or the defaults.
    """
    if block is None:
        _show_waiting(context, place, tenant, output)
        return
    if tenant is not None:
        raise click.UsageError("give an ID or --tenant, not both")
    # It reads footers: what waits is known from the index alone, and does not pay for Parquet.
    from compaction.blocks.cli.block_view import show_block

    show_block(context, place, block, rules=_rules_of(place.policy), output=output)


def _show_waiting(context: click.Context, place: StorePlace, tenant: str | None, output: OutputFormat) -> None:
    """Print what waits; end the command with exit code 1 while blocks are parked."""
    with place.open() as store:
        now = store.now()
        others = OpenJobs(store, this_process(), taking=False)
        jobs = [item for item in others.all() if tenant in (None, item.record.key.tenant)]
        waiting = WaitingBlocks(store.index, _rules_of(place.policy), lambda examples: _schemas(store, examples))
        waiting.refresh(others().values())
        waiting.queue.advance(now / SECOND)
        conflicts = [conflict for conflict in waiting.conflicts() if tenant in (None, conflict.tenant)]
    found = figures_of(waiting.queue, tenant=tenant)
    rows = [_row(level, name, item, now) for (level, name), item in sorted(found.waits.items())]
    if output is OutputFormat.TABLE:
        _show_rows(rows, found.alone)
        for line in (*map(str, conflicts), *(job.text for job in jobs)):
            click.echo(line)
    else:
        totals = {key: sum(row[key] for row in rows) for key in ("blocks", "due", "bytes")}
        open_jobs = [job.to_object() for job in jobs]
        said = [conflict_object(conflict) for conflict in conflicts]
        emit({**totals, "alone": found.alone, "items": rows, "schemaConflicts": said, "openJobs": open_jobs}, output)
    if any(job.parked for job in jobs):
        context.exit(EXIT_DATA_ERROR)


def _row(level: int, tenant: str, waits: Waits, now: int) -> dict[str, Any]:
    oldest = int(waits.oldest * SECOND)
    return {
        "level": level,
        "tenant": tenant,
        "blocks": waits.blocks,
        "due": waits.due,
        "inJobs": waits.in_jobs,
        "bytes": waits.bytes,
        "oldest": time_text(oldest),
        "seconds": age(oldest, now),
        "nextDue": None if waits.next_due is None else time_text(int(waits.next_due * SECOND)),
        "missing": waits.missing,
    }


def _show_rows(rows: list[dict[str, Any]], alone: int) -> None:
    if rows:
        print_table(rows, COLUMNS)
        blocks, due, size = (sum(row[key] for row in rows) for key in ("blocks", "due", "bytes"))
        click.echo(f"{plural(blocks, 'block')} with {format_bytes(size)} wait, {due} of them are due")
    else:
        click.echo("nothing waits" + (f"; {at_rest(alone)}" if alone else ""))


def _schemas(store: BlockStore, examples: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Schema]:
    from compaction.blocks.schema.book import SchemaBook  # reads Parquet: only where there are several schemas

    return SchemaBook(store, keeps=False).look_up(examples)
