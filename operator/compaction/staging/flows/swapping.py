"""Changes of a branch's record: journal, swap, and the tries it takes (docs/design/staging-areas.md#swaps).

Tokens that a swap takes off a branch are journalled before it: a crash in between leaves tokens that are in use and in
the journal, never some that nothing knows. The sweep drops those that no branch uses, after the grace.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final

from compaction.staging.errors import PredicateFailedError, TooManyTriesError
from compaction.staging.flows.area import Area
from compaction.staging.flows.journal import journal
from compaction.staging.flows.marks import marked_objects, names_any
from compaction.staging.flows.views import is_clean, view_of
from compaction.staging.refs.branches import Branch
from compaction.staging.refs.records import BranchRecord
from compaction.staging.staged.tokens import new_token

SWAP_TRIES: Final = 10
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 5.0


def swapped(
    area: Area,
    name: str,
    doing: str,
    change: Callable[[Branch], BranchRecord | None],
    *,
    tries: int = SWAP_TRIES,
    before_swap: Callable[[], None] | None = None,
) -> Branch:
    """Swap the record of a branch for what `change` makes of it; all of `change` again when another came first, or
    when the sweep is about to delete a part of the tree that the record would name.

    None: nothing has to be changed. Tokens that the new record has no more are journalled. `before_swap`: called when
    no object of the new tree is marked; what it sees then, a later sweep sees, too.

    Raises:
        UnknownRefError, TooManyTriesError, and what `change` raises
    """
    for attempt in range(tries):
        branch = area.branches.get(name)
        record = change(branch)
        if record is None:
            return branch
        journal(area, _gone(branch.record, record))
        if not _swept(area, branch.record, record):
            if before_swap is not None:
                before_swap()
            try:
                return area.branches.swap(branch, record)
            except PredicateFailedError:
                pass
        area.sleep(random.uniform(0.5, 1.0) * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt))
    raise TooManyTriesError(name, doing, tries)


def seal(area: Area, name: str) -> Branch:
    """Seal the staging token, so that what was written before is in tokens that no writer is acknowledged in. An empty
    one stays: a commit that is refused again and again leaves no tokens behind.
    """

    def sealed(branch: Branch) -> BranchRecord | None:
        if not area.tokens.has_rows(branch.record.staging_token):
            return None
        return branch.record.sealed(fresh_token(area, branch))

    return swapped(area, name, "seal its changes", sealed)


def has_changes(area: Area, branch: Branch, *, sealed_only: bool = False) -> bool:
    """Whether a branch shows anything that its commit does not."""
    return not is_clean(area, view_of(area, branch, sealed_only=sealed_only))


def fresh_token(area: Area, branch: Branch) -> str:
    """A new staging token of a branch."""
    return new_token(area.repository.name, branch.name)


def _swept(area: Area, before: BranchRecord, after: BranchRecord) -> bool:
    """Whether an object of a tree that the branch gets is marked by the sweep, which then may delete what was just
    written under the same id. One that is written after the mark is new for the sweep, and stays.
    """
    trees = [after.compacted_base] if after.compacted_base != before.compacted_base else []
    if after.commit_id != before.commit_id:
        trees.append(area.commits.get(after.commit_id).meta_range_id)
    marked = marked_objects(area.kv, area.repository.partition) if any(trees) else frozenset()
    return bool(marked) and any(tree and names_any(area.ranges, tree, marked) for tree in trees)


def _gone(before: BranchRecord, after: BranchRecord) -> Iterable[str]:
    kept = set(after.tokens)
    return [token for token in before.tokens if token not in kept]
