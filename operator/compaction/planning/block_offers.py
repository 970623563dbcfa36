"""Ready batches as candidates of the planner, and its jobs as what a rewrite of blocks has to know.

One batch is one candidate with one group, hence one job with one commit. The lane (`path`) is the batch's own, so jobs
of one key run beside one another, while the parts that a Faulty job is split into take turns. The order of the queue
becomes `Candidate.turn`. Everything else is the planner's and the scheduler's: names, limits, eviction, splitting of
Faulty jobs, tenants taking turns for workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compaction.planning.block_rules import QueuedBlock
from compaction.planning.blocks import BlockQueue
from compaction.planning.candidates import Candidate, GroupCandidate, LeftOutReason
from compaction.planning.planner import LeftOut, PlannedJob


@dataclass(frozen=True, slots=True)
class Offer:
    """What a queue has for one plan; `left_out` are the blocks and batches that are in no candidate."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class BlockWork:
    """A planned job in the words of a block store: `sources` ascending, all of one tenant and shard; their outputs are
    of `output_level`. A source may be of a lower level than `level`: it has skipped some.
    """

    tenant: str
    shard: int
    level: int
    sources: tuple[str, ...]

    @property
    def output_level(self) -> int:
        """The level of what comes out."""
        return self.level + 1


def offer(
    queue: BlockQueue,
    *,
    now: float,
    sensed_at: float,
    most: int | None = None,
    existing: Mapping[tuple[int, str], int] | None = None,
) -> Offer:
    """Candidates for the batches that are ready (at most `most`), and for all that jobs were made of.

    The latter are offered again because the planner splits those whose job is Faulty; it leaves out the others, whose
    lane has an unfinished job.

    Args:
        now: epoch seconds, for the queue's timers.
        sensed_at: monotonic seconds of the look that the queue's content is from.
        existing: jobs of (level, tenant) that exist already.
    """
    found = queue.ready(now, most=None if most is None else most + 1, existing=existing or {})
    ready = found[:most]
    batches: list[tuple[str, int, Sequence[QueuedBlock]]]
    batches = [("", batch.level, batch.blocks) for batch in ready]
    batches += [(held.lane, held.level, held.blocks) for held in sorted(queue.held.values(), key=lambda one: one.lane)]
    candidates = tuple(
        _candidate(lane, level, blocks, turn, sensed_at) for turn, (lane, level, blocks) in enumerate(batches)
    )
    left_out = [LeftOut(row.reason, row.count, row.example) for row in queue.left_alone()]
    if len(found) > len(ready):
        left_out.append(
            LeftOut(
                LeftOutReason.QUEUE_FULL, queue.ready_size - len(ready), _lane(found[-1].level, min(found[-1].blocks))
            )
        )
    return Offer(candidates, tuple(left_out))


def work_of(job: PlannedJob) -> BlockWork:
    """What a planned job of this module does."""
    (group,) = job.groups
    tenant, shard, _, _ = job.path.rsplit("/", 3)
    return BlockWork(tenant=tenant, shard=int(shard), level=job.level, sources=group.sources)


def _lane(level: int, first: QueuedBlock) -> str:
    """`<tenant>/<shard>/L<level>/<its first id in order>`: no other batch has that block."""
    return f"{first.tenant}/{first.shard}/L{level}/{first.id}"


def _candidate(lane: str, level: int, blocks: Sequence[QueuedBlock], turn: int, sensed_at: float) -> Candidate:
    """`lane` is empty for a batch that no job was made of."""
    ordered = sorted(blocks)  # by id, which is first
    sources, tenants, _, _, sizes, _, arrived, _ = zip(*ordered, strict=True)
    size = sum(sizes)
    return Candidate(
        path=lane or _lane(level, ordered[0]),
        tenant=tenants[0],
        snapshot_index=0,
        # What is saved is known only afterwards: bytes count as debt, not as gain. An id names one content for ever.
        groups=(GroupCandidate(sources, sources, copy_bytes=size, gain_bytes=0, source_bytes=sizes),),
        unreferenced=(),
        debt_bytes=size,
        debt_segments=max(1, len(sources) - 1),
        sensed_at=sensed_at,
        level=level,
        oldest_debt_at=min(arrived),
        turn=turn,
    )
