"""Drops tokens that no branch has any more, after the grace (docs/design/staging-areas.md#sweep)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from compaction.staging.errors import PredicateFailedError
from compaction.staging.flows.area import Area
from compaction.staging.flows.journal import DROPPING, JournalledToken
from compaction.staging.refs.names import JOURNAL_PARTITION

_LATEST: Final = 1e9
"""Seconds: a token whose deletion was interrupted has been late for longer than anything is measured."""


@dataclass(frozen=True, slots=True)
class SweptTokens:
    """How many tokens and rows were deleted, and the seconds until the next token is due (None: none waits)."""

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
