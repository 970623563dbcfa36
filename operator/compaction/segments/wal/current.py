"""The file that records go to now: encodes them, gathers a batch, writes and syncs it in one piece."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from compaction.segments.directory import fs
from compaction.segments.memtable.seq import Seq
from compaction.segments.memtable.table import MemTable
from compaction.segments.wal.codec import HEAD, HEADER, RecordEncoder
from compaction.segments.wal.files import WalEnd, create_wal, wal_name
from compaction.segments.wal.write import RolledFile, WalClient, WalWrite

_JOINED: Final = 2048
"""Payloads of up to this many bytes on average are copied together: a vector of many parts costs more than the copy."""


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
        self._small: list[bytes] = []
        self._pieces: dict[WalClient, dict[MemTable, Seq]] = {}
        self._fd = create_wal(directory, number)

    def add(self, write: WalWrite, begin: int, limits: WalLimits, *, truncate: bool) -> int:
        """Put the entries of a write from position `begin` on into the batch, until the file is full; returns the
        position behind them. At least one is put, with the truncate flag if it is asked for.
        """
        uid, entries = write.client.uid, write.entries
        end = self._end(write, begin, limits)
        rest = entries if begin == 0 and end == len(entries) else entries[begin:end]
        if truncate or not self._encoder.knows(uid):
            index, term, payload = rest[0]
            self._put([self._encoder.head(uid, index, term, payload, truncate=truncate)], [payload])
            rest = rest[1:]
        if rest:
            self._put(self._encoder.heads(uid, rest), [payload for _, _, payload in rest])
        self.entries += end - begin
        self._note(write.client, write.table, entries[begin].index, entries[end - 1].index)
        return end

    def _end(self, write: WalWrite, begin: int, limits: WalLimits) -> int:
        """The position behind the last entry that this file takes: the one that makes it full, or the last of all."""
        entries, size = write.entries, self.size
        end = len(entries)
        if limits.max_entries is not None:
            end = min(end, begin + max(1, limits.max_entries - self.entries))
        if size + write.size + end * HEAD.size <= limits.max_size:
            return end
        for position in range(begin, end):
            size += HEAD.size + len(entries[position].payload)
            if size > limits.max_size:
                return position + 1
        return end

    def _put(self, heads: list[bytes], payloads: list[bytes]) -> None:
        """Records into the batch: small ones as one piece each, of large ones head and payload as they are."""
        size = sum(map(len, payloads))
        self.size += sum(map(len, heads)) + size
        if size <= _JOINED * len(payloads):
            self._small += [head + payload for head, payload in zip(heads, payloads, strict=True)]
            return
        self._join_small()
        self._parts += chain.from_iterable(zip(heads, payloads, strict=True))

    def _join_small(self) -> None:
        if self._small:
            self._parts.append(b"".join(self._small))
            self._small = []

    def is_full(self, limits: WalLimits) -> bool:
        """Whether the next record belongs into the next file."""
        return self.size > limits.max_size or (limits.max_entries is not None and self.entries >= limits.max_entries)

    def _note(self, client: WalClient, table: MemTable, low: int, high: int) -> None:
        """low..high of a table are in this file. What was sent again may be there already."""
        pieces = self._pieces.get(client)
        if pieces is None:
            pieces = self._pieces[client] = {}
        seq = pieces.get(table)
        if seq is None:
            seq = pieces[table] = Seq()
        following = low if seq.last is None else max(low, seq.last + 1)
        if following <= high:
            seq.extend(following, high)

    def commit(self) -> None:
        """Write the batch and make it durable."""
        self._join_small()
        if self._parts:
            parts, self._parts = self._parts, []
            fs.write(self._fd, parts)
            fs.sync_data(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def rolled(self) -> RolledFile:
        """What the file holds, for the segment writer."""
        pieces = {client: list(pieces.items()) for client, pieces in self._pieces.items()}
        return RolledFile(self.path, WalEnd(self.size, self.size), pieces, frozenset(one.uid for one in pieces))
