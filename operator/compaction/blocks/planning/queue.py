"""The queue of blocks that wait to be compacted: what is ready, in which order, and why the rest waits."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, islice
from types import MappingProxyType

from compaction.blocks.planning.batches import (
    NEVER,
    BlockBatch,
    BlockClass,
    BlockReason,
    BlockRules,
    Cutter,
    Group,
    QueuedBlock,
)
from compaction.core.collecting import collector_paused

# In which order ready batches get jobs: lower levels first; within a level tenants take turns; within a tenant first
# come, first served.
#
# Whose turn it is: the tenant with the fewest jobs at the level, those counted that exist already; then the one whose
# next batch has been ready longest. So a tenant with a thousand batches waits for itself, and one with a single batch
# gets the next job that is created, however short the queue is.
#
# Invariants (tests/blocks/planning/test_order.py): every ready batch comes exactly once; within a tenant in
# the order of `BlockBatch.ready`; between two jobs of one tenant no other waits for more than one turn of each.


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
            self.batches = [batch for batch in self.batches if batch.ready is not None]
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


# The queue of blocks that wait to be compacted: what has come, what has gone, and what is ready now.
#
# It receives changes only (`push`, `remove`, `hold`, `release`), so a scan costs what has changed; a restart pushes
# everything once, in the order of arrival. The clock is passed in.
#
# * A block that is pushed waits in a batch (batches.py), or is left alone for a reason.
# * `hold`: a job has been made of these blocks. They are in no other batch from then on, until they are removed (the
#   job succeeded: they are replaced) or released (the job is gone: they wait again, at the place of their arrival).
#
# Invariants (tests/blocks/planning/test_properties.py, test_rows.py):
#
# * A block that was pushed and not removed is in exactly one place: a batch, a job, or left alone with a reason.
# * Nothing is planned twice: no block of a held batch is offered in another one.
# * A batch has blocks of one class (tenant, shard, mergeable schema) and window, merged at one level; never more than
#   the level and a job may have, unless it is a single block.
# * Every batch that is due is offered, whether or not anything arrives: there is no push that a timer waits for.

_NO_JOBS: Mapping[tuple[int, str], int] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class HeldBatch:
    """Blocks of which a job was made; `lane` is the job's path, which stays when blocks of it are gone."""

    lane: str
    level: int
    blocks: tuple[QueuedBlock, ...]

    @property
    def is_obsolete(self) -> bool:
        """None of its blocks has rows."""
        return all(block.kin.is_obsolete for block in self.blocks)


@dataclass(frozen=True, slots=True)
class LeftAloneBlocks:
    """So many blocks are in no batch that is ready, for this reason; `example` is the id of one of them (of those that
    wait, the first).

    Of those that wait for more: their `bytes`, when the first batch of them is `due` at the latest (epoch seconds), and
    how many blocks are `missing` for the first to be full.
    """

    reason: BlockReason
    count: int
    example: str
    bytes: int = 0
    due: float | None = None
    missing: int = 0


