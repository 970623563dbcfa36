"""Ready batches as candidates of the planner, and its jobs as a rewrite of blocks needs them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from compaction.blocks.errors import BlockIdError
from compaction.blocks.model import target_name
from compaction.blocks.planning.batches import QueuedBlock
from compaction.blocks.planning.queue import BlockQueue
from compaction.core.collecting import collector_paused
from compaction.core.planning.candidates import LEAST_MERGED, Candidate, GroupCandidate, LeftOutReason
from compaction.core.planning.planner import LeftOut

# Ids of the blocks that an attempt at a job makes: the same attempt makes the same ids, wherever its steps run.
#
# The reference takes the time of the block that is listed first, and ids in the order in which they were found: both
# vary (docs/design/blocks.md#ids-of-outputs). Ours depend on the set of sources and on the attempt's fencing token.
# Without the token, an attempt that was believed dead could finish an upload after a later one has committed, and
# replace an object that readers see (docs/adr/0170-outputs-belong-to-an-attempt.md).
#
# A ULID is 128 bits in 26 characters of Crockford's base 32: 48 bits of milliseconds since 1970, 80 bits that tell
# those of one millisecond apart.

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}
_LENGTH: Final = 26
_TAIL_BITS: Final = 80


def ulid_milliseconds(ulid: str) -> int:
    """Return the time at which the ULID was generated: milliseconds since 1970.

    Raises:
        BlockIdError: it is no ULID in its canonical form (upper case).
    """
    if len(ulid) != _LENGTH or ulid[0] > "7" or not _VALUES.keys() >= set(ulid):
        raise BlockIdError(f"{ulid!r} is not the id of a block: a ULID has 26 characters of {_ALPHABET}, the first 0-7")
    value = 0
    for character in ulid[:10]:
        value = value * 32 + _VALUES[character]
    return value


def output_id(sources: Iterable[str], *, tenant: str, shard: int, level: int, part: int = 0, attempt: str = "") -> str:
    """The ULID of output number `part`, of `level`, that an attempt makes of `sources` (ULIDs, in any order): as old as
    the oldest of them. `attempt`: the job and its fencing token, in words that no other attempt has.

    Raises:
        BlockIdError: there are no sources, one of them comes twice, or one is no ULID.
    """
    ids = sorted(sources)
    if not ids or len(set(ids)) != len(ids):
        raise BlockIdError(f"an output is made of at least one source, and of each once, not of {ids}")
    oldest = min(map(ulid_milliseconds, ids))
    digest = hashlib.sha256()
    # Lengths keep the fields apart: a tenant may hold any character.
    for field in (tenant, str(shard), str(level), str(part), attempt, *ids):
        data = field.encode()
        digest.update(b"%d:%s" % (len(data), data))
    tail = int.from_bytes(digest.digest()[: _TAIL_BITS // 8], "big")
    value = oldest << _TAIL_BITS | tail
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(5 * (_LENGTH - 1), -1, -5))


# Ready batches as candidates of the planner, and its jobs as what a rewrite of blocks has to know.
#
# One batch is one candidate with one group, hence one job with one commit (blocks/kind.py). The order of the queue
# becomes `Candidate.turn`. Everything else is the planner's and the scheduler's: names, limits, eviction, splitting
# of Faulty jobs, tenants taking turns for workers.


@dataclass(frozen=True, slots=True)
class OfferedCandidates:
    """The candidates that a queue has for one plan; `left_out` are the blocks and batches that are in no candidate."""

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
    candidates = [
        _candidate("", item.level, item.blocks, item.bytes, turn, sensed_at) for turn, item in enumerate(ready)
    ]
    least = LEAST_MERGED if queue.rules.strict_gain else 1
    # Where less is left there is nothing to merge: the job is outdated, and the block waits again when it is gone.
    lanes = [item for item in queue.held.values() if len(item.blocks) >= least or item.is_obsolete]
    for turn, held in enumerate(sorted(lanes, key=lambda lane: lane.lane), start=len(ready)):
        size = sum(block.bytes for block in held.blocks)
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
    sources = tuple(sorted([block[0] for block in blocks]))
    first = blocks[0]
    # Blocks of the lowest level stand in the order of their arrival; others may have climbed.
    arrived = first.arrived if level == 0 and not lane else min([block[5] for block in blocks])
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
