"""The journal of merges: which token was written for which, written down before each step.

A row changes only by compare and swap, so of two processes that decide about one merge the first wins. The swap of a
branch and the entry's step to `SWAPPED` are one transaction: the journal never has to guess whether a swap happened.
docs/design/staging.md#live-lakefs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import ClassVar, Final

from compaction.staging.errors import CorruptMessageError
from compaction.staging.format.messages import SIGNED, TEXT, TEXTS, StagingMessage, wire_at
from compaction.staging.kv.port import Expected, KeyValueStore, Presence
from compaction.staging.lakefs.repository import BranchRow, LiveRepository, branch_key

MERGE_PARTITION: Final = "compaction.dev/token-merge"
"""All rows of this package. No partition of lakeFS has a slash: a repository's and a token's begin with its name."""
_ENTRIES: Final = "journal/"


class MergeState(IntEnum):
    """The progress of a merge. Only one that is `WRITING` can be swapped in."""

    WRITING = 1  # the fresh token may have rows; no branch names it
    SWAPPED = 2  # the branch named it; the old tokens wait for the end of the grace
    DISCARDED = 3  # no branch ever names the fresh token
    DROPPING = 4  # rows of the old tokens are being deleted


@dataclass(frozen=True)
class MergeEntry(StagingMessage):
    """One merge. `fresh`: the token that holds the result; `old`: those that it replaces, the newest first.

    since, due: milliseconds since 1970: when it reached its state, and from when tokens may be dropped.
    holder: who merges. fingerprints: of the rows of each old token, as they were when it was swapped.
    view: what old tokens and fresh token show.
    """

    NAME: ClassVar[str] = "MergeEntry"
    fresh: str = field(default="", metadata=wire_at(1, TEXT))
    partition: str = field(default="", metadata=wire_at(2, TEXT))
    branch: str = field(default="", metadata=wire_at(3, TEXT))
    commit_id: str = field(default="", metadata=wire_at(4, TEXT))
    old: tuple[str, ...] = field(default=(), metadata=wire_at(5, TEXTS))
    state: int = field(default=MergeState.WRITING, metadata=wire_at(6, SIGNED))
    since: int = field(default=0, metadata=wire_at(7, SIGNED))
    due: int = field(default=0, metadata=wire_at(8, SIGNED))
    holder: str = field(default="", metadata=wire_at(9, TEXT))
    fingerprints: tuple[str, ...] = field(default=(), metadata=wire_at(10, TEXTS))
    view: str = field(default="", metadata=wire_at(11, TEXT))

    @property
    def key(self) -> bytes:
        return f"{_ENTRIES}{self.partition}/{self.branch}/{self.fresh}".encode()


@dataclass(frozen=True, slots=True)
class MergeJournalRow:
    """An entry as it was read, with the exact bytes of its row."""

    entry: MergeEntry
    raw: bytes


def begin(live: LiveRepository, entry: MergeEntry) -> MergeJournalRow:
    """Write an entry before the first row of its fresh token."""
    raw = entry.encode()
    live.kv.set_if(MERGE_PARTITION, entry.key, raw, Presence.ABSENT)
    return MergeJournalRow(entry, raw)


def moved(live: LiveRepository, row: MergeJournalRow, state: MergeState, *, wait: float = 0.0) -> MergeJournalRow:
    """The next step of a merge; its tokens are due in `wait` seconds. PredicateFailedError: another process decided."""
    entry = _stepped(live, row.entry, state, wait)
    raw = entry.encode()
    live.kv.set_if(MERGE_PARTITION, entry.key, raw, row.raw)
    return MergeJournalRow(entry, raw)


def swap(
    live: LiveRepository,
    row: MergeJournalRow,
    branch: BranchRow,
    *,
    fingerprints: tuple[str, ...],
    view: str,
    grace: float,
    also: Sequence[tuple[str, bytes, bytes, Expected]] = (),
) -> MergeJournalRow:
    """Swap the fresh token in for the old ones of the branch as it was read, and write that down: both, or none.
    `also`: rows (partition, key, value, expected) that change with it.

    Raises PredicateFailedError: the branch was changed, or another process discarded the merge.
    """
    entry = replace(_stepped(live, row.entry, MergeState.SWAPPED, grace), fingerprints=fingerprints, view=view)
    raw = entry.encode()
    # The branch last: servers wait for its lock from here to the end of the transaction.
    live.kv.set_all_if(
        [
            (MERGE_PARTITION, entry.key, raw, row.raw),
            *also,
            (live.partition, branch_key(branch.name), branch.with_merged(entry.old, entry.fresh), branch.raw),
        ]
    )
    return MergeJournalRow(entry, raw)


def entries(live: LiveRepository, branch: str = "") -> Iterator[MergeJournalRow]:
    """The merges of a repository or of one of its branches that are not at their end."""
    for name, raw in _rows(live.kv, f"{_ENTRIES}{live.partition}/" + (f"{branch}/" if branch else "")):
        yield MergeJournalRow(MergeEntry.decode(raw, name=name), raw)


def readable_entries(kv: KeyValueStore) -> Iterator[MergeJournalRow]:
    """Those of all repositories of the store, deleted ones too. One that cannot be read is left to its own repository,
    which names it.
    """
    for name, raw in _rows(kv, _ENTRIES):
        with suppress(CorruptMessageError):
            yield MergeJournalRow(MergeEntry.decode(raw, name=name), raw)


def _rows(kv: KeyValueStore, prefix: str) -> Iterator[tuple[str, bytes]]:
    start = prefix.encode()
    for page in kv.scan(MERGE_PARTITION, start, start[:-1] + b"0"):
        for key, raw in page:
            yield f"merge {key.decode(errors='replace')}", raw


def read_entry(live: LiveRepository, entry: MergeEntry) -> MergeJournalRow | None:
    """The entry as it is now; None when the merge is at its end."""
    raw = live.kv.get(MERGE_PARTITION, entry.key)
    return None if raw is None else MergeJournalRow(MergeEntry.decode(raw, name=f"merge {entry.fresh}"), raw)


def forget(live: LiveRepository, entry: MergeEntry) -> None:
    """The end of a merge."""
    live.kv.delete(MERGE_PARTITION, entry.key)


def _stepped(live: LiveRepository, entry: MergeEntry, state: MergeState, wait: float) -> MergeEntry:
    now = int(live.clock() * 1000)
    return replace(entry, state=int(state), since=now, due=now + int(wait * 1000))
