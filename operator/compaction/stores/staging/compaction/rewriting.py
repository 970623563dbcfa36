"""The rewrite of a branch in one process, and its proof (docs/design/staging-areas.md#proof).

The Spark job writes the same ranges, a stretch at a time in several tasks; both prove them in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compaction.exceptions import RewriteProofError
from compaction.stores.staging.compaction.work import BranchWork
from compaction.stores.staging.flows.area import Area
from compaction.stores.staging.flows.views import View, effective
from compaction.stores.staging.format.columns import RecordColumns
from compaction.stores.staging.format.ranges import TableKind
from compaction.stores.staging.staged.layers import layered
from compaction.stores.staging.tree.applying import Applied, apply
from compaction.stores.staging.tree.fingerprint import ContentFingerprint


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
    view = base_view(area, work)
    applied = apply(area.ranges, view.metarange_id, staged_changes(area, work), allow_empty=True, keep_equal=False)
    return prove(area, work, applied)


def prove(area: Area, work: BranchWork, applied: Applied) -> Rewritten:
    """Read back what was written, and compare with what the tokens show over the base. Raises RewriteProofError."""
    before, after = ContentFingerprint(), ContentFingerprint()
    for batch in effective(area, base_view(area, work)):
        before.add(batch)
    for batch in area.ranges.records(applied.metarange_id):
        after.add(batch)
    found = area.ranges.content_id(applied.metarange_id, TableKind.METARANGES)
    if found != applied.metarange_id:
        raise RewriteProofError(f"{work.repository}/{work.branch}", applied.metarange_id, found)
    if before.text() != after.text():
        raise RewriteProofError(f"{work.repository}/{work.branch}", before.text(), after.text())
    return Rewritten(applied, before.text(), after.text())
