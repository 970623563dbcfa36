"""Drops tokens that no branch has any more, after the grace (docs/design/staging-areas.md#sweep)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from compaction.exceptions import PredicateFailedError
from compaction.stores.staging.flows.area import Area
from compaction.stores.staging.flows.journal import DROPPING, JournalledToken
from compaction.stores.staging.refs.names import JOURNAL_PARTITION


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
    rows = _rows(area)
    used = {token for branch in area.branches.every() for token in branch.record.tokens}
    tokens = deleted = 0
    waits = []
    for key, row, entry in rows:
        if entry.token in used:
            _note(area, key, row, entry, 0)
            continue
        if entry.unused_since == 0:
            _note(area, key, row, entry, now)
            waits.append(grace)
            continue
        waited = (now - entry.unused_since) / 1000
        if entry.unused_since != DROPPING and waited < grace:
            waits.append(grace - waited)
            continue
        count = _drop(area, key, row, entry)
        if count is not None:
            tokens += 1
            deleted += count
    return SweptTokens(tokens, deleted, min(waits, default=None))


def next_due(area: Area, used: Collection[str], *, grace: float) -> float | None:
    """Seconds until a sweep has something to do (negative: for how long it has been late), None: nothing waits.

    `used`: the tokens that branches have. A token that no sweep has noted yet is due now. Raises as `sweep_tokens`.
    """
    now = int(area.clock() * 1000)
    entries = [entry for _, _, entry in _rows(area) if entry.token not in used]
    waits = [0.0 if one.unused_since <= 0 else grace - (now - one.unused_since) / 1000 for one in entries]
    return min(waits, default=None)


def _rows(area: Area) -> list[tuple[bytes, bytes, JournalledToken]]:
    found = []
    for page in area.kv.scan(JOURNAL_PARTITION):
        for key, row in page:
            entry = JournalledToken.decode(row, name=f"journal of token {key.decode(errors='replace')}")
            if entry.repository == area.repository.name:
                found.append((key, row, entry))
    return found


def _note(area: Area, key: bytes, row: bytes, entry: JournalledToken, since: int) -> bytes | None:
    """Write down since when a token is unused. None: its row was changed meanwhile, and the next sweep decides."""
    if entry.unused_since == since:
        return row
    noted = replace(entry, unused_since=since).encode()
    try:
        area.kv.set_if(JOURNAL_PARTITION, key, noted, row)
    except PredicateFailedError:
        return None
    return noted


def _drop(area: Area, key: bytes, row: bytes, entry: JournalledToken) -> int | None:
    """Delete the rows of a token, and its journal row last. None when a branch has it, or its row was changed."""
    noted = _note(area, key, row, entry, DROPPING)
    if noted is None:
        return None
    if any(entry.token in branch.record.tokens for branch in area.branches.every()):
        _note(area, key, noted, replace(entry, unused_since=DROPPING), 0)
        return None
    count = area.tokens.drop(entry.token)
    area.counters.forget(entry.token)
    area.kv.delete(JOURNAL_PARTITION, key)
    return count
