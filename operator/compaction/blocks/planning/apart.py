"""Blocks of one tenant, shard and window of time that are not merged with one another because of their schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compaction.blocks.planning.queue import BlockQueue
from compaction.blocks.planning.rules import BlockClass


@dataclass(slots=True)
class Apart:
    """The classes of a tenant's shard that meet in some window, and how many blocks these windows have. `alone`: blocks
    that nothing of their own class can join, beside such of another class: only their schemas keep them from a merge.
    """

    tenant: str
    shard: int
    classes: set[BlockClass] = field(default_factory=set)
    blocks: int = 0
    alone: int = 0


@dataclass(slots=True)
class _Window:
    classes: set[BlockClass] = field(default_factory=set)
    blocks: int = 0
    alone: int = 0


def kept_apart(queue: BlockQueue) -> tuple[Apart, ...]:
    """By tenant and shard, as of the queue's last scan. O(batches)."""
    windows: dict[tuple[str, int, int], _Window] = {}
    for kin, number, count, alone in (*_waiting(queue), *_held(queue)):
        if kin.is_obsolete:
            continue  # no schema keeps it from anything
        window = windows.setdefault((kin.tenant, kin.shard, number), _Window())
        window.classes.add(kin)
        window.blocks += count
        window.alone += alone
    found: dict[tuple[str, int], Apart] = {}
    for (tenant, shard, _), window in sorted(windows.items()):
        if len(window.classes) > 1:
            apart = found.setdefault((tenant, shard), Apart(tenant, shard))
            apart.classes |= window.classes
            apart.blocks += window.blocks
            apart.alone += window.alone if window.alone > 1 else 0
    return tuple(found.values())


def _waiting(queue: BlockQueue) -> Iterator[tuple[BlockClass, int, int, int]]:
    for batch in queue.batches():
        kin, window = batch.group.key
        count = len(batch.blocks)
        yield kin, window, count, count if batch.is_alone else 0


def _held(queue: BlockQueue) -> Iterator[tuple[BlockClass, int, int, int]]:
    for held in queue.held.values():
        for block in held.blocks:
            yield block.kin, queue.rules.window_of(block.min_time), 1, 0
