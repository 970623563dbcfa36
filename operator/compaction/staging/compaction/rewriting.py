"""The rewrite of a branch in one process, and its proof (docs/design/staging-areas.md#proof).

The Spark job writes the same ranges, a stretch at a time in several tasks; both prove them in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compaction.staging.changes import rows_where, tombstones
from compaction.staging.compaction.spool import ChangesSpool
from compaction.staging.compaction.work import BranchWork
from compaction.staging.errors import RewriteProofError
from compaction.staging.flows.area import Area
from compaction.staging.flows.views import View
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.ranges import TableKind
from compaction.staging.staged.layers import layered
from compaction.staging.tree.applying import Applied, apply
from compaction.staging.tree.fingerprint import fingerprint


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A tree that was written and proved. Fingerprints are of all that the branch shows: `<records>:<digest>`."""

    applied: Applied
    fingerprint_before: str
    fingerprint_after: str

    @property
    def tree(self) -> str:
        return self.applied.metarange_id


def base_view(area: Area, work: BranchWork) -> View:
    """What the work makes one tree of: its tokens over the base."""
    head = area.commits.get(work.commit_id).meta_range_id
    return View(work.base or head, head, work.tokens)


def staged_changes(
    area: Area, work: BranchWork, start: bytes = b"", stop: bytes | None = None
) -> Iterator[RecordColumns]:
    """What the tokens of the work change, tombstones among it."""
    return layered([area.tokens.changes(token, start, stop) for token in work.tokens])


def rewrite(area: Area, work: BranchWork) -> Rewritten:
    """Write the tree that the work's tokens make of its base, and prove that it shows what they show together.

    Raises RewriteProofError, CorruptRangeError, CorruptMessageError, ObjectError, DatabaseError; what was written then
    is found by the sweep.
    """
    base = base_view(area, work).metarange_id
    with ChangesSpool() as spool:
        changes = spool.through(staged_changes(area, work))
        applied = apply(area.ranges, base, changes, allow_empty=True, keep_equal=False)
        before = fingerprint(shown_over(spool.again(), area.ranges.records(base)))
    after = fingerprint(area.ranges.records(applied.metarange_id))
    found = area.ranges.content_id(applied.metarange_id, TableKind.METARANGES)
    if found != applied.metarange_id:
        raise RewriteProofError(f"{work.repository}/{work.branch}", applied.metarange_id, found)
    if before != after:
        raise RewriteProofError(f"{work.repository}/{work.branch}", before, after)
    return Rewritten(applied, before, after)


def shown_over(changes: Iterable[RecordColumns], base: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
    """What a reader sees of changes over a base: not by the code that writes trees."""
    for batch in layered([changes, base]):
        yield rows_where(batch, ~tombstones(batch))
