"""Defects of staging areas: commits, merges, resets."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_PAGE: Final = "design/staging-areas.md"
_FORMAT: Final = "design/staging.md"
_STAGING: Final = "stores/staging"
_COMMITTING: Final = (f"{_STAGING}/flows/test_committing.py",)
_MERGING: Final = (f"{_STAGING}/flows/test_merging.py",)
_RESETTING: Final = (f"{_STAGING}/flows/test_resetting.py",)

COMMIT_DEFECTS: Final = (
    Defect(
        name="commits: a commit starts from its parent instead of the compacted base",
        promise=f"{_PAGE}#commits",
        file="staging/flows/committing.py",
        old="        return apply(self._area.ranges, view.metarange_id, changes,",
        new="        return apply(self._area.ranges, view.head_id, changes,",
        killers=_COMMITTING,
    ),
    Defect(
        name="commits: a commit leaves the compacted base above its tree",
        promise=f"{_PAGE}#commits",
        file="staging/refs/branches.py",
        old='        return replace(self, commit_id=commit_id, sealed_tokens=(), compacted_base="")',
        new="        return replace(self, commit_id=commit_id, sealed_tokens=())",
        killers=_COMMITTING,
    ),
    Defect(
        name="commits: a tree with other cuts and the same content is a change",
        promise=f"{_PAGE}#commits",
        file="staging/flows/committing.py",
        old="        return metarange == other or next(diff(self._area.ranges, metarange, other), None) is None",
        new="        return metarange == other",
        killers=_COMMITTING,
    ),
    Defect(
        name="commits: the hooks are not asked",
        promise=f"{_PAGE}#commits",
        file="staging/flows/committing.py",
        old="            self.ask(Proposal(name, draft, result))\n",
        new="",
        killers=_COMMITTING,
    ),
    Defect(
        name="merges: one that is refused leaves a sealed token behind",
        promise=f"{_PAGE}#merges",
        file="staging/flows/committing.py",
        old="        if has_changes(self._area, self._area.branches.get(name)):\n",
        new="        if self._area is None:\n",
        killers=_MERGING,
    ),
    Defect(
        name="merges: a change that was sealed by the merge itself is lost",
        promise=f"{_PAGE}#merges",
        file="staging/flows/committing.py",
        old="            if has_changes(self._area, branch, sealed_only=True):\n",
        new="            if self._area is None:\n",
        killers=_MERGING,
    ),
    Defect(
        name="merges: keys that both sides changed are no conflict",
        promise=f"{_FORMAT}#merge",
        file="staging/tree/diffing.py",
        old="    conflicts = ~agree & ~source_kept & ~destination_kept",
        new="    conflicts = agree & ~source_kept & ~destination_kept",
        killers=(f"{_STAGING}/tree/test_merging.py",),
    ),
    Defect(
        name="merges: a range that only one side kept is taken from that side",
        promise=f"{_FORMAT}#merge",
        file="staging/tree/diffing.py",
        old="    if theirs == before:\n        return source\n",
        new="    if theirs == before:\n        return destination\n",
        killers=(f"{_STAGING}/tree/test_merging.py",),
    ),
    Defect(
        name="resets: a reset leaves the compacted base",
        promise=f"{_PAGE}#resets",
        file="staging/refs/branches.py",
        old='        return replace(self, staging_token=fresh, sealed_tokens=(), compacted_base="")',
        new="        return replace(self, staging_token=fresh, sealed_tokens=())",
        killers=_RESETTING,
    ),
    Defect(
        name="resets: what takes changes of a prefix back lies below them",
        promise=f"{_PAGE}#resets",
        file="staging/flows/writing.py",
        old="sealed_tokens=(token, *found.record.tokens)",
        new="sealed_tokens=(*found.record.tokens, token)",
        killers=_RESETTING,
    ),
)
