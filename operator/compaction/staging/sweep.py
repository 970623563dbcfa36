"""The sweep of a staging area: ranges, metaranges and tokens that nothing leads to, deleted after the grace."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import Final

from compaction.staging.errors import (
    CorruptRangeError,
    MissingRangeError,
    PredicateFailedError,
    RowMissingError,
    UnknownRefError,
    UnsupportedRangeError,
)
from compaction.staging.flows.area import Area, mark, marked_objects, pinned, unmark
from compaction.staging.flows.branching import DROPPING, JournalledToken, journalled, sweep_receipts
from compaction.staging.refs.names import JOURNAL_PARTITION

# Deletes ranges and metaranges that no commit and no branch leads to, after the grace.
#
# docs/design/staging-areas.md#sweep.

BATCH: Final = 500
CLOCKS_DIFFER: Final = 300.0
"""Seconds: the object storage says how old an object is, and the coordinator when a claim began."""


@dataclass(frozen=True, slots=True)
class SweptObjects:
    """The number of objects and bytes that were deleted; `unreached`: the number of those that no tree has and that
    wait for the grace.
    """

    objects: int
    bytes: int
    unreached: int


def sweep_objects(area: Area, *, grace: float) -> SweptObjects:
    """Delete objects that no tree of the repository has and that were written more than `grace` seconds ago.

    Trees are those of all commits, also of such that no branch leads to, and the compacted bases; one that a branch has
    lost counts as long as the tokens over it, which wait for a grace of their own. Objects are listed before the trees
    are read: what is written later is in no list. A tree that cannot be read stops the sweep, because
    it is not known what it has: nothing is deleted then. What the attempts of a standing claim have written is kept,
    however long they take. Receipts that no branch needs are deleted, too.

    Raises RowMissingError, CorruptRangeError, MissingRangeError, CorruptMessageError, ObjectError, DatabaseError.
    """
    found = {item.path: item for item in area.ranges.stored()}
    claimed = claimed_since(area)  # before the bases are read: a swap in between makes a base of what it has
    reached = reachable(area)
    now = area.clock()
    unreached = [item for item in found.values() if item.path not in reached]
    due = [item.path for item in unreached if age_of(item.modified, now) > grace and epoch_of(item.modified) < claimed]
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
    # Of a sweep that was killed: what they stand for is deleted, or was not.
    if left := marked_objects(area.kv, area.repository.partition):
        unmark(area.kv, area.repository.partition, sorted(left))
    sweep_receipts(area)
    return SweptObjects(objects, size, len(unreached) - objects)


def reachable(area: Area) -> frozenset[str]:
    """The ids of all objects that a commit or a compacted base of the repository has, or had until a while ago.

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
    return frozenset(_with_ranges(area, trees - {""})) | _left_behind(area)


def _left_behind(area: Area) -> set[str]:
    """The objects of bases that branches have lost, for as long as the tokens over them stay. Read after the branches:
    a swap writes its journal first.
    """
    found = set[str]()
    for tree in {row.entry.base for row in journal_rows(area)} - {""}:
        with suppress(CorruptRangeError, MissingRangeError, UnsupportedRangeError):  # nobody reads what it names either
            found.update(_with_ranges(area, [tree]))
    return found


def claimed_since(area: Area) -> float:
    """The moment, in seconds since 1970, from which on objects may be those of an attempt whose claim stands.

    A branch without sealed tokens was committed or reset since: its claim commits nothing any more.
    """
    records = [branch.record for branch in area.branches.every()]
    started = [record.compaction_started / 1000 for record in records if record.claim_job and record.sealed_tokens]
    return min(started, default=inf) - CLOCKS_DIFFER


def _with_ranges(area: Area, trees: Iterable[str]) -> Iterable[str]:
    for tree in trees:
        yield tree
        for item in area.ranges.ranges(tree):
            yield item.id


def _still_old(area: Area, name: str, grace: float) -> bool:
    """Return whether no writer has written the object since: its mark is there, so a writer that comes now waits."""
    modified = area.ranges.modified(name)
    return modified is not None and age_of(modified, area.clock()) > grace


def age_of(modified: datetime, now: float) -> float:
    """Seconds since an object was written. `now`: seconds since 1970."""
    return now - epoch_of(modified)


def epoch_of(modified: datetime) -> float:
    """Seconds since 1970."""
    return modified.astimezone(UTC).timestamp()


# Drops tokens that no branch has any more, after the grace (docs/design/staging-areas.md#sweep).

_LATEST: Final = 1e9
"""Seconds: a token whose deletion was interrupted has been late for longer than anything is measured."""


@dataclass(frozen=True, slots=True)
class SweptTokens:
    """The number of tokens and rows that were deleted, and the seconds until the next token is due (None: none is)."""

    tokens: int
    rows: int
    next_in: float | None


