"""How far behind a store is, and until when: sums over candidates, measured speed, time of arrival."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from compaction.planning.candidates import Candidate
from compaction.planning.reading import QueuedBlocks, Reading

RECENT_JOBS = 20
"""Speed is measured over so many of the newest receipts."""
LEAST_SECONDS = 0.5
"""Jobs shorter than this together say nothing about speed."""
LEAST_JOB_SECONDS = 0.1
"""What a job takes at least, however small: to be assigned, reported, and written down."""


@dataclass(frozen=True, slots=True)
class LevelDebt:
    """Debt of one level: `segments` would be gone or rewritten, or `blocks` merged."""

    level: int
    bytes: int
    segments: int
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class TenantDebt:
    """Debt of one tenant of a block store."""

    tenant: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Debt:
    """Debt of a policy. `logs` counts the logs (or batches of blocks) that have any; `oldest_at` is epoch seconds.

    Of a block store: `blocks` would be merged, and there would be `surplus` fewer; `tenants` have the most first.
    """

    bytes: int = 0
    segments: int = 0
    logs: int = 0
    levels: tuple[LevelDebt, ...] = ()
    oldest_at: float | None = None
    copy_bytes: int = 0
    blocks: int = 0
    surplus: int = 0
    tenants: tuple[TenantDebt, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedWork:
    """A finished job: bytes it was estimated to copy, seconds from assignment to end (what it costs to hand a job out
    and to hear of its end included: for many small logs that is most of it), when it ended (epoch).
    """

    cost_bytes: int
    seconds: float
    finished_at: float


def debt_of(reading: Reading) -> Debt:
    """The debt that a look found, by level and, of blocks, by tenant."""
    if reading.blocks is None:
        return total_debt(reading.candidates)
    return block_debt(reading.candidates, reading.blocks.beyond)


def block_debt(candidates: Iterable[Candidate], beyond: Iterable[QueuedBlocks] = ()) -> Debt:
    """The debt of the batches of a block store, those included that are due and not offered for their number."""
    given = [one for one in candidates if not one.is_empty]
    sums = [
        QueuedBlocks(one.level, one.tenant, sum(len(group.sources) for group in one.groups), one.debt_bytes)
        for one in given
    ]
    beyond = tuple(beyond)
    levels: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    tenants: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in (*sums, *beyond):
        for into in (levels[one.level], tenants[one.tenant]):
            into[0] += one.bytes
            into[1] += one.blocks
    ranked = sorted(tenants.items(), key=lambda item: (-item[1][1], -item[1][0], item[0]))
    size, blocks = (sum(row[index] for row in levels.values()) for index in (0, 1))
    return Debt(
        bytes=size,
        logs=len(sums) + sum(one.batches for one in beyond),
        levels=tuple(LevelDebt(level, row[0], 0, row[1]) for level, row in sorted(levels.items())),
        oldest_at=min((one.oldest_debt_at for one in given if one.oldest_debt_at is not None), default=None),
        copy_bytes=size,
        blocks=blocks,
        surplus=blocks - len(sums) - sum(one.batches for one in beyond),
        tenants=tuple(TenantDebt(tenant, *row) for tenant, row in ranked),
    )


def total_debt(candidates: Iterable[Candidate]) -> Debt:
    """The debt of all candidates together, by level."""
    by_level: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    logs = copy = 0
    oldest: float | None = None
    for candidate in candidates:
        if candidate.is_empty:
            continue
        logs += 1
        copy += sum(group.copy_bytes for group in candidate.groups)
        by_level[candidate.level][0] += candidate.debt_bytes
        by_level[candidate.level][1] += candidate.debt_segments
        if candidate.oldest_debt_at is not None:
            oldest = candidate.oldest_debt_at if oldest is None else min(oldest, candidate.oldest_debt_at)
    levels = tuple(LevelDebt(level, sums[0], sums[1]) for level, sums in sorted(by_level.items()))
    return Debt(
        bytes=sum(one.bytes for one in levels),
        segments=sum(one.segments for one in levels),
        logs=logs,
        levels=levels,
        oldest_at=oldest,
        copy_bytes=copy,
    )


def bytes_per_second(work: Iterable[FinishedWork]) -> float | None:
    """Bytes copied per second of one job, over the newest jobs; None when nothing was measured yet."""
    newest = sorted(work, key=lambda w: w.finished_at)[-RECENT_JOBS:]
    seconds = sum(max(LEAST_JOB_SECONDS, one.seconds) for one in newest)
    copied = sum(one.cost_bytes for one in newest)
    return copied / seconds if seconds >= LEAST_SECONDS and copied > 0 else None


def eta_seconds(remaining_bytes: int, speed: float | None, *, parallel: int) -> float | None:
    """Seconds until `remaining_bytes` are copied by `parallel` jobs at once; 0 for none left, None when unknown."""
    if remaining_bytes <= 0:
        return 0.0
    if speed is None or parallel <= 0:
        return None
    return remaining_bytes / (speed * parallel)
