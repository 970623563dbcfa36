"""The queue of blocks that wait to be compacted: what has come, what has gone, and what is ready now.

It receives changes only (`push`, `remove`, `hold`, `release`), so a scan costs what has changed; a restart pushes
everything once, in the order of arrival. The clock is passed in.

* A block that is pushed waits in a batch (batches.py), or is left alone for a reason.
* `hold`: a job has been made of these blocks. They are in no other batch from then on, until they are removed (the job
  succeeded: they are replaced) or released (the job is gone: they wait again, at the place of their arrival).

Invariants (tests/stores/blocks/planning/test_properties.py, test_rows.py):

* A block that was pushed and not removed is in exactly one place: a batch, a job, or left alone with a reason.
* Nothing is planned twice: no block of a held batch is offered in another one.
* A batch has blocks of one class (tenant, shard, mergeable schema) and window, merged at one level; never more than the
  level and a job may have, unless it is a single block.
* Every batch that is due is offered, whether or not anything arrives: there is no push that a timer waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

from compaction.blocks.planning.batches import NEVER, BlockBatch, Cutter, Group
from compaction.blocks.planning.order import ReadyLines
from compaction.blocks.planning.rules import BlockClass, BlockReason, BlockRules, QueuedBlock
from compaction.core.planning.collector import collector_paused

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
                held.blocks = tuple(one for one in held.blocks if one.id != block)
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
            held.blocks = tuple(sorted((*held.blocks, *taken), key=lambda one: one.id))
            self._held_by_id.update((one.id, held) for one in taken)
        return len(taken)

    def release(self, lane: str) -> int:
        """The job is gone without having replaced its blocks: what is left of them waits again. How many they are."""
        held = self._held.pop(lane, None)
        if held is None:
            return 0
        for block in held.blocks:
            del self._held_by_id[block.id]
        return self.push_all(sorted(held.blocks, key=lambda one: one.number))

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
        """How many batches are ready, as of the last scan."""
        return self._lines.size

    @property
    def held(self) -> Mapping[str, HeldBatch]:
        """The batches that jobs were made of, by lane."""
        return MappingProxyType(self._held)

    def next_due(self) -> float | None:
        """When `ready` has something new although nothing arrives (epoch seconds); None: never. Look before you ask."""
        return self._cutter.next_due()

    def batches(self) -> Iterator[BlockBatch]:
        """Every batch with blocks, as of the last scan, ready or not. O(batches)."""
        return (batch for group in self._groups.values() for batch in group.batches if batch.blocks)

    def place_of(self, block: str) -> BlockBatch | HeldBatch | BlockReason | None:
        """Where a block is, as of the last scan: in a batch, with a job, or left alone for good; None: not known."""
        return self._where.get(block) or self._held_by_id.get(block) or self._alone.get(block)

    def left_alone(self) -> tuple[LeftAloneBlocks, ...]:
        """Why blocks are in no batch that is ready, as of the last scan. O(batches)."""
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
                self._drop(batch)
                if group.limited:
                    self._to_cut[group] = None
            else:
                taken += [one for one in batch.blocks if one.id in ids]
                batch.blocks = [one for one in batch.blocks if one.id not in ids]
                self._to_cut[group] = None
            if group.is_empty:
                self._to_cut.pop(group, None)
                self._groups.pop(group.key, None)
        return taken

    def _drop(self, batch: BlockBatch) -> None:
        if batch.ready is not None:
            self._lines.leave(batch)
        batch.group.drop(batch)

    def _cut_anew(self, group: Group) -> None:
        batches = [*group.batches] if group.late is None else [*group.batches, group.late]
        blocks = list(chain.from_iterable(batch.blocks for batch in batches))
        for batch in group.batches:
            if batch.ready is not None:
                self._lines.leave(batch)
        self._cutter.cut_anew(group, blocks)
        if not blocks:
            self._groups.pop(group.key, None)
