"""In which order ready batches get jobs: lower levels first; within a level tenants take turns; within a tenant first
come, first served.

Whose turn it is: the tenant with the fewest jobs at the level, those counted that exist already; then the one whose
next batch has been ready longest. So a tenant with a thousand batches waits for itself, and one with a single batch
gets the next job that is created, however short the queue is.

Invariants (tests/stores/blocks/planning/test_order.py): every ready batch comes exactly once; within a tenant in the
order of `BlockBatch.ready`; between two jobs of one tenant no other waits for more than one turn of each.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice

from compaction.blocks.planning.batches import BlockBatch


class _Line:
    """The ready batches of one tenant at one level. What is gone is skipped, and forgotten when it is the most."""

    __slots__ = ("batches", "gone", "is_sorted")

    def __init__(self) -> None:
        self.batches: list[BlockBatch] = []
        self.gone = 0
        self.is_sorted = True

    def add(self, batch: BlockBatch) -> None:
        if self.batches:
            last = self.batches[-1].ready
            # Batches of several keys become ready in nearly this order; one that is gone says nothing.
            self.is_sorted = self.is_sorted and last is not None and batch.ready is not None and last <= batch.ready
        self.batches.append(batch)

    def in_order(self) -> Iterator[BlockBatch]:
        if self.gone or not self.is_sorted:
            self.batches = [one for one in self.batches if one.ready is not None]
            self.batches.sort(key=_readiness)
            self.gone, self.is_sorted = 0, True
        return iter(self.batches)


def _readiness(batch: BlockBatch) -> tuple[float, int]:
    assert batch.ready is not None, "only batches that are ready stand in line"
    return batch.ready


class ReadyLines:
    """All ready batches, by level and tenant."""

    def __init__(self, levels: int) -> None:
        self._levels: list[dict[str, _Line]] = [{} for _ in range(levels)]
        self.size = 0

    def add(self, batch: BlockBatch) -> None:
        """A batch has become ready."""
        lines = self._levels[batch.level]
        tenant = batch.group.key[0].tenant
        line = lines.get(tenant)
        if line is None:
            line = lines[tenant] = _Line()
        line.add(batch)
        self.size += 1

    def leave(self, batch: BlockBatch) -> None:
        """A batch that was ready is about to be gone (before `BlockBatch.ready` is taken away)."""
        lines = self._levels[batch.level]
        tenant = batch.group.key[0].tenant
        line = lines[tenant]
        line.gone += 1
        self.size -= 1
        if line.gone == len(line.batches):
            del lines[tenant]

    def in_turn(self, existing: Mapping[tuple[int, str], int]) -> Iterator[BlockBatch]:
        """Every ready batch, in the order in which they get jobs; `existing` counts the jobs of (level, tenant).

        Do not change anything while it runs. Costs O(tenants) and O(log tenants) for each batch taken.
        """
        for level, lines in enumerate(self._levels):
            turns = []
            for tenant, line in lines.items():
                rest = line.in_order()
                first = next(rest)
                turns.append((existing.get((level, tenant), 0), _readiness(first), tenant, first, rest))
            heapq.heapify(turns)
            while turns:
                jobs, _, tenant, batch, rest = turns[0]
                yield batch
                following = next(rest, None)
                if following is None:
                    heapq.heappop(turns)
                else:
                    heapq.heapreplace(turns, (jobs + 1, _readiness(following), tenant, following, rest))

    def first(self, most: int | None, existing: Mapping[tuple[int, str], int]) -> tuple[BlockBatch, ...]:
        """The first so many of `in_turn`; None: all."""
        return tuple(islice(self.in_turn(existing), most))
