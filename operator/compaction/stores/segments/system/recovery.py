"""What the write-ahead log files of a system hold, put back into mem tables when the system is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from compaction.stores.segments.memtable.seq import Seq
from compaction.stores.segments.memtable.table import LogEntry, MemTable
from compaction.stores.segments.memtable.tables import MemTables
from compaction.stores.segments.wal.codec import WalRecord, WalTail
from compaction.stores.segments.wal.files import wal_files, wal_number
from compaction.stores.segments.wal.reader import read_wal
from compaction.stores.segments.wal.write import RolledFile, WalClient


class RecoveringLog(WalClient, Protocol):
    """A log whose mem tables are filled."""

    @property
    def tables(self) -> MemTables:
        """The mem tables, of this log alone."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """`files`: for the segment writer, oldest first. `number`: the last file's; 0 without any. `writers`: the ids of
    all logs that have records, needed or not.

    `tails`: records that were being written when the process or the machine stopped, by file.
    """

    files: tuple[RolledFile, ...]
    number: int
    writers: frozenset[bytes]
    tails: dict[Path, WalTail]


def recover(directory: Path, logs: Mapping[bytes, RecoveringLog]) -> Recovered:
    """Read every file, oldest first. A record of a log that is not in `logs` belongs to a deleted one: dropped.

    InvalidWalFormatError, DamagedWalError: a file cannot be read; nothing was changed. OSError passes through.
    """
    files: list[RolledFile] = []
    tails: dict[Path, WalTail] = {}
    writers: set[bytes] = set()
    number = 0
    for path in wal_files(directory):
        pieces: dict[WalClient, dict[MemTable, Seq]] = {}
        reader = read_wal(path)
        for record in reader:
            writers.add(record.writer)
            log = logs.get(record.writer)
            if log is None or record.index < log.row.smallest_live:
                continue
            table = put_back(record, log.tables)
            pieces.setdefault(log, {}).setdefault(table, Seq()).append(record.index)
        files.append(RolledFile(path, {log: list(tables.items()) for log, tables in pieces.items()}))
        if reader.tail is not None:
            tails[path] = reader.tail
        number = wal_number(path.name)
    return Recovered(tuple(files), number, frozenset(writers), tails)


def put_back(record: WalRecord, tables: MemTables) -> MemTable:
    """A record that its log needs, in the mem tables of before its writer stopped; the one that holds it now."""
    if record.truncate:
        tables.remove_below(record.index)
    return tables.insert(LogEntry(record.index, record.term, record.payload))
