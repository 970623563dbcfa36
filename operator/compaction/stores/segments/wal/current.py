"""The file that records go to now: encodes them, gathers a batch, writes and syncs it in one piece."""

from __future__ import annotations

import os
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

    def add(self, client: WalClient, table: MemTable, entry: LogEntry, *, truncate: bool = False) -> None:
        """Put an entry into the batch. InvalidEntryError: the batch is as before."""
        index, term, payload = entry
        head = self._encoder.head(client.uid, index, term, payload, truncate=truncate)
        self._parts += (head, payload)
        self.size += len(head) + len(payload)
        self.entries += 1
        pieces = self._pieces.setdefault(client, {})
        seq = pieces.get(table)
        if seq is None:
            seq = pieces[table] = Seq()
        if index not in seq:
            seq.append(index)

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