class BlockQueue:
    """Blocks of one store under one set of rules; with other rules another queue is filled."""

    def __init__(self, rules: BlockRules) -> None:
        self.rules = rules
        self._span = rules.span
        most = rules.max_bytes_per_job or NEVER
        self._small = tuple(min(rule.max_bytes or NEVER, most) for rule in rules.levels)
        """Blocks of fewer bytes are merged at their own level."""
        self._where: dict[str, BlockBatch] = {}
        self._groups: dict[tuple[BlockClass, int], Group] = {}
        self._lines = ReadyLines(len(rules.levels))
        self._cutter = Cutter(rules, self._where, self._lines.add)
        self._to_cut: dict[Group, None] = {}
        self._held: dict[str, HeldBatch] = {}
        self._held_by_id: dict[str, HeldBatch] = {}
        self._alone: dict[str, BlockReason] = {}

    def __len__(self) -> int:
        """Blocks that wait or are held; those that are left alone for good are not counted."""
        return len(self._where) + len(self._held_by_id)

    def __contains__(self, block: str) -> bool:
        return block in self._where or block in self._held_by_id or block in self._alone

    # -- changes ------------------------------------------------------------------------------------------------------

    def push(self, block: QueuedBlock) -> bool:
        """A block has arrived. False: it is known, nothing changes."""
        name, kin, own_level, size, min_time, at, number = block
        if name in self._where or name in self._held_by_id or name in self._alone:
            return False
        level = own_level
        if own_level >= len(self._small) or size >= self._small[own_level]:
            found = self.rules.level_of(own_level, size)
            if isinstance(found, BlockReason):
                self._alone[name] = found
                return True
            level = found
        span = self._span
        key = (kin, min_time // span if span else 0)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, len(self.rules.levels))
        # Nothing has happened in its group since it arrived: it comes last. (Written out: a restart does this a million
        # times.)
        if group.late is None and (at > group.settled or (at == group.settled and number > group.settled_number)):
            self._cutter.append(group, level, block)
        else:
            self._put_late(group, block)
        return True

    def push_all(self, blocks: Iterable[QueuedBlock]) -> int:
        """Many blocks, best in the order of arrival: the number of those that were new."""
        with collector_paused():
            return sum(map(self.push, blocks))

    def remove(self, blocks: Iterable[str]) -> int:
        """Blocks are gone: replaced, expired, dropped or quarantined. The number of those that were known."""
        wanted = list(blocks)
        known = len(self._take(wanted))
        for block in wanted:
            held = self._held_by_id.pop(block, None)
            if held is not None:
                known += 1
                held.blocks = tuple(item for item in held.blocks if item.id != block)
                if not held.blocks:
                    del self._held[held.lane]
            elif self._alone.pop(block, None) is not None:
                known += 1
        return known

    def hold(self, lane: str, level: int, blocks: Iterable[str]) -> int:
        """A job was made of these blocks, or was found. Blocks that are not waiting are passed over. The number of
        blocks that the lane holds now that did not before.

        Several jobs may have one lane: those that one job was split into.
        """
        taken = self._take(blocks)
        if taken:
            held = self._held.get(lane)
            if held is None:
                held = self._held[lane] = HeldBatch(lane, level, ())
            held.blocks = tuple(sorted((*held.blocks, *taken), key=lambda block: block.id))
            self._held_by_id.update((item.id, held) for item in taken)
        return len(taken)

    def release(self, lane: str) -> int:
        """The job is gone without having replaced its blocks: what is left of them waits again. How many they are."""
        held = self._held.pop(lane, None)
        if held is None:
            return 0
        for block in held.blocks:
            del self._held_by_id[block.id]
        return self.push_all(sorted(held.blocks, key=lambda block: block.number))

    # -- looks --------------------------------------------------------------------------------------------------------

    def ready(
        self, now: float, *, most: int | None = None, existing: Mapping[tuple[int, str], int] = _NO_JOBS
    ) -> tuple[BlockBatch, ...]:
        """Batches of which jobs may be made, in the order in which they should be (order.py).

        Args:
            now: epoch seconds; best by the clock that dates arrivals.
            most: no more than so many.
            existing: how many jobs there are of (level, tenant).
        """
        self.advance(now)
        return self._lines.first(most, existing)

    def advance(self, now: float) -> None:
        """Let everything happen that is due by `now`."""
        for group in self._to_cut:
            self._cut_anew(group)
        self._to_cut.clear()
        self._cutter.run_all(now)

    @property
    def ready_size(self) -> int:
        """The number of batches that are ready, as of the last scan."""
        return self._lines.size

    @property
    def held(self) -> Mapping[str, HeldBatch]:
        """The batches that jobs were made of, by lane."""
        return MappingProxyType(self._held)

    def next_due(self) -> float | None:
        """Return the time at which `ready` has something new although nothing arrives (epoch seconds); None: never.
        Call `advance` before.
        """
        return self._cutter.next_due()

    def batches(self) -> Iterator[BlockBatch]:
        """Every batch with blocks, as of the last scan, ready or not. O(batches)."""
        return (batch for group in self._groups.values() for batch in group.batches if batch.blocks)

    def place_of(self, block: str) -> BlockBatch | HeldBatch | BlockReason | None:
        """Return the place of a block, as of the last scan: in a batch, with a job, or left alone for good; None: not
        known.
        """
        return self._where.get(block) or self._held_by_id.get(block) or self._alone.get(block)

    def left_alone(self) -> tuple[LeftAloneBlocks, ...]:
        """Return the reasons for which blocks are in no batch that is ready, as of the last scan. O(batches)."""
        counts = Counter(self._alone.values())
        examples: dict[BlockReason, str] = {}
        for block, reason in self._alone.items():
            examples.setdefault(reason, block)
        first: dict[BlockReason, QueuedBlock] = {}
        size, due, missing = 0, NEVER, 0
        for batch in self.batches():
            if batch.ready is not None:
                continue
            reason = BlockReason.NOTHING_TO_MERGE_WITH if batch.is_alone else BlockReason.WAITING_FOR_MORE
            count = len(batch.blocks)
            counts[reason] += count
            if reason is BlockReason.WAITING_FOR_MORE:
                size, due = size + batch.bytes, min(due, batch.due)
                short = self.rules.levels[batch.level].max_blocks - count
                # 0 stands for no batch so far.
                missing = min(missing, short) if missing else short
            known = first.get(reason)
            if known is None or batch.blocks[0].number < known.number:
                first[reason] = batch.blocks[0]
        examples |= {reason: block.id for reason, block in first.items()}
        rows = {reason: LeftAloneBlocks(reason, counts[reason], examples[reason]) for reason in sorted(counts)}
        if BlockReason.WAITING_FOR_MORE in rows:
            waiting = rows[BlockReason.WAITING_FOR_MORE]
            rows[waiting.reason] = replace(waiting, bytes=size, due=due, missing=missing)
        return tuple(rows.values())

    # -- inside -------------------------------------------------------------------------------------------------------

    def _put_late(self, group: Group, block: QueuedBlock) -> None:
        if group.late is None:
            group.late = BlockBatch(group, 0, 0.0)
            group.late.blocks = []
        group.late.blocks.append(block)
        self._where[block.id] = group.late
        self._to_cut[group] = None

    def _take(self, blocks: Iterable[str]) -> list[QueuedBlock]:
        """Take blocks out of their batches. A batch that goes as a whole leaves the others of its group as they are."""
        wanted: dict[BlockBatch, set[str]] = {}
        for block in blocks:
            batch = self._where.pop(block, None)
            if batch is not None:
                wanted.setdefault(batch, set()).add(block)
        taken: list[QueuedBlock] = []
        for batch, ids in wanted.items():
            group = batch.group
            if len(ids) == len(batch.blocks) and batch is not group.late:
                taken += batch.blocks
                if batch.ready is not None:
                    self._lines.leave(batch)
                group.drop(batch)
                if group.limited:
                    self._to_cut[group] = None
            else:
                taken += [block for block in batch.blocks if block.id in ids]
                batch.blocks = [block for block in batch.blocks if block.id not in ids]
                self._to_cut[group] = None
            if group.is_empty:
                self._to_cut.pop(group, None)
                self._groups.pop(group.key, None)
        return taken

    def _cut_anew(self, group: Group) -> None:
        batches = [*group.batches] if group.late is None else [*group.batches, group.late]
        blocks = list(chain.from_iterable(batch.blocks for batch in batches))
        for batch in group.batches:
            if batch.ready is not None:
                self._lines.leave(batch)
        self._cutter.cut_anew(group, blocks)
        if not blocks:
            self._groups.pop(group.key, None)


# The content of a queue of blocks, by level and tenant: what is due, what waits for more, what is in jobs.


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
        # 0 stands for no batch so far.
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


# The reason why one block is not merged now: what `inspect` says of it.


class BlockWait(StrEnum):
    """Of one block: as `BlockReason`, and what else may be."""

    DUE = "Due"
    WAITING_FOR_MORE = "WaitingForMore"
    NOTHING_TO_MERGE_WITH = "NothingToMergeWith"
    LARGE_ENOUGH = "LargeEnough"
    HIGHEST_LEVEL = "HighestLevel"


@dataclass(frozen=True, slots=True)
class WaitingBlock:
    """A block that no job has. `level`: at which it is merged, None when at none. `others`: how many wait with it in
    its batch, of which `most` make it full; `due`: when it is merged even so, epoch seconds, None when at no time.
    `obsolete`: it has no rows and is dropped then.
    """

    reason: BlockWait
    level: int | None = None
    others: int = 0
    most: int = 0
    due: float | None = None
    obsolete: bool = False


def waiting_of(queue: BlockQueue, block: str, *, now: float) -> WaitingBlock | None:
    """Return the reason for which a block waits; None for one that is in no queue, or that a job has. `now`: epoch
    seconds.
    """
    queue.advance(now)
    place = queue.place_of(block)
    if isinstance(place, BlockReason):
        return WaitingBlock(BlockWait(place.value))
    if not isinstance(place, BlockBatch):
        return None
    if place.ready is not None:
        reason = BlockWait.DUE
    else:
        reason = BlockWait.NOTHING_TO_MERGE_WITH if place.is_alone else BlockWait.WAITING_FOR_MORE
    return WaitingBlock(
        reason,
        level=place.level,
        others=len(place.blocks) - 1,
        most=queue.rules.levels[place.level].max_blocks,
        due=None if place.due == NEVER or place.ready is not None else place.due,
        obsolete=place.group.key[0].is_obsolete,
    )


# Blocks of one tenant, shard and window of time that are not merged with one another because of their schemas.


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
