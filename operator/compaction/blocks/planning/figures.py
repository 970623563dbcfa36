"""What a queue of blocks holds, by level and tenant: what is due, what waits for more, what is in jobs."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.blocks.planning.batches import NEVER
from compaction.blocks.planning.queue import BlockQueue


@dataclass(slots=True)
class Waits:
    """Blocks of one tenant that are merged at one level, or wait for that. `due`: in batches that are ready; `in_jobs`:
    that jobs have. `oldest`: when the first arrived, `next_due`: when the next batch is due at the latest (epoch
    seconds; None: all are), `missing`: blocks that make the first of those full.
    """

    blocks: int = 0
    due: int = 0
    in_jobs: int = 0
    bytes: int = 0
    oldest: float = NEVER
    next_due: float | None = None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """By (level at which they are merged, tenant). `alone`: blocks that have nothing to be merged with, which wait for
    no time and are no debt.
    """

    waits: dict[tuple[int, str], Waits]
    alone: int


def figures_of(queue: BlockQueue, *, tenant: str | None = None) -> QueueFigures:
    """As of the queue's last scan; only of one tenant when it is given. O(batches)."""
    found: dict[tuple[int, str], Waits] = {}
    alone = 0
    for batch in queue.batches():
        owner = batch.group.key[0].tenant
        if tenant not in (None, owner):
            continue
        count = len(batch.blocks)
        if batch.is_alone:
            alone += count
            continue
        row = found.setdefault((batch.level, owner), Waits())
        row.blocks += count
        row.bytes += batch.bytes
        row.oldest = min(row.oldest, *(block.arrived for block in batch.blocks))
        if batch.ready is not None:
            row.due += count
            continue
        short = queue.rules.levels[batch.level].max_blocks - count
        row.missing = min(row.missing, short) if row.missing else short
        row.next_due = batch.due if row.next_due is None else min(row.next_due, batch.due)
    for held in queue.held.values():
        owner = held.blocks[0].kin.tenant
        if tenant in (None, owner):
            row = found.setdefault((held.level, owner), Waits())
            row.blocks += len(held.blocks)
            row.in_jobs += len(held.blocks)
            row.bytes += sum(block.bytes for block in held.blocks)
            row.oldest = min(row.oldest, *(block.arrived for block in held.blocks))
    return QueueFigures(found, alone)
