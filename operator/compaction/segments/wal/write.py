"""What logs hand to the write-ahead log, and what it hands on: plain data, and the log as both of them see it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

from compaction.segments.errors import SegmentLogError
from compaction.segments.memtable.seq import Seq
from compaction.segments.memtable.table import LogEntry, MemTable
from compaction.segments.system.row import LogRow
from compaction.segments.wal.files import WalEnd


class Written(NamedTuple):
    """All entries of a table up to `index` are synced, or lie below the smallest live index."""

    table: MemTable
    index: int  # type: ignore[assignment]  # hides tuple.index, which no caller needs


class WalClient(Protocol):
    """A log as the write-ahead log and the segment writer see it. Every method may be called from their threads."""

    @property
    def uid(self) -> bytes:
        """The log's id in records: the name of its directory."""

    @property
    def directory(self) -> Path:
        """Where its segments are."""

    @property
    def row(self) -> LogRow:
        """What is known of its snapshot now."""

    def written(self, marks: Sequence[Written]) -> None:
        """A batch is durable; marks in the order of the writes."""

    def resend(self, after: int) -> None:
        """A write is missing: send every entry above index `after` again."""

    def failed(self, error: SegmentLogError) -> None:
        """Nothing more is written; called once."""

    def flushed(self, pieces: Sequence[tuple[MemTable, Seq]], number: int) -> None:
        """What the log needs of these entries, of write-ahead log file `number`, is in its segments, durably."""


class WalWrite(NamedTuple):
    """Entries of one log with consecutive indexes, all held by one mem table.

    `previous`: the index before the first one in the log; None when the log holds none.
    """

    client: WalClient
    table: MemTable
    previous: int | None
    entries: Sequence[LogEntry]
    size: int


def joined(writes: Iterable[WalWrite]) -> list[WalWrite]:
    """The same entries in fewer writes: of each log, in order, those that go on exactly where the one before ends.

    So what the write-ahead log decides and notes for each write it does once, however small the appends were. The order
    of writes of different logs changes, which means nothing.
    """
    groups: list[list[WalWrite]] = []
    growing: dict[WalClient, list[WalWrite]] = {}
    for write in writes:
        group = growing.get(write.client)
        if group is not None and _goes_on(group[-1], write):
            group.append(write)
        else:
            growing[write.client] = group = [write]
            groups.append(group)
    return [group[0] if len(group) == 1 else _one(group) for group in groups]


def _goes_on(before: WalWrite, write: WalWrite) -> bool:
    last = before.entries[-1].index
    return write.previous == last and write.table is before.table and write.entries[0].index == last + 1


def _one(group: list[WalWrite]) -> WalWrite:
    entries = list(chain.from_iterable([write.entries for write in group]))
    return group[0]._replace(entries=entries, size=sum([write.size for write in group]))


@dataclass(frozen=True, slots=True)
class RolledFile:
    """A file that no more records go to: what each log has in it, by mem table, oldest table first; where it ends.

    `writers`: the ids of all logs that have records in it, needed or not. `held`: those of them that could not be
    opened, whose records must stay. `is_held`: an earlier process has left only such records in it.
    """

    path: Path
    end: WalEnd
    pieces: dict[WalClient, list[tuple[MemTable, Seq]]]
    writers: frozenset[bytes] = frozenset()
    held: frozenset[bytes] = frozenset()
    is_held: bool = False

    def holding(self, broken: frozenset[bytes]) -> RolledFile:
        """The same file, of which nothing of these logs may go into segments or be deleted."""
        pieces = {client: own for client, own in self.pieces.items() if client.uid not in broken}
        return replace(self, pieces=pieces, held=self.writers & broken)
