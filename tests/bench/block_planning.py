"""The queue of blocks: a million blocks planned, what a look costs when little has changed, memory, and a restart.

The rivals are planners without a queue: all blocks sorted and grouped for each plan, and everything read again for each
look.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count, groupby

from bench.harness import Curve, Fact, Race, Side, Workspace, most_seconds, sample
from compaction.blocks.planning.batches import BlockClass, BlockRules, QueuedBlock
from compaction.blocks.planning.offers import offer
from compaction.blocks.planning.queue import BlockQueue
from compaction.core.planning.candidates import Candidate, GroupCandidate
from compaction.core.planning.planner import JobInventory, Plan, PlanLimits, Planner, PlanTrigger

RULES = BlockRules()
NOW = 1_800_000_000.0
"""Long after all blocks came: whatever has company is ready."""
PLANNER = Planner("blocks", "2f5dcd5e-0000-4000-8000-000000000000", PlanLimits(1 << 60, 1 << 60), PlanTrigger())
NEWS = 1000
CLASSES = {(tenant, shard): BlockClass(f"tenant-{tenant:02d}", shard) for tenant in range(100) for shard in range(8)}


def block(number: int) -> QueuedBlock:
    """One of 100 tenants with 8 shards each, of levels 0 to 2, in an hour of data."""
    return QueuedBlock(
        id=f"01ARZ3NDEK{number * 2654435761 % 2**32:016d}",
        kin=CLASSES[number % 100, number // 7 % 8],  # as blocks/waiting.py does
        level=number // 3 % 3,
        bytes=5_000_000 + number % 1000,
        min_time=number * 3600 % 3_600_000_000,
        arrived=1_700_000_000.0 + number * 0.01,
        number=number,
    )


def alone(number: int) -> QueuedBlock:
    """The costliest shape: no block has company."""
    return block(number)._replace(min_time=number * RULES.span)


def memory(blocks: int, made: Callable[[int], QueuedBlock]) -> float:
    """Bytes per block, with the block itself; the larger of before and after all are due."""
    gc.collect()
    tracemalloc.start()
    queue = BlockQueue(RULES)
    queue.push_all(map(made, range(blocks)))
    before = tracemalloc.get_traced_memory()[0]
    queue.advance(NOW)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return max(before, after) / len(queue)


def filled(blocks: int) -> BlockQueue:
    """What a restart does: all blocks in one pass."""
    queue = BlockQueue(RULES)
    queue.push_all(map(block, range(blocks)))
    return queue


def plan_all(queue: BlockQueue, most: int | None = None) -> Plan:
    """One plan over what is ready."""
    offered = offer(queue, now=NOW, sensed_at=1.0, most=most)
    return PLANNER.plan(offered.candidates, {}, JobInventory(), now=NOW, left_out=offered.left_out)


def plan_filled(blocks: int) -> Callable[[], object]:
    """A plan over so many blocks that wait already."""
    queue = filled(blocks)
    return lambda: plan_all(queue)


def plan_sorted(blocks: int) -> Callable[[], object]:
    """All blocks sorted by key and arrival and cut by number, for this one plan."""
    waiting = [block(number) for number in range(blocks)]

    def run() -> Plan:
        candidates: list[Candidate] = []
        waiting.sort(key=lambda item: (item.level, item.kin, item.min_time // RULES.span, item.number))
        keyed = groupby(waiting, key=lambda item: (item.level, item.kin, item.min_time // RULES.span))
        for (level, (tenant, shard, _), _), group in keyed:
            line, most = list(group), RULES.levels[level].max_blocks
            for at in range(0, len(line), most):
                part = sorted(line[at : at + most])
                names = tuple(item.id for item in part)
                size = sum(item.bytes for item in part)
                made = (GroupCandidate(names, names, size, 0),)
                path = f"{tenant}/{shard}/L{level}/{names[0]}"
                candidates.append(
                    Candidate(path, tenant, "", made, (), size, len(part), 1.0, level, min(b.arrived for b in part))
                )
        return PLANNER.plan(candidates, {}, JobInventory(), now=NOW)

    return run


def restart(blocks: int) -> Callable[[], object]:
    """From what the index says to a queue that knows what is ready."""
    read = [block(number) for number in range(blocks)]

    def run() -> object:
        queue = BlockQueue(RULES)
        queue.push_all(read)
        return queue.ready(NOW, most=NEWS)

    return run


def look(blocks: int) -> Callable[[], object]:
    """A thousand blocks have come since the last look, and as many are gone: the jobs of their batches are done."""
    queue, numbers = filled(blocks), count(blocks, NEWS)
    plan_all(queue, NEWS)

    def run() -> None:
        first = next(numbers)
        assert queue.push_all(block(first + n)._replace(arrived=NOW) for n in range(NEWS)) == NEWS
        for done in offer(queue, now=NOW, sensed_at=1.0, most=NEWS // 12).candidates:
            queue.remove(done.groups[0].sources)
        plan_all(queue, NEWS)

    return run


def measure(workspace: Workspace) -> Iterator[Race | Curve | Fact]:
    """See the module."""
    blocks = workspace.pick(1_000_000, 2_000)
    yield Race(
        f"plan {blocks:,} blocks",
        "blocks",
        blocks,
        Side("queue", plan_filled(blocks)),
        Side("sort and group", plan_sorted(blocks)),
        target=most_seconds(2.0),
        rounds=3,
    )
    yield Race(
        f"a look at {blocks:,} blocks of which {NEWS:,} came and went",
        "blocks",
        NEWS,
        Side("changes", look(blocks)),
        Side("everything again", restart(blocks)),
        rounds=3,
    )
    for shape, made in (("", block), (", each alone in its window", alone)):
        used = memory(blocks, made)
        yield Fact(f"memory of {blocks:,} blocks{shape}", f"{used:,.0f} bytes per block", "<= 1 KiB", used <= 1024)
    taken = min(sample(restart(blocks)).cpu for _ in range(workspace.pick(3, 1)))
    yield Fact(f"restart with {blocks:,} blocks", f"{taken:.2f} s CPU, {blocks / taken:,.0f} blocks/s")
    yield Curve(
        "block planning",
        "blocks",
        workspace.pick((10_000, 30_000, 100_000, 300_000, 1_000_000), (1_000, 4_000)),
        plan_filled,
        "sort and group",
        plan_sorted,
        workspace.pick((10_000, 30_000, 100_000, 300_000), (1_000, 4_000)),
        most_exponent=1.15,
    )
