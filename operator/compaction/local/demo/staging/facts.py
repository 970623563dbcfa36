"""What is staged and stored at one moment, from the records of the branches, the counters and the objects alone."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from compaction.local.demo.staging.entries import LOGS_PREFIX
from compaction.local.demo.staging.scenario import THRESHOLDS
from compaction.staging.changes import tombstones
from compaction.staging.flows.area import Area
from compaction.staging.flows.reading import Reader
from compaction.staging.staged.counters import Counts
from compaction.staging.staged.layers import layered
from compaction.staging.staged.tokens import after_prefix
from compaction.staging.sweep.objects import reachable


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """One branch. `commit`, `base`: ids, `base` is "" without a compacted base; `sealed`: sealed tokens; `counts`: what
    is in all of its tokens by their counters.
    """

    name: str
    commit: str
    base: str
    sealed: int
    counts: Counts


def look(area: Area) -> dict[str, BranchFacts]:
    """Every branch by its name. Raises DatabaseError."""
    records = [branch.record for branch in area.branches.every()]
    counted = area.counters.read({token for record in records for token in record.tokens})
    return {
        record.id: BranchFacts(
            record.id,
            record.commit_id,
            record.compacted_base,
            len(record.sealed_tokens),
            sum((counted.get(token, Counts()) for token in record.tokens), Counts()),
        )
        for record in records
    }


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing of the first thousand records below `logs/`. `stepped_over`: tombstones below that prefix."""

    seconds: float
    records: int
    stepped_over: int


def list_logs(area: Area, branch: str, *, times: int = 1) -> Listing:
    """List and count; the fastest of so many times. Raises CompactionError."""
    reader, seconds, records = Reader(area), list[float](), 0
    for _ in range(times):
        began = time.monotonic()
        records = len(reader.list(branch, prefix=LOGS_PREFIX).entries)
        seconds.append(time.monotonic() - began)
    stop = after_prefix(LOGS_PREFIX)
    tokens = area.branches.get(branch).record.tokens
    staged = layered([area.tokens.changes(token, LOGS_PREFIX, stop) for token in tokens])
    return Listing(min(seconds), records, sum(int(np.count_nonzero(tombstones(batch))) for batch in staged))


@dataclass(frozen=True, slots=True)
class LeftOver:
    """What should be deleted: tokens that were compacted and have rows, objects that no commit or branch leads to."""

    tokens: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()

    @property
    def none(self) -> bool:
        return not (self.tokens or self.objects)


def left_over(area: Area, compacted: Iterable[str]) -> LeftOver:
    """`compacted`: tokens that became part of a base. Raises CompactionError."""
    stored = {one.path for one in area.ranges.stored()}
    with_rows = tuple(token for token in compacted if area.tokens.has_rows(token))
    return LeftOver(with_rows, tuple(sorted(stored - reachable(area))))


def due(facts: BranchFacts) -> bool:
    """Whether a branch has reached a threshold of the policy."""
    counts = facts.counts
    reached = {"tombstones": counts.tombstones, "sealedTokens": facts.sealed, "stagedWrites": counts.writes}
    return any(reached[name] >= least for name, least in THRESHOLDS.items())
