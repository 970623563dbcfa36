"""The queue of a store kept in step with its index: everything is read once, and from then on what has changed.

The queue itself decides (blocks/planning/queue.py); here it is fed. Jobs hold their blocks: as long as
a job exists and has not succeeded, its blocks are in no other batch, whatever the index says of claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from compaction.blocks.conflicts import SchemaConflict
from compaction.blocks.index.engine import IndexDatabase
from compaction.blocks.index.queue import Density, QueueEntry, density, read_changes, read_queue
from compaction.blocks.model import SECOND
from compaction.blocks.paths import MAX_SHARD, place_problem
from compaction.blocks.planning.apart import kept_apart
from compaction.blocks.planning.queue import BlockQueue
from compaction.blocks.planning.rules import NO_ROWS, BlockRules, QueuedBlock
from compaction.blocks.schema.classing import BlockClasses, LookUp
from compaction.core.planning.reading import HeldJob


class WaitingBlocks:
    """One queue under one set of rules. `look_up` tells what schemas hold. Not for several threads at once."""

    def __init__(self, index: IndexDatabase, rules: BlockRules, look_up: LookUp) -> None:
        self.index = index
        self._rules = rules
        self._look_up = look_up
        self._classes = BlockClasses(look_up)
        self._version: int | None = None
        self._held: dict[str, frozenset[str]] = {}
        self._tenants: set[str] = set()
        self._parked: dict[str, tuple[str, int]] = {}
        self._density: tuple[int | None, Density] = (None, Density(0, 0))
        self.queue = BlockQueue(rules)

    def refresh(self, jobs: Iterable[HeldJob]) -> None:
        """Take in what has changed. `jobs`: all that exist and have not succeeded.

        Raises DatabaseError, and what looking up a schema raises: then nothing was taken in.
        """
        levels = len(self._rules.levels)
        changes = read_changes(self.index, self._version, levels=levels) if self._version is not None else None
        # What comes out of quarantine has left its place and has a new one: out first, then in.
        gone = [block for block, _ in changes.left] if changes is not None else []
        for block in gone:
            self._parked.pop(block, None)
        entries = self._sound(changes.entries) if changes is not None else []
        if changes is None or not self._classes.learn(entries):
            self._read_all(levels)
        else:
            self.queue.remove(gone)
            self.queue.push_all(map(self._queued, entries))
            self._version = changes.version
        self._hold(jobs)

    def parked(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Tenants and shards whose blocks wait for nothing, because no job can name them: why, and how many blocks."""
        counts = Counter(self._parked.values())
        return {place: (place_problem(*place), count) for place, count in sorted(counts.items())}

    def _sound(self, entries: Sequence[QueueEntry]) -> Sequence[QueueEntry]:
        """Those of a tenant and shard that a job can have. A row that another program wrote parks itself, never the
        store.
        """
        tenants = {entry.tenant for entry in entries}
        # Names, not places, are checked: a store has few of them, and up to half as many places as blocks.
        doubtful = {one for one in tenants - self._tenants if place_problem(one, 0)}
        self._tenants |= tenants - doubtful
        if doubtful or any(not 0 <= entry.shard <= MAX_SHARD for entry in entries):
            self._parked |= {one.id: (one.tenant, one.shard) for one in entries if place_problem(one.tenant, one.shard)}
            return [entry for entry in entries if entry.id not in self._parked]
        return entries

    def _read_all(self, levels: int) -> None:
        """The whole queue. Until that is done nothing counts as read, whatever fails meanwhile."""
        self._version = None
        reading, classes = read_queue(self.index, levels=levels), BlockClasses(self._look_up)
        self._parked = {}
        entries = self._sound(reading.entries)
        classes.learn(entries)
        self._classes = classes
        self.queue, self._held = BlockQueue(self._rules), {}
        self.queue.push_all(map(self._queued, entries))
        self._version = reading.version

    def density(self) -> Density:
        """How many blocks readers have to open, counted when the index has changed. Raises DatabaseError."""
        if self._density[0] != self._version:
            # Counted after `refresh` has seen its version: newer, if anything, and counted again at the next change.
            self._density = self._version, density(self.index, span=self._rules.span)
        return self._density[1]

    def conflicts(self) -> tuple[SchemaConflict, ...]:
        """The blocks that their schemas keep apart, by tenant and columns, as of the queue's last scan: most first."""
        if not self._classes.has_several:
            return ()
        found: dict[tuple[str, tuple[str, ...]], SchemaConflict] = {}
        for one in kept_apart(self.queue):
            columns = tuple(map(str, self._classes.conflicts(one.classes)))
            known = found.get((one.tenant, columns), SchemaConflict(one.tenant, 0, columns, 0))
            found[one.tenant, columns] = SchemaConflict(
                one.tenant,
                max(known.schemas, len(one.classes)),
                columns,
                known.blocks + one.blocks,
                known.alone + one.alone,
            )
        return tuple(sorted(found.values(), key=lambda one: (-one.blocks, one.tenant, one.columns)))

    def _hold(self, jobs: Iterable[HeldJob]) -> None:
        """Targets whose jobs are gone, or hold fewer blocks than before, release theirs; then all that is held is."""
        levels: dict[str, int] = {}
        wanted: dict[str, set[str]] = {}
        for job in jobs:
            levels[job.target] = job.level
            wanted.setdefault(job.target, set()).update(job.sources)
        for lane, blocks in self._held.items():
            if not blocks <= wanted.get(lane, frozenset()):
                self.queue.release(lane)
        for lane, ids in wanted.items():
            self.queue.hold(lane, levels[lane], sorted(ids))
        self._held = {lane: frozenset(ids) for lane, ids in wanted.items()}

    def _queued(self, entry: QueueEntry) -> QueuedBlock:
        empty = not entry.rows
        return QueuedBlock(
            id=entry.id,
            kin=self._classes.of(entry.tenant, entry.shard, NO_ROWS if empty else entry.schema_id),
            level=entry.level,
            bytes=entry.bytes,
            # A block without rows is of the time at which it was made, and that is no reason to keep two of them apart.
            min_time=0 if empty else entry.min_time,
            arrived=entry.at / SECOND,
            number=entry.arrival,
        )
