"""What the write-ahead log files of a system hold, put back into mem tables when the system is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from compaction.core.collecting import no_collection
from compaction.segments.memtable.seq import Seq
from compaction.segments.memtable.table import MemTable
from compaction.segments.memtable.tables import MemTables
from compaction.segments.system.cut import LogCut
from compaction.segments.wal.codec import WalTail
from compaction.segments.wal.files import WalEnd, lost_since_stop, wal_files, wal_number
from compaction.segments.wal.reader import WalRun, read_wal
from compaction.segments.wal.write import RolledFile, WalClient


class RecoveringLog(WalClient, Protocol):
    """A log whose mem tables are filled."""

    @property
    def tables(self) -> MemTables:
        """The mem tables, of this log alone."""

    @property
    def cut(self) -> LogCut | None:
        """What in the files is no part of the log."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """`files`: for the segment writer, oldest first. `number`: the last file's; 0 without any. `writers`: the ids of
    all logs that have records, needed or not.

    `tails`: records that were being written when the process or the machine stopped, by file. `failed`: logs whose
    records could not be put into mem tables.
    """

    files: tuple[RolledFile, ...]
    number: int
    writers: frozenset[bytes]
    tails: dict[Path, WalTail]
    failed: dict[bytes, Exception]


def recover(directory: Path, logs: Mapping[bytes, RecoveringLog]) -> Recovered:
    """Read every file, oldest first. Of a log that is not in `logs` only the id is noted: it was deleted, or could not
    be opened.

    InvalidWalFormatError, DamagedWalError: a file cannot be read, or has lost its end since a clean stop; nothing was
    changed. OSError passes through.
    """
    for lost in lost_since_stop(directory):
        raise lost
    files: list[RolledFile] = []
    tails: dict[Path, WalTail] = {}
    failed: dict[bytes, Exception] = {}
    number = 0
    for path in wal_files(directory):
        number = wal_number(path.name)
        pieces: dict[WalClient, dict[MemTable, Seq]] = {}
        writers: set[bytes] = set()
        with read_wal(path) as reader, no_collection():
            for run in reader.runs():
                writers.add(run.writer)
                log = logs.get(run.writer)
                if log is None or run.writer in failed:
                    continue
                try:
                    _put(log, run, pieces.setdefault(log, {}), number)
                except Exception as error:  # noqa: BLE001 - of one log, whatever it is: its siblings go on
                    failed[run.writer] = error
        waiting = {log: list(tables.items()) for log, tables in pieces.items() if tables}
        files.append(
            RolledFile(path, WalEnd(reader.end, reader.size), waiting, frozenset(writers), is_held=reader.is_held)
        )
        if reader.tail is not None:
            tails[path] = reader.tail
    return Recovered(tuple(files), number, frozenset().union(*(one.writers for one in files)), tails, failed)


def _put(log: RecoveringLog, run: WalRun, pieces: dict[MemTable, Seq], number: int) -> None:
    """What the log needs of a run into its mem tables, noted in the pieces of the file of this number. Of a run that is
    dead its last entry, which hides what stands behind it in segments.
    """
    entries, first = run.entries, run.entries[0].index
    if log.cut is not None and log.cut.covers(entries[-1].index, number):
        # What the cut covers is the end of the run: all from its first index on.
        entries = entries[: max(0, log.cut.first - first)]
    truncate = run.truncate
    if first < log.row.smallest_live:
        entries, truncate = entries[log.row.smallest_live - first :] or entries[-1:], False
    if not entries:
        return
    if truncate:
        log.tables.remove_below(first)
    table = log.tables.insert_run(entries, sum([len(payload) for _, _, payload in entries]))
    pieces.setdefault(table, Seq()).extend(entries[0].index, entries[-1].index)
