"""The world for reconcile with a block store: real queue and planner, objects and index as plain data."""

from __future__ import annotations

from collections import Counter
from typing import Any

from compaction.api.job.job import CompactionJob
from compaction.blocks.kind import measures_of
from compaction.blocks.planning.batches import BlockClass, BlockRules, LevelRule, QueuedBlock
from compaction.blocks.planning.offers import offer, output_id
from compaction.blocks.planning.queue import BlockQueue
from compaction.core.planning.debt import ScanResult
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import RunStoreTask, StoreTask
from compaction.core.reconcile.observations import frozen
from support.cluster.manifests import block_store
from support.cluster.world import Log, PlainCluster

SIZE = 100
LEVELS = ((4, 60.0), (2, 600.0))
"""Blocks and age (seconds) of the levels, unless a test has others."""


def ulid(number: int) -> str:
    """The id of the block that arrived as the `number`th (below 1000)."""
    return f"01ARZ3NDEKTSV4RRFFQ69G5{number:03d}"


class _Lanes(dict[str, Log]):
    """What is remembered of each lane: claims, and jobs that were retired."""

    def __missing__(self, lane: str) -> Log:
        return self.setdefault(lane, Log([]))


class PlainBlockCluster(PlainCluster):
    def __init__(self, *, store: dict[str, Any] | None = None, **spec: Any) -> None:
        levels = [{"maxBlocks": count, "maxAge": f"{age:g}s", "maxBytes": "1Gi"} for count, age in LEVELS]
        super().__init__(store={"blockStore": block_store(levels=levels) | (store or {})}, **spec)
        self.rules = BlockRules(tuple(LevelRule(count, age, 1 << 30) for count, age in LEVELS), span=0)
        self.logs = _Lanes()
        self.live: dict[str, QueuedBlock] = {}
        self.set_aside: set[str] = set()
        self.arrivals = 0
        self.tasks: list[RunStoreTask] = []
        self.look_in: float | None = None
        self.scatter = 1
        """Ids go up with arrivals; with a number prime to 1000, up and down."""

    def add_blocks(self, count: int, tenant: str = "t", *, level: int = 0) -> list[str]:
        """Blocks that have just arrived."""
        names = []
        for _ in range(count):
            self.arrivals += 1
            name = ulid(self.arrivals * self.scatter % 1000)
            self.live[name] = QueuedBlock(name, BlockClass(tenant, 0), level, SIZE, 0, self.wall, self.arrivals)
            names.append(name)
        return names

    def look(self, task: RunStoreTask) -> None:
        """As the adapter does it: what jobs are made of is held in their targets, the rest is in batches."""
        assert self.policy is not None
        self.tasks.append(task)
        self.readings += 1
        self.wall += 0.001
        self.set_aside -= {block for _, block in task.released}
        queue = BlockQueue(self.rules)
        waiting = {name: item for name, item in self.live.items() if name not in self.set_aside}
        queue.push_all(sorted(waiting.values(), key=lambda item: item.number))
        for held in task.jobs.values():
            queue.hold(held.target, held.level, held.sources)
        existing = Counter((job.level, job.target.split("/")[0]) for job in task.jobs.values())
        offered = offer(queue, now=self.wall, sensed_at=self.wall, most=1000, existing=existing)
        self.reading = ScanResult(
            number=self.readings,
            generation=self.policy.metadata.generation,
            started=self.wall,
            ended=self.wall,
            wall=self.wall,
            candidates=offered.candidates,
            targets=frozenset(candidate.target for candidate in offered.candidates),
            identities=frozen(
                {
                    (lane, item): item if item in self.set_aside else ""
                    for lane, ones in task.quarantined.items()
                    for item in ones
                }
            ),
            measures=measures_of(
                live=len(self.live),
                windows=len({item.kin.tenant for item in self.live.values()}),
                candidates=offered.candidates,
            ),
            left_out=offered.left_out,
            outdated=frozenset(name for name, item in task.jobs.items() if not waiting.keys() >= set(item.sources)),
        )
        due, memory = self.memory.store.sweep_due, store_work.ended(self.memory, StoreTask.SENSE)
        sweep_in = None if due is None else due - self.wall
        self.memory = store_work.scanned(memory, sweep_in=sweep_in, look_in=self.look_in, now=self.wall)

    def blocks_of(self, job: str) -> tuple[str, ...]:
        sources = self.jobs[job].spec.sources.blocks
        assert sources is not None
        return sources.blocks

    def commit(self, job: str, token: int) -> bool:
        """Replace: every source live, the newest token, not retired; the output is of the next level."""
        spec = self.jobs[job].spec
        sources, lane = spec.sources.blocks, self.logs[spec.target]
        assert sources is not None
        if lane.claimed.get(job) != token or job in lane.retired or not self.live.keys() >= set(sources.blocks):
            return False
        size = sum(self.live.pop(block).bytes for block in sources.blocks)
        made = output_id(sources.blocks, tenant=sources.tenant, shard=sources.shard, level=spec.level + 1)
        self.arrivals += 1
        self.live[made] = QueuedBlock(
            made, BlockClass(sources.tenant, sources.shard), spec.level + 1, size, 0, self.wall, self.arrivals
        )
        lane.commits.append((job, token, made))
        return True

    def put_job(self, name: str, **changes: Any) -> CompactionJob:
        """A job made by hand."""
        document = {
            "metadata": {"name": name, "namespace": "ns", "uid": f"h{self.bump()}", "resourceVersion": "1"},
            "spec": {"policyRef": {"name": "logs"}, **changes},
        }
        self.jobs[name] = CompactionJob.from_object(document)
        return self.jobs[name]
