"""Whether a merge could be undone: the old tokens put back in the place of the merged one. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.staging.lakefs.branch_rows import BranchRow, read_branch_row
from compaction.staging.lakefs.journal import MergeEntry, MergeState, entries
from compaction.staging.lakefs.repository import LiveRepository
from compaction.staging.lakefs.scanning import TokenScan, shown


@dataclass(frozen=True, slots=True)
class UndoCheck:
    """One merge of a branch whose old tokens are not dropped. `problems`: why they cannot be put back; none: they can,
    and the branch shows the same with them. `due`: seconds until the grace ends.
    """

    branch: str
    fresh: str
    tokens: tuple[str, ...]
    due: float
    problems: tuple[str, ...]

    @property
    def possible(self) -> bool:
        return not self.problems


def check_undo(live: LiveRepository, branch: str) -> list[UndoCheck]:
    """All merges of a branch that are not at their end; at most one of them can be undone at a time.

    Reads all their tokens. Raises DatabaseError, CorruptMessageError, CorruptRangeError, MissingRangeError, ObjectError
    and what `LiveRepository.check` raises.
    """
    live.check()
    raw = live.branch_bytes(branch)
    row = None if raw is None else read_branch_row(raw, name=branch, repository=live.name)
    checks = []
    for found in entries(live, branch):
        entry = found.entry
        if entry.state in (MergeState.SWAPPED, MergeState.DROPPING):
            due = entry.due / 1000 - live.clock()
            checks.append(UndoCheck(branch, entry.fresh, entry.old, due, tuple(_problems(live, entry, row))))
    return checks


def _problems(live: LiveRepository, entry: MergeEntry, row: BranchRow | None) -> list[str]:
    if entry.state == MergeState.DROPPING:
        return ["its old tokens are being dropped"]
    if row is None:
        return ["the branch does not exist"]
    if entry.fresh not in row.sealed:
        return ["the branch does not name the merged token: it was committed, reset or merged again"]
    problems = []
    if row.data.commit_id != entry.commit_id:
        problems.append(f"the branch is on commit {row.data.commit_id[:16]}, it was merged on {entry.commit_id[:16]}")
    scan = TokenScan(live, entry.old)
    tree = live.head(row)
    before = shown(live.ranges, tree, scan.merged())
    pairs = zip(entry.old, entry.fingerprints, scan.fingerprints, strict=True)
    changed = [token for token, then, now in pairs if then != now]
    if changed:
        problems.append(f"rows of {len(changed)} old tokens changed since the merge, of {changed[0]} for instance")
    after = shown(live.ranges, tree, TokenScan(live, [entry.fresh]).merged())
    if before != after:
        problems.append(f"the old tokens show {before}, the merged one shows {after}")
    return problems
