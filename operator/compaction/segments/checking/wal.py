"""Facts of write-ahead log files, and what of them their logs need: read without a lock, while an owner writes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from compaction.segments.checking.facts import Content, WalFacts, WriterFacts
from compaction.segments.errors import DamagedWalError, InvalidStopError, InvalidWalFormatError, SegmentLogError
from compaction.segments.memtable.table import LogEntry
from compaction.segments.memtable.tables import MemTables
from compaction.segments.system.cut import LogCut
from compaction.segments.system.row import LogRow
from compaction.segments.wal.codec import WalRecord
from compaction.segments.wal.files import WalEnd, lost_since_stop, open_wal, read_stop, wal_files, wal_number
from compaction.segments.wal.reader import WalReader

_READS: Final = 5
"""Readings of a file that seems damaged and grows: its end is being written."""


class WaitingEntries:
    """What the files hold of some logs, put together as a recovery does it."""

    def __init__(self, rows: Mapping[bytes, LogRow], cuts: Mapping[bytes, LogCut]) -> None:
        """`rows`: of the logs, by id. What lies below a row's smallest live index, or behind a cut, is dropped."""
        self._rows = rows
        self._cuts = cuts
        self._tables = {uid: MemTables() for uid in rows}
        self.writers: set[bytes] = set()

    def add(self, record: WalRecord, number: int) -> None:
        """The next record of the files, oldest first, in the file of this number."""
        self.writers.add(record.writer)
        row, cut = self._rows.get(record.writer), self._cuts.get(record.writer)
        if cut is not None and cut.covers(record.index, number):
            return
        if row is not None and record.index >= row.smallest_live:
            tables = self._tables[record.writer]
            if record.truncate:
                tables.remove_below(record.index)
            tables.insert(LogEntry(record.index, record.term, record.payload))

    def of(self, uid: bytes) -> dict[int, Content]:
        """The entries that a reader gets from the files, by index."""
        tables = self._tables[uid]
        found = {index: tables.lookup(index) for index in tables.visible()}
        return {
            index: Content(entry.term, len(entry.payload), zlib.crc32(entry.payload))
            for index, entry in found.items()
            if entry is not None
        }


def read_wal_files(
    directory: Path, *, on_record: Callable[[WalRecord, int], None], before: Mapping[str, WalFacts] | None = None
) -> tuple[WalFacts, ...]:
    """Facts of all files, oldest first, also of those that are gone since a clean stop; one that goes while they are
    read is left out: its entries are in segments.

    `on_record`: gets every record in order with the number of its file, also those before damage. `before`: facts of an
    earlier reading by name.
    """
    found = []
    for path in wal_files(directory):
        facts = _read(path, (before or {}).get(path.name), on_record)
        if facts is not None:
            found.append(facts)
    try:
        found += [_unreadable(Path(lost.file), lost) for lost in lost_since_stop(directory)]
    except InvalidStopError:
        # Each file that is there says so.
        if not found:
            raise
    return tuple(sorted(found, key=lambda facts: facts.path.name))


def _unreadable(path: Path, error: SegmentLogError) -> WalFacts:
    return WalFacts(path, size=0, whole=0, mark=0, records=0, writers=(), damage=error)


def _read(path: Path, before: WalFacts | None, on_record: Callable[[WalRecord, int], None]) -> WalFacts | None:
    facts: WalFacts | None = None
    records: list[WalRecord] = []
    stopped: WalEnd | None = None
    unknown: InvalidStopError | None = None
    try:
        # Before the file, which may grow until its system is stopped, and never after.
        stopped = read_stop(path.parent).get(path.name)
    except InvalidStopError as error:
        unknown = error
    for _ in range(_READS):
        try:
            with open(open_wal(path), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        except InvalidWalFormatError as error:
            return _unreadable(path, error)
        if facts is not None and facts.size == len(data):
            break
        records, facts = _facts(path, data, before, stopped)
        if facts.damage is None:
            break
    for record in records:
        on_record(record, wal_number(path.name))
    return replace(facts, damage=unknown) if facts is not None and facts.damage is None else facts


def _facts(
    path: Path, data: bytes, before: WalFacts | None, stopped: WalEnd | None
) -> tuple[list[WalRecord], WalFacts]:
    records: list[WalRecord] = []
    writers: dict[bytes, list[WalRecord]] = {}
    damage: SegmentLogError | None = None
    tail, whole, is_held = None, 0, False
    try:
        reader = WalReader(data, file=str(path), stopped=stopped)
        try:
            for record in reader:
                records.append(record)
                writers.setdefault(record.writer, []).append(record)
        finally:
            whole, tail, is_held = reader.end, reader.tail, reader.is_held
    except (DamagedWalError, InvalidWalFormatError) as error:
        damage = error
    return records, WalFacts(
        path=path,
        size=len(data),
        whole=whole,
        mark=zlib.crc32(memoryview(data)[:whole]),
        records=len(records),
        writers=tuple(_writer(uid, own) for uid, own in writers.items()),
        tail=tail,
        damage=damage,
        kept=None if before is None else zlib.crc32(memoryview(data)[: before.whole]) == before.mark,
        is_held=is_held,
    )


def _writer(uid: bytes, records: list[WalRecord]) -> WriterFacts:
    return WriterFacts(
        writer=uid,
        records=len(records),
        first=min(record.index for record in records),
        last=records[-1].index,
        term=records[-1].term,
        truncations=sum(record.truncate for record in records),
        payload_bytes=sum(len(record.payload) for record in records),
    )
