"""Ready batches as candidates of the planner, and its jobs as what a rewrite of blocks has to know.

One batch is one candidate with one group, hence one job with one commit (blocks/work.py). The order of the queue
becomes `Candidate.turn`. Everything else is the planner's and the scheduler's: names, limits, eviction, splitting of
Faulty jobs, tenants taking turns for workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compaction.blocks.planning.queue import BlockQueue
from compaction.blocks.planning.rules import QueuedBlock
from compaction.blocks.work import target_name
from compaction.core.planning.candidates import LEAST_MERGED, Candidate, GroupCandidate, LeftOutReason
from compaction.core.planning.collector import collector_paused
from compaction.core.planning.planner import LeftOut


@dataclass(frozen=True, slots=True)
class OfferedCandidates:
    """What a queue has for one plan; `left_out` are the blocks and batches that are in no candidate."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]


def offer(
    queue: BlockQueue,
    *,
    now: float,
    sensed_at: float,
    most: int | None = None,
    existing: Mapping[tuple[int, str], int] | None = None,
) -> OfferedCandidates:
    """Candidates for the batches that are ready (at most `most`), and for all that jobs were made of.

    The latter are offered again because the planner splits those whose job is Faulty; it leaves out the others, whose
    lane has an unfinished job.

    Args:
        now: epoch seconds, for the queue's timers.
        sensed_at: monotonic seconds of the scan that the queue's content is from.
        existing: jobs of (level, tenant) that exist already.
    """
    with collector_paused():
        return _offer(queue, now, sensed_at, most, existing or {})


def _offer(
    queue: BlockQueue, now: float, sensed_at: float, most: int | None, existing: Mapping[tuple[int, str], int]
) -> OfferedCandidates:
    found = queue.ready(now, most=None if most is None else most + 1, existing=existing)
    ready = found[:most]
    candidates = [_candidate("", one.level, one.blocks, one.bytes, turn, sensed_at) for turn, one in enumerate(ready)]
    least = LEAST_MERGED if queue.rules.strict_gain else 1
    # Where less is left there is nothing to merge: the job is outdated, and the block waits again when it is gone.
    lanes = [one for one in queue.held.values() if len(one.blocks) >= least or one.is_obsolete]
    for turn, held in enumerate(sorted(lanes, key=lambda one: one.lane), start=len(ready)):
        size = sum(one.bytes for one in held.blocks)
        candidates.append(_candidate(held.lane, held.level, held.blocks, size, turn, sensed_at))
    left_out = [
        LeftOut(row.reason, row.count, row.example, row.bytes, row.due, row.missing) for row in queue.left_alone()
    ]
    if len(found) > len(ready):
        example = _target(found[-1].level, found[-1].blocks[0], min(found[-1].blocks).id)
        left_out.append(LeftOut(LeftOutReason.QUEUE_FULL, queue.ready_size - len(ready), example))
    return OfferedCandidates(tuple(candidates), tuple(left_out))


def _target(level: int, block: QueuedBlock, first: str) -> str:
    return target_name(block.kin.tenant, block.kin.shard, level, first)


def _candidate(
    lane: str, level: int, blocks: Sequence[QueuedBlock], size: int, turn: int, sensed_at: float
) -> Candidate:
    """`lane` is empty for a batch that no job was made of. Touches as little of a block as it can: there are a million,
    and none of them is in the processor's cache.
    """
    sources = tuple(sorted([one[0] for one in blocks]))
    first = blocks[0]
    # Blocks of the lowest level stand in the order of their arrival; others may have climbed.
    arrived = first.arrived if level == 0 and not lane else min([one[5] for one in blocks])
    return Candidate(
        target=lane or _target(level, first, sources[0]),
        tenant=first.kin.tenant,
        base_version="",
        # What is saved is known only afterwards: bytes count as debt, not as gain. An id names one content for ever.
        groups=(GroupCandidate(sources, sources, size, 0, divisible=True),),
        obsolete=(),
        debt_bytes=size,
        debt_sources=len(sources),
        sensed_at=sensed_at,
        level=level,
        oldest_debt_at=arrived,
        turn=turn,
    )
