"""The blocks of a store that wait, kept in step with its index, and the classes that may be merged with one
another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from compaction.blocks.index.queued import Density, QueueEntry, density, read_changes, read_queue
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.model import MAX_SHARD, SECOND, place_problem
from compaction.blocks.planning.batches import NO_ROWS, BlockClass, BlockRules, QueuedBlock, SchemaConflict
from compaction.blocks.planning.queue import BlockQueue, kept_apart
from compaction.core.planning.debt import HeldJob

if TYPE_CHECKING:
    import pyarrow as pa

    from compaction.blocks.schema.classes import ColumnConflict


# The classes of the blocks that wait: which of a tenant's shard may be merged with one another, by their schemas.
#
# A schema counts from when a block of it is seen until the queue is read again. As long as the classes of the blocks
# that were seen stay together and apart as they are, others join them or make classes of their own; when they do not
# (a column that only some of them had has another type in a new block), `learn` says so, and the queue is read again.

LookUp: TypeAlias = "Callable[[Mapping[str, Sequence[str]]], Mapping[str, pa.Schema]]"
"""From ids of schemas, with ids of blocks that have each, to those of the schemas that are known."""
EXAMPLES: Final = 3
"""Blocks that are asked for a schema at most."""


@dataclass(slots=True)
class _Several:
    """The schemas of a tenant's shard that has several: the class of each. `unknown`: of some nothing is known yet."""

    classes: dict[str, BlockClass]
    unknown: bool = False


class BlockClasses:
    """Classes of one store. A schema that nothing is known of is a class of its own, until it is."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._places: dict[tuple[str, int], BlockClass | _Several] = {}
        """By tenant and shard. Nearly all have one schema, and there may be half as many places as blocks."""
        self._examples: dict[str, list[str]] = {}
        self._schemas: dict[str, pa.Schema] = {}
        self._empty: dict[tuple[str, int], BlockClass] = {}
        self.has_several = False
        """Whether there may be a place whose blocks are of several classes."""

    def learn(self, entries: Iterable[QueueEntry]) -> bool:
        """Take in the schemas of blocks. False: blocks that were seen before are of other classes now.

        Raises what `look_up` raises.
        """
        places = self._places
        fresh = {place: set[str]() for place, item in places.items() if isinstance(item, _Several) and item.unknown}
        for entry in entries:
            if not entry.rows:
                continue
            place, schema = (entry.tenant, entry.shard), entry.schema_id
            known = places.get(place)
            if known is None:
                places[place] = BlockClass(entry.tenant, entry.shard, schema)
            elif known.schema == schema if isinstance(known, BlockClass) else schema in known.classes:
                continue
            else:
                fresh.setdefault(place, set()).add(schema)
            examples = self._examples.setdefault(schema, [])
            if len(examples) < EXAMPLES and entry.id not in examples:
                examples.append(entry.id)
        # A schema that is alone in its place is a class whatever it holds.
        found = {place: self._classes(place) for place in sorted(fresh)}
        asked = {name for place, classes in found.items() for name in (*classes, *fresh[place])} - self._schemas.keys()
        self._schemas |= self._look_up({name: self._examples[name] for name in sorted(asked)}) if asked else {}
        stay = [self._classify(place, classes, fresh[place]) for place, classes in found.items()]
        return all(stay)

    def of(self, tenant: str, shard: int, schema: str) -> BlockClass:
        """The class of a block of a schema that was learnt, or of NO_ROWS."""
        if schema == NO_ROWS:
            return self._empty.setdefault((tenant, shard), BlockClass(tenant, shard, NO_ROWS))
        found = self._places[tenant, shard]
        return found if isinstance(found, BlockClass) else found.classes[schema]

    def conflicts(self, classes: Iterable[BlockClass]) -> tuple[ColumnConflict, ...]:
        """Return the conflicts by which classes of one place are not one; empty when nothing is known of them."""
        from compaction.blocks.schema.classes import classes_of

        wanted = set(classes)
        schemas = {
            name: self._schemas[name]
            for place in {(item.tenant, item.shard) for item in wanted}
            for name, item in self._classes(place).items()
            if item in wanted and name in self._schemas
        }
        return classes_of(schemas).conflicts

    def _classes(self, place: tuple[str, int]) -> Mapping[str, BlockClass]:
        found = self._places[place]
        return {found.schema: found} if isinstance(found, BlockClass) else found.classes

    def _classify(self, place: tuple[str, int], former: Mapping[str, BlockClass], fresh: Iterable[str]) -> bool:
        """Put the schemas of a place into classes. False: those that were in one are not as they were."""
        # A store of one schema needs nothing that reads Parquet, which takes longer to import than to ask the index.
        from compaction.blocks.schema.classes import classes_of

        names = former.keys() | set(fresh)
        known = {name: self._schemas[name] for name in sorted(names) if name in self._schemas}
        unknown = sorted(names - known.keys())
        found = (*classes_of(known).classes(), *(frozenset({name}) for name in unknown))
        before = [{former[name] for name in item if name in former} for item in found]
        stays = all(len(item) <= 1 for item in before) and sum(map(len, before)) == len(set().union(*before))
        classes: dict[str, BlockClass] = {}
        for item, kin in zip(found, before, strict=True):
            classes |= dict.fromkeys(item, min(kin) if stays and kin else BlockClass(*place, min(item)))
        self._places[place] = _Several(classes, unknown=bool(unknown))
        self.has_several |= len(found) > 1
        return stays


# The queue of a store kept in step with its index: everything is read once, and from then on what has changed.
#
# The queue itself decides (blocks/planning/queue.py); here it is fed. Jobs hold their blocks: as long as a job exists
# and has not succeeded, its blocks are in no other batch, whatever the index says of claims.


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
        doubtful = {tenant for tenant in tenants - self._tenants if place_problem(tenant, 0)}
        self._tenants |= tenants - doubtful
        if doubtful or any(not 0 <= entry.shard <= MAX_SHARD for entry in entries):
            self._parked |= {
                entry.id: (entry.tenant, entry.shard) for entry in entries if place_problem(entry.tenant, entry.shard)
            }
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
        """Return the number of blocks that readers have to open, counted when the index has changed. Raises
        DatabaseError.
        """
        if self._density[0] != self._version:
            # Counted after `refresh` has seen its version: newer, if anything, and counted again at the next change.
            self._density = self._version, density(self.index, span=self._rules.span)
        return self._density[1]

    def conflicts(self) -> tuple[SchemaConflict, ...]:
        """The blocks that their schemas keep apart, by tenant and columns, as of the queue's last scan: most first."""
        if not self._classes.has_several:
            return ()
        found: dict[tuple[str, tuple[str, ...]], SchemaConflict] = {}
        for item in kept_apart(self.queue):
            columns = tuple(map(str, self._classes.conflicts(item.classes)))
            known = found.get((item.tenant, columns), SchemaConflict(item.tenant, 0, columns, 0))
            found[item.tenant, columns] = SchemaConflict(
                item.tenant,
                max(known.schemas, len(item.classes)),
                columns,
                known.blocks + item.blocks,
                known.alone + item.alone,
            )
        return tuple(sorted(found.values(), key=lambda item: (-item.blocks, item.tenant, item.columns)))

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
