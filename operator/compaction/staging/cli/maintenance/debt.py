"""What is behind on branches, and what compacting them would touch: from the counters, the tokens and the lists of
ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from compaction.api.policy.staging_area import KeyValueReference, StagingAreaSpec, StagingThresholds
from compaction.api.policy.store import StoreSpec
from compaction.api.text.formatting import format_age, format_bytes, plural
from compaction.staging.changes import tombstones
from compaction.staging.compaction.rewriting import staged_changes
from compaction.staging.compaction.work import BranchWork
from compaction.staging.errors import StagingStoreError
from compaction.staging.flows.area import Area
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.ranges import RangeInfo
from compaction.staging.kind import STAGING
from compaction.staging.sensor import BranchDebt, BranchSensor, candidate_of
from compaction.staging.staged.counters import Counts
from compaction.staging.tree.stretches import plan_parts


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """A token of a branch and what its counters say."""

    token: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class TouchedRanges:
    """What a compaction of a branch reads and writes: its changes and the ranges that they touch, of `ranges`."""

    changes: int
    tombstones: int
    ranges: int
    touched: int
    bytes: int


def scan_branches(
    area: Area, thresholds: StagingThresholds, *, branch: str | None = None, policy: StagingAreaSpec | None = None
) -> tuple[list[BranchDebt], list[tuple[str, StagingStoreError]]]:
    """What is staged on every branch, or on one; and branches that cannot be read. Nothing is written.

    policy: it selects the branches when none is named.

    Raises UnknownRefError.
    """
    if branch is not None:
        area.branches.get(branch)
    spec = policy if policy is not None and branch is None else _spec(area, thresholds, branch)
    scan = BranchSensor(spec).scan(area, store=False)
    return list(scan.branches), list(scan.damaged)


def token_counts(area: Area, tokens: Sequence[str]) -> list[TokenCounts]:
    """What is in each token; one without counters is counted."""
    counted = area.counters.read(tokens)
    return [TokenCounts(token, counted.get(token) or area.counters.prime(token, store=False)) for token in tokens]


def why_due(area: Area, debt: BranchDebt, thresholds: StagingThresholds) -> str:
    """The thresholds that a branch has reached, in words; "" when it is not due."""
    if debt.work is None:
        return ""
    spec, now = _spec(area, thresholds, None), area.clock()
    candidate = candidate_of(debt, debt.work, spec, sensed_at=0.0, now=now)
    if not STAGING.due(StoreSpec(staging_area=spec))(candidate):
        return ""
    counts, reached = debt.counts, []
    if thresholds.tombstones is not None and counts.tombstones >= thresholds.tombstones:
        reached.append(plural(counts.tombstones, "tombstone"))
    if thresholds.sealed_tokens is not None and len(debt.record.sealed_tokens) >= thresholds.sealed_tokens:
        reached.append(plural(len(debt.record.sealed_tokens), "sealed token"))
    if thresholds.staged_writes is not None and counts.writes >= thresholds.staged_writes:
        reached.append(plural(counts.writes, "write"))
    if thresholds.staged_bytes is not None and counts.nbytes >= int(thresholds.staged_bytes):
        reached.append(format_bytes(counts.nbytes))
    if thresholds.max_age is not None and now - debt.since >= float(thresholds.max_age):
        reached.append(f"staged for {format_age(now - debt.since)}")
    return ", ".join(reached)


def touched_by(area: Area, work: BranchWork) -> TouchedRanges:
    """What a compaction would touch. Reads the staged changes, and no range."""
    head = area.commits.get(work.commit_id).meta_range_id
    ranges = list(area.ranges.ranges(work.base or head))
    changes, deleted = 0, 0

    def counted(batches: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
        nonlocal changes, deleted
        for batch in batches:
            changes += len(batch)
            deleted += int(tombstones(batch).sum())
            yield batch

    touched: dict[str, int] = {}
    for item in plan_parts(ranges, counted(staged_changes(area, work)), area.ranges.rule):
        if not isinstance(item, RangeInfo):
            touched |= {one.id: one.estimated_size for one in item.ranges}
    return TouchedRanges(changes, deleted, len(ranges), len(touched), sum(touched.values()))


def _spec(area: Area, thresholds: StagingThresholds, branch: str | None) -> StagingAreaSpec:
    return StagingAreaSpec(
        repository=area.repository.name,
        kv=KeyValueReference(secret_name="kv"),
        include=("*",) if branch is None else (branch,),
        thresholds=thresholds,
    )
