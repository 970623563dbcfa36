"""The file that records go to now: encodes them, gathers a batch, writes and syncs it in one piece."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.stores.segments.directory import fs
from compaction.stores.segments.memtable.seq import Seq
from compaction.stores.segments.memtable.table import LogEntry, MemTable
from compaction.stores.segments.wal.codec import HEADER, RecordEncoder
from compaction.stores.segments.wal.files import create_wal, wal_name
from compaction.stores.segments.wal.write import RolledFile, WalClient

_JOINED: Final = 2048
"""Payloads up to this many bytes are copied together: a vector of many small parts costs more than the copy."""


@dataclass(frozen=True, slots=True)
class WalLimits:
    """`max_size` (bytes) and `max_entries` of a file: it is rolled before the next record once it has as much.

    `batch_bytes` of payload are written and synced at once; `queue_bytes` wait for that at most.
    """

    max_size: int = 64_000_000
    max_entries: int | None = None
    batch_bytes: int = 4 << 20
    queue_bytes: int = 16 << 20


class CurrentFile:
    """One open write-ahead log file. For the write-ahead log's thread alone."""

    def __init__(self, directory: Path, number: int) -> None:
        """Creates the file; its name is durable once the directory is synced. OSError passes through."""
        self.number = number
        self.path = directory / wal_name(number)
        self.size = len(HEADER)
        self.entries = 0
        self._encoder = RecordEncoder()
        self._parts: list[bytes] = []
        self._pieces: dict[WalClient, dict[MemTable, Seq]] = {}
        self._fd = create_wal(directory, number)

    def add(
        self,
        client: WalClient,
        table: MemTable,
        entries: Sequence[LogEntry],
        *,
        begin: int,
        limits: WalLimits,
        truncate: bool,
    ) -> int:
        """Put the consecutive `entries` from position `begin` on into the batch, until the file is full; returns the
        position behind them. At least one is put, with the truncate flag if it is asked for.
        """
        index, term, payload = entries[begin]
        parts, small = self._parts, _JOINED
        head = self._encoder.head(client.uid, index, term, payload, truncate=truncate)
        following = self._encoder.following(client.uid)
        room = len(entries) if limits.max_entries is None else limits.max_entries - self.entries + begin
        size, position = self.size, begin
        while True:
            size += len(head) + len(payload)
            if len(payload) <= small:
                parts.append(head + payload)
            else:
                parts += (head, payload)
            position += 1
            if position >= len(entries) or position >= room or size > limits.max_size:
                break
            index, term, payload = entries[position]
            head = following(index, term, payload)
        self.size = size
        self.entries += position - begin
        self._note(client, table, entries[begin].index, index)
        return position

    def is_full(self, limits: WalLimits) -> bool:
        """Whether the next record belongs into the next file."""
        return self.size > limits.max_size or (limits.max_entries is not None and self.entries >= limits.max_entries)

    def _note(self, client: WalClient, table: MemTable, low: int, high: int) -> None:
        """low..high of a table are in this file. What was sent again may be there already."""
        pieces = self._pieces.setdefault(client, {})
        seq = pieces.get(table)
        if seq is None:
            seq = pieces[table] = Seq()
        following = low if seq.last is None else max(low, seq.last + 1)
        if following <= high:
            seq.extend(following, high)

    def commit(self) -> None:
        """Write the batch and make it durable."""
        if self._parts:
            parts, self._parts = self._parts, []
            fs.write(self._fd, gather(parts))
            fs.sync_data(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def rolled(self) -> RolledFile:
        """What the file holds, for the segment writer."""
        return RolledFile(self.path, {client: list(pieces.items()) for client, pieces in self._pieces.items()})


def gather(parts: list[bytes]) -> list[memoryview | bytes]:
    """The same bytes in fewer parts: neighbouring small ones joined, large ones as they are."""
    result: list[memoryview | bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) <= _JOINED:
            small.append(part)
            continue
        if small:
            result.append(b"".join(small))
            small = []
        result.append(part)
    if small:
        result.append(b"".join(small))
    return result
