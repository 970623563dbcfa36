"""Deletes ranges and metaranges that no commit and no branch leads to, after the grace.

docs/design/staging-areas.md#sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Final

from compaction.staging.errors import RowMissingError, UnknownRefError
from compaction.staging.flows.area import Area
from compaction.staging.flows.marks import mark, marked_objects, pinned, unmark
from compaction.staging.flows.receipts import sweep_receipts

BATCH: Final = 500
CLOCKS_DIFFER: Final = 300.0
"""Seconds: the object storage says how old an object is, and the coordinator when a claim began."""


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
    it is not known what it has: nothing is deleted then. What the attempts of a standing claim have written is kept,
    however long they take. Receipts that no branch needs are deleted, too.

    Raises RowMissingError, CorruptRangeError, MissingRangeError, CorruptMessageError, ObjectError, DatabaseError.
    """
    found = {one.path: one for one in area.ranges.stored()}
    claimed = claimed_since(area)  # before the bases are read: a swap in between makes a base of what it has
    reached = reachable(area)
    now = area.clock()
    unreached = [one for one in found.values() if one.path not in reached]
    due = [one.path for one in unreached if age_of(one.modified, now) > grace and epoch_of(one.modified) < claimed]
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
    sweep_receipts(area)
    return SweptObjects(objects, size, len(unreached) - objects)


def reachable(area: Area) -> frozenset[str]:
    """The ids of all objects that a commit or a compacted base of the repository has.

    RowMissingError: of the default branch, which every repository has, or of a commit that a branch or another commit
    names. What that one leads to is then in no list, and must not be taken for garbage.
    """
    # Before the commits: a branch is moved to a commit that is there.
    branches = {branch.name: branch.record.commit_id for branch in area.branches.every()}
    if area.repository.default_branch not in branches:
        raise RowMissingError(area.repository.name, f"branch {area.repository.default_branch}")
    trees, there, named = set[str](), set[str](), set(branches.values())
    for commit in area.commits.every():
        trees.add(commit.meta_range_id)
        there.add(commit.id)
        named.update(commit.parents)
    # A listing by id is no snapshot: of two commits made meanwhile it may have the child and not the parent.
    while missing := named - there:
        for name in missing:
            try:
                commit = area.commits.get(name)
            except UnknownRefError:
                raise RowMissingError(area.repository.name, f"commit {name}") from None
            trees.add(commit.meta_range_id)
            there.add(commit.id)
            named.update(commit.parents)
    trees |= pinned(area)
    trees |= {branch.record.compacted_base for branch in area.branches.every()}
    return frozenset(_with_ranges(area, trees - {""}))


def claimed_since(area: Area) -> float:
    """The moment, in seconds since 1970, from which on objects may be those of an attempt whose claim stands.

    A branch without sealed tokens was committed or reset since: its claim commits nothing any more.
    """
    records = [branch.record for branch in area.branches.every()]
    started = [one.compaction_started / 1000 for one in records if one.claim_job and one.sealed_tokens]
    return min(started, default=inf) - CLOCKS_DIFFER


def _with_ranges(area: Area, trees: Iterable[str]) -> Iterable[str]:
    for tree in trees:
        yield tree
        for one in area.ranges.ranges(tree):
            yield one.id


def _still_old(area: Area, name: str, grace: float) -> bool:
    """Whether no writer has written the object since: its mark is there, so a writer that comes now waits."""
    modified = area.ranges.modified(name)
    return modified is not None and age_of(modified, area.clock()) > grace


def _unmark_leftovers(area: Area) -> None:
    """Marks of a sweep that was killed: what they stand for is deleted, or was not."""
    left = marked_objects(area.kv, area.repository.partition)
    if left:
        unmark(area.kv, area.repository.partition, sorted(left))


def age_of(modified: datetime, now: float) -> float:
    """Seconds since an object was written. `now`: seconds since 1970."""
    return now - epoch_of(modified)


def epoch_of(modified: datetime) -> float:
    """Seconds since 1970."""
    return modified.astimezone(UTC).timestamp()
