"""The queue of a store kept in step with its index: everything is read once, and from then on what has changed.

The queue itself decides (planning/blocks.py); here it is told. Jobs hold their blocks: as long as a job exists and has
not succeeded, its blocks are in no other batch, whatever the index says of claims.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from compaction.planning.block_rules import BlockRules, QueuedBlock
from compaction.planning.blocks import BlockQueue
from compaction.planning.reading import HeldJob
from compaction.stores.blocks.index.engine import IndexDatabase
from compaction.stores.blocks.index.queue import Density, QueueEntry, density, read_changes, read_queue
from compaction.stores.blocks.model import SECOND


class WaitingBlocks:
    """One queue under one set of rules. Not for several threads at once."""

    def __init__(self, index: IndexDatabase, rules: BlockRules) -> None:
        self.index = index
        self._rules = rules
        self._version: int | None = None
        self._held: dict[str, frozenset[str]] = {}
        self._density: tuple[int | None, Density] = (None, Density(0, 0))
        self.queue = BlockQueue(rules)

    def refresh(self, jobs: Iterable[HeldJob]) -> None:
        """Take in what has changed. `jobs`: all that exist and have not succeeded. Raises BlockIndexError."""
        levels = len(self._rules.levels)
        changes = read_changes(self.index, self._version, levels=levels) if self._version is not None else None
        if changes is None:
            reading = read_queue(self.index, levels=levels)
            self.queue, self._held = BlockQueue(self._rules), {}
            self.queue.push_all(map(_queued, reading.entries))
            self._version = reading.version
        else:
            # What comes out of quarantine has left its place and has a new one: out first, then in.
            self.queue.remove(block for block, _ in changes.left)
            self.queue.push_all(map(_queued, changes.entries))
            self._version = changes.version
        self._hold(jobs)

    def density(self) -> Density:
        """How many blocks readers have to open, counted when the index has changed. Raises BlockIndexError."""
        if self._density[0] != self._version:
            # Counted after `refresh` has seen its version: newer, if anything, and counted again at the next change.
            self._density = self._version, density(self.index, span=self._rules.span)
        return self._density[1]

    def _hold(self, jobs: Iterable[HeldJob]) -> None:
        """Lanes whose jobs are gone, or hold fewer blocks than before, give theirs back; then all that is held is."""
        levels: dict[str, int] = {}
        wanted: dict[str, set[str]] = {}
        for job in jobs:
            levels[job.lane] = job.level
            wanted.setdefault(job.lane, set()).update(job.blocks)
        for lane, blocks in self._held.items():
            if not blocks <= wanted.get(lane, frozenset()):
                self.queue.release(lane)
        for lane, ids in wanted.items():
            self.queue.hold(lane, levels[lane], sorted(ids))
        self._held = {lane: frozenset(ids) for lane, ids in wanted.items()}


def _queued(entry: QueueEntry) -> QueuedBlock:
    return QueuedBlock(
        id=entry.id,
        tenant=sys.intern(entry.tenant),  # one text for all of its blocks
        shard=entry.shard,
        level=entry.level,
        bytes=entry.bytes,
        min_time=entry.min_time,
        arrived=entry.at / SECOND,
        number=entry.arrival,
    )
