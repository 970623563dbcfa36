"""The ends of merges: discarded results, old tokens after the grace, leftovers of a crash before and after a sweep, and
whether one can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from compaction.staging.errors import PredicateFailedError
from compaction.staging.lakefs.control import DROPS_PER_SECOND, forget_partition, holder_of, stopped_because
from compaction.staging.lakefs.journal import (
    MERGE_PARTITION,
    MergeEntry,
    MergeJournalRow,
    MergeState,
    entries,
    forget,
    moved,
    read_entry,
    readable_entries,
)
from compaction.staging.lakefs.planning import TokenScan, shown
from compaction.staging.lakefs.repository import BranchRow, LiveRepository, is_deleted, read_branch_row
from compaction.staging.staged.rows import StagedTokens

if TYPE_CHECKING:
    from compaction.staging.kv.sql import SqlKeyValueStore

# The ends of merges: discarded results, old tokens after the grace, and what a crash left behind.
#
# A token is dropped only after its entry says so, and after no branch was found to name it: an entry that is wrong
# costs rows that stay, never rows that are in use. docs/design/staging.md#live-lakefs.

LATE: Final = 3600.0
"""Seconds after which a discarded token is dropped once more: the merger that was taken for dead may still write."""


@dataclass(frozen=True, slots=True)
class RecoveredMerge:
    """Merges whose result was discarded, those that another merger works on, and those that wait for their grace."""

    discarded: int = 0
    running: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """Tokens and rows that were deleted; tokens that a branch names still, which stay; and the seconds until the next
    token is due (None: none waits).
    """

    tokens: int
    rows: int
    in_use: tuple[str, ...]
    next_in: float | None


def discard(live: LiveRepository, row: MergeJournalRow, *, late: float = 0.0) -> bool:
    """Delete the result of a merge that was not swapped in; False when it was.

    `late`: seconds for which the entry stays, because its merger may not know that it has lost. Raises DatabaseError:
    `recover` does the rest.
    """
    if row.entry.state == MergeState.WRITING:
        try:
            moved(live, row, MergeState.DISCARDED, wait=late)
        except PredicateFailedError:
            # Another process moved the entry: its rows may go only if it was not swapped in.
            found = read_entry(live, row.entry)
            if found is not None and found.entry.state != MergeState.DISCARDED:
                return False
    # No merger swaps it in from here on: the swap and the step of the entry are one transaction.
    if row.entry.fresh in live.used_tokens():
        return False
    drop_slowly(live, row.entry.fresh)
    if not late:
        forget(live, row.entry)
    return True


def recover(live: LiveRepository, *, branch: str = "", late: float = LATE) -> RecoveredMerge:
    """Discard what merges that ended in the middle have written; to be called at start, and safe at any time.

    A merge whose merger holds the lease of its branch is left alone. So is one that was swapped in: `drop_due` ends it.
    Of a branch that was deleted or created again nothing is dropped but what the merge itself wrote.
    """
    live.check()
    discarded = running = waiting = 0
    for row in list(entries(live, branch)):
        if row.entry.state in (MergeState.SWAPPED, MergeState.DROPPING):
            waiting += 1
        elif row.entry.state == MergeState.WRITING and holder_of(live, row.entry.branch) == row.entry.holder:
            running += 1
        else:
            # One that was discarded before stays for a while, and is dropped once more: it is not counted again.
            discarded += discard(live, row, late=late) and row.entry.state == MergeState.WRITING
    return RecoveredMerge(discarded, running, waiting)


def drop_due(live: LiveRepository) -> Dropped:
    """Drop the old tokens of merges whose grace has ended, and discarded tokens that are left.

    A token that a branch names is never dropped, nor is one whose grace is over for this merge and not for another:
    tokens that were put back and merged again have the longer grace of both. Nothing is dropped while the kill switch
    is on.
    """
    live.check()
    tokens = rows = 0
    in_use: list[str] = []
    waits: list[float] = []
    every = [] if stopped_because(live.kv) else list(entries(live))
    for row in every:
        # Such a merge runs, or has died: `recover` decides which.
        if row.entry.state == MergeState.WRITING:
            continue
        if not _is_due(live, row.entry):
            waits.append(row.entry.due / 1000 - live.clock())
            continue
        kept = {
            token
            for item in every
            if item.entry.fresh != row.entry.fresh and not _is_due(live, item.entry)
            for token in (item.entry.fresh, *item.entry.old)
        }
        used = _used(live, row)
        if used:
            in_use += used
            continue
        dropped = _drop(live, row, keep=kept)
        tokens += dropped[0]
        rows += dropped[1]
    return Dropped(tokens, rows, tuple(in_use), min(waits, default=None))


def drop_deleted(
    kv: SqlKeyValueStore, *, clock: Callable[[], float], sleep: Callable[[float], None]
) -> tuple[int, int]:
    """Drop the tokens of merges of repositories that have been deleted, once their grace is over, and what was written
    down about them: no repository is left that would. Returns how many tokens and rows.

    A partition that a repository has, or in which a branch is left, is not touched: lakeFS deletes a repository's rows
    one after the other, its own record last.
    """
    if stopped_because(kv):
        return 0, 0
    tokens = rows = 0
    gone: dict[str, bool] = {}
    for row in list(readable_entries(kv)):
        entry = row.entry
        if entry.partition not in gone:
            gone[entry.partition] = is_deleted(kv, entry.partition)
        if not gone[entry.partition] or entry.due / 1000 > clock():
            continue
        for token in (entry.fresh, *entry.old):
            count = StagedTokens(kv).drop(token, pause=lambda rows: sleep(rows / DROPS_PER_SECOND))
            tokens += bool(count)
            rows += count
        kv.delete(MERGE_PARTITION, entry.key)
    for partition in (name for name, deleted in gone.items() if deleted):
        if not any(row.entry.partition == partition for row in readable_entries(kv)):
            forget_partition(kv, partition)
    return tokens, rows


def next_drop(live: LiveRepository) -> float | None:
    """Seconds until tokens of a merge are due, negative when they have been for so long; None: none waits, or nothing
    may be dropped. Raises CorruptMessageError, DatabaseError.
    """
    if stopped_because(live.kv):
        return None
    ended = (row.entry for row in entries(live) if row.entry.state != MergeState.WRITING)
    return min((entry.due / 1000 - live.clock() for entry in ended), default=None)


def drop_slowly(live: LiveRepository, token: str) -> int:
    """Delete the rows of a token at DROPS_PER_SECOND, and return how many; may be interrupted and repeated."""
    return live.tokens.drop(token, pause=lambda rows: live.sleep(rows / DROPS_PER_SECOND))


def _is_due(live: LiveRepository, entry: MergeEntry) -> bool:
    """Return whether the tokens of a merge may go. A merge that has begun to drop them goes on."""
    if entry.state == MergeState.WRITING:
        return False
    return entry.state == MergeState.DROPPING or entry.due / 1000 <= live.clock()


def _used(live: LiveRepository, row: MergeJournalRow) -> list[str]:
    """Tokens of the entry that must not go, because a branch names them."""
    entry = row.entry
    wanted = [entry.fresh] if entry.state == MergeState.DISCARDED else entry.old
    used = live.used_tokens()
    return [token for token in wanted if token in used]


def _drop(live: LiveRepository, row: MergeJournalRow, *, keep: set[str]) -> tuple[int, int]:
    """Drop the tokens of an entry, then the entry. `keep`: tokens that stay for another merge, which drops them at the
    end of its own grace.
    """
    if row.entry.state == MergeState.DISCARDED:
        count = drop_slowly(live, row.entry.fresh)
        forget(live, row.entry)
        return (1 if count else 0), count
    if row.entry.state == MergeState.SWAPPED:
        try:
            row = moved(live, row, MergeState.DROPPING)
        except PredicateFailedError:
            return 0, 0  # another process decided
        if _used(live, row):
            return 0, 0
    tokens = [token for token in row.entry.old if token not in keep]
    # A server that deletes a branch drops the tokens that it had read; when that was before the swap, not this one.
    if row.entry.fresh not in keep and row.entry.fresh not in live.used_tokens():
        tokens.append(row.entry.fresh)
    rows = sum(drop_slowly(live, token) for token in tokens)
    forget(live, row.entry)
    return len(set(row.entry.old) - keep), rows


# The leftovers of merges, as a sweep finds them: what it would end and drop. Nothing here writes.


@dataclass(frozen=True, slots=True)
class MergeLeftover:
    """A merge that is not at its end. `tokens`: those with rows that a sweep would drop now. `due`: seconds until the
    grace ends; None: no grace runs. `why_not`: why it would not end; empty: it would.
    """

    branch: str
    fresh: str
    state: int
    tokens: tuple[str, ...]
    due: float | None
    why_not: str


def left_over(live: LiveRepository) -> list[MergeLeftover]:
    """The merges that are not at their end, and the tokens that `recover` and then `drop_due` would drop now.

    Raises DatabaseError, CorruptMessageError and what `LiveRepository.check` raises.
    """
    live.check()
    every = [row.entry for row in entries(live)]
    stopped, used = stopped_because(live.kv), live.used_tokens()
    found = []
    for entry in every:
        why_not = _why_it_stays(live, entry, stopped, used)
        tokens = () if why_not else _dropped_with(live, entry, every, used)
        if entry.state == MergeState.DISCARDED and not (why_not or tokens or _is_due(live, entry)):
            why_not = "its result is discarded; late writes of its merger are waited for"
        due = None if entry.state == MergeState.WRITING else entry.due / 1000 - live.clock()
        found.append(MergeLeftover(entry.branch, entry.fresh, entry.state, tokens, due, why_not))
    return found


def due_of_deleted(kv: SqlKeyValueStore, *, clock: Callable[[], float]) -> list[str]:
    """The tokens with rows that `drop_deleted` would drop now."""
    if stopped_because(kv):
        return []
    every = [row.entry for row in readable_entries(kv)]
    gone = {name for name in {entry.partition for entry in every} if is_deleted(kv, name)}
    due = [entry for entry in every if entry.partition in gone and entry.due / 1000 <= clock()]
    tokens = dict.fromkeys(token for entry in due for token in (entry.fresh, *entry.old))
    return [token for token in tokens if StagedTokens(kv).has_rows(token)]


def _why_it_stays(live: LiveRepository, entry: MergeEntry, stopped: str, used: set[str]) -> str:
    if entry.state == MergeState.WRITING and holder_of(live, entry.branch) == entry.holder:
        return "its merger works on it"
    swapped = entry.state in (MergeState.SWAPPED, MergeState.DROPPING)
    if swapped and stopped:
        return f"merging is stopped ({stopped})"
    if swapped and not _is_due(live, entry):
        return "its grace is not over"
    named = used.intersection(entry.old if swapped else (entry.fresh,))
    return f"branches name {len(named)} of its tokens" if named else ""


def _dropped_with(
    live: LiveRepository, entry: MergeEntry, every: Sequence[MergeEntry], used: set[str]
) -> tuple[str, ...]:
    """The tokens with rows that go with an entry: not those that another merge keeps, or a branch names."""
    tokens: tuple[str, ...] = (entry.fresh,)
    if entry.state in (MergeState.SWAPPED, MergeState.DROPPING):
        others = [item for item in every if item.fresh != entry.fresh and not _is_due(live, item)]
        kept = used.union(*((item.fresh, *item.old) for item in others))
        tokens = tuple(token for token in (*entry.old, entry.fresh) if token not in kept)
    return tuple(token for token in tokens if live.tokens.has_rows(token))


# The check whether a merge could be undone: the old tokens put back in the place of the merged one. Nothing here
# writes.


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
