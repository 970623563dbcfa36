"""Deletes ranges and metaranges that no commit and no branch leads to, after the grace.

docs/design/staging-areas.md#sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from compaction.stores.staging.flows.area import Area
from compaction.stores.staging.flows.marks import mark, marked_objects, pinned, unmark

BATCH: Final = 500
CLOCKS_DIFFER: Final = 300.0
"""Seconds by which the clock of an object storage may be behind ours."""


@dataclass(frozen=True, slots=True)
class SweptObjects:
    """How many objects and bytes were deleted; `unreached`: those that no tree has and that wait for the grace."""

    objects: int
    bytes: int
    unreached: int


def sweep_objects(area: Area, *, grace: float) -> SweptObjects:
    """Delete objects that no tree of the repository has and that were written more than `grace` seconds ago.

    Trees are those of all commits, also of such that no branch leads to, and the compacted bases. Objects are listed
    before the trees are read: what is written later is in no list. A tree that cannot be read stops the sweep, because
    it is not known what it has: nothing is deleted then.

    Raises CorruptRangeError, MissingRangeError, CorruptMessageError, ObjectError, DatabaseError.
    """
    kept_since = _oldest_claim(area)
    found = {one.path: one for one in area.ranges.stored()}
    reached = reachable(area)
    now = area.clock()
    grace = max(grace, now - kept_since)
    unreached = [one for one in found.values() if one.path not in reached]
    due = [one.path for one in unreached if _age(one.modified, now) > grace]
    objects = size = 0
    for begin in range(0, len(due), BATCH):
        names = due[begin : begin + BATCH]
        mark(area.kv, area.repository.partition, names)
        kept = frozenset(_with_ranges(area, pinned(area)))
        gone = [name for name in names if name not in kept and _still_old(area, name, grace)]
        deleted = area.ranges.delete(gone)
        objects += len(deleted)
        size += sum(found[name].size for name in deleted)
        unmark(area.kv, area.repository.partition, names)
    _unmark_leftovers(area)
    return SweptObjects(objects, size, len(unreached) - objects)


def _oldest_claim(area: Area) -> float:
    """Since when (seconds since 1970) objects may be those of an attempt whose claim stands; now when none does."""
    now = area.clock()
    records = [branch.record for branch in area.branches.every()]
    began = [one.compaction_started / 1000 - CLOCKS_DIFFER for one in records if one.claim_job]
    return min(began, default=now)


def reachable(area: Area) -> frozenset[str]:
    """The ids of all objects that a commit or a compacted base of the repository has."""
    trees = {commit.meta_range_id for commit in area.commits.every()} | pinned(area)
    trees |= {branch.record.compacted_base for branch in area.branches.every()}
    return frozenset(_with_ranges(area, trees - {""}))


def _with_ranges(area: Area, trees: Iterable[str]) -> Iterable[str]:
    for tree in trees:
        yield tree
        for one in area.ranges.ranges(tree):
            yield one.id


def _still_old(area: Area, name: str, grace: float) -> bool:
    """Whether no writer has written the object since: its mark is there, so a writer that comes now waits."""
    modified = area.ranges.modified(name)
    return modified is not None and _age(modified, area.clock()) > grace


def _unmark_leftovers(area: Area) -> None:
    """Marks of a sweep that was killed: what they stand for is deleted, or was not."""
    left = marked_objects(area.kv, area.repository.partition)
    if left:
        unmark(area.kv, area.repository.partition, sorted(left))


def _age(modified: datetime, now: float) -> float:
    return now - modified.astimezone(UTC).timestamp()