def sweep_tokens(area: Area, *, grace: float) -> SweptTokens:
    """Delete the rows of tokens that no branch of the repository has had for `grace` seconds.

    The journal is read first, then the branches: a token that a branch gets later is a new one, which is in no journal,
    but for that of a reset below a prefix, which reads its journal row after its swap.

    Raises DatabaseError, CorruptMessageError.
    """
    now = int(area.clock() * 1000)
    rows = journal_rows(area)
    used = {token for branch in area.branches.every() for token in branch.record.tokens}
    note_unused(area, rows, used)
    tokens = deleted = 0
    waits = []
    for row in rows:
        if row.entry.token in used:
            continue
        waited = row.waited(now)
        if waited is None or waited < grace:
            waits.append(grace - (waited or 0.0))
            continue
        count = _drop(area, row)
        if count is not None:
            tokens += 1
            deleted += count
    return SweptTokens(tokens, deleted, min(waits, default=None))


@dataclass(slots=True)
class JournalRow:
    """A row of the journal: its key, its bytes as they were read, and what they say."""

    key: bytes
    row: bytes
    entry: JournalledToken

    def waited(self, now: int) -> float | None:
        """Seconds since a sweep or a scan saw that no branch has the token; None: not yet. `now` in milliseconds."""
        match self.entry.unused_since:
            case 0:
                return None
            case since if since == DROPPING:
                return float("inf")
            case since:
                return (now - since) / 1000


def journal_rows(area: Area) -> list[JournalRow]:
    """The tokens of the repository that a branch has lost, or was about to lose."""
    found = []
    for page in area.kv.scan(JOURNAL_PARTITION):
        for key, row in page:
            entry = JournalledToken.decode(row, name=f"journal of token {key.decode(errors='replace')}")
            if entry.repository == area.repository.name:
                found.append(JournalRow(key, row, entry))
    return found


def note_unused(area: Area, rows: Iterable[JournalRow], used: Collection[str]) -> None:
    """Write down of tokens that no branch has that this was seen now; the grace runs from there. `used`: the tokens of
    branches that were read after the rows.
    """
    now = int(area.clock() * 1000)
    for row in rows:
        if row.entry.token in used:
            _note(area, row, 0)
        elif row.entry.unused_since == 0:
            _note(area, row, now)


def next_due(area: Area, rows: Iterable[JournalRow], used: Collection[str], *, grace: float) -> float | None:
    """Seconds until the first token that no branch has is to be deleted (negative: for how long it has been late);
    None: none waits.
    """
    now = int(area.clock() * 1000)
    waits = [grace - (row.waited(now) or 0.0) for row in rows if row.entry.token not in used]
    return max(min(waits), -_LATEST) if waits else None


def _note(area: Area, row: JournalRow, since: int) -> bool:
    """Write down since when a token is unused. False: its row was changed meanwhile, and the next sweep decides."""
    if row.entry.unused_since == since:
        return True
    entry = replace(row.entry, unused_since=since)
    try:
        area.kv.set_if(JOURNAL_PARTITION, row.key, entry.encode(), row.row)
    except PredicateFailedError:
        return False
    row.row, row.entry = entry.encode(), entry
    return True


def _drop(area: Area, row: JournalRow) -> int | None:
    """Delete the rows of a token, and its journal row last. None when a branch has it, or its row was changed."""
    if not _note(area, row, DROPPING):
        return None
    token = row.entry.token
    if any(token in branch.record.tokens for branch in area.branches.every()):
        _note(area, row, 0)
        return None
    count = area.tokens.drop(token)
    area.counters.forget(token)
    area.kv.delete(JOURNAL_PARTITION, row.key)
    return count


# The preview of a sweep: what it would delete, without changing anything (docs/design/staging-areas.md#sweep).


@dataclass(frozen=True, slots=True)
class UnusedToken:
    """A token that no branch has. `seconds`: since a sweep has seen that first, None: none has yet."""

    token: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class UnreachedObject:
    """An object that no tree has. `seconds`: since it was written. `claimed`: an attempt whose claim stands may have
    written it, so it stays.
    """

    id: str
    bytes: int
    seconds: float
    claimed: bool


def unused_tokens(area: Area) -> list[UnusedToken]:
    """Tokens of the journal that no branch has; each is dropped when the grace has passed since a sweep saw it."""
    entries = [item for item in journalled(area.kv) if item.repository == area.repository.name]
    used = {token for branch in area.branches.every() for token in branch.record.tokens}
    now = area.clock()
    return [
        UnusedToken(entry.token, None if entry.unused_since == 0 else max(0.0, now - max(0, entry.unused_since) / 1000))
        for entry in entries
        if entry.token not in used
    ]


def unreached_objects(area: Area) -> list[UnreachedObject]:
    """Objects that no tree has, the oldest first. Raises as `sweep_objects`: a tree that cannot be read stops it."""
    found = list(area.ranges.stored())
    claimed = claimed_since(area)
    reached, now = reachable(area), area.clock()
    rows = [
        UnreachedObject(item.path, item.size, age_of(item.modified, now), epoch_of(item.modified) >= claimed)
        for item in found
        if item.path not in reached
    ]
    return sorted(rows, key=lambda row: (-row.seconds, row.id))
