"""Reader of a write-ahead log file: every whole record in order, and the torn one at its end.

A file ends after its last whole record: at the end of the file, at zeros up to the end, or at one record that was being
written when the power failed. Such a record does not count and is harmless: it was never acknowledged. Damage with a
whole record behind it is something else: acknowledged entries may be lost, so it is an error that names file and offset
and nothing is dropped. So is any other end than the one that a clean stop has recorded
(docs/design/segment-wal.md#damage).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from compaction.segments.errors import DamagedWalError, WalChangedAfterStopError
from compaction.segments.format.segment_file import pread_up_to
from compaction.segments.memtable import LogEntry
from compaction.segments.model import adler32
from compaction.segments.wal.codec import (
    FIXED,
    HEAD,
    HEADER,
    HELD_WRITER,
    ID_LENGTH,
    INDEX_TERM,
    KNOWN_BIT,
    TRUNCATE_BIT,
    WORD_BYTES,
    WalRecord,
    WalTail,
    check_header,
    checksum,
    number_of,
    word_of,
)
from compaction.segments.wal.files import STOP_FILE, WalEnd, open_wal, read_stop

STRETCH: Final = 1 << 20
"""Bytes of a file that are read at once: they stay in the processor's cache while their records are."""
_HIDDEN_WRITERS: Final = 1 << 10
_SHORTEST: Final = WORD_BYTES + FIXED.size
"""A record is longer than this."""
_SCANNED: Final = 4 << 20
"""Offsets that are compared at once."""
_PEEKED: Final = WORD_BYTES + ID_LENGTH.size - 1
"""Bytes behind an offset that decide whether a record may begin there."""


class WalRun(NamedTuple):
    """Records of one writer with consecutive indexes, in order. `truncate`: indexes below the first one are dead."""

    writer: bytes
    truncate: bool
    entries: list[LogEntry]


class BadRecordError(Exception):
    """The record at the current offset cannot be read; the argument says why."""


class CutOffRecordError(BadRecordError):
    """The bytes end before the record does."""


class FileBytes(NamedTuple):
    """The bytes of a file: how many, and what reads up to a count of them from an offset on."""

    size: int
    read: Callable[[int, int], bytes]


@dataclass(slots=True)
class RecordCursor:
    """A position in a stretch of a file, which begins at offset `base`; the writers that records have introduced."""

    data: bytes
    offset: int
    writers: dict[int, bytes]
    base: int = 0

    @property
    def position(self) -> int:
        """The cursor's offset in the file."""
        return self.base + self.offset


class WalReader:
    """Iterates over the records of one file; `tail` is known after the last one, `end` is behind it.
    `is_held`: only the records of logs that could not be opened were left in the file; known after the first one.

    Of the file a stretch is in memory, or its largest record; at damage, all that follows.
    """

    def __init__(
        self, source: bytes | FileBytes, *, file: str, stretch: int = STRETCH, stopped: WalEnd | None = None
    ) -> None:
        """`stopped`: where the file ended when its system was stopped cleanly; None if it was not, or it runs.

        InvalidWalFormatError when the header is not that of a write-ahead log.
        """
        self._source = (
            FileBytes(len(source), lambda count, offset: source[offset : offset + count])
            if isinstance(source, bytes)
            else source
        )
        check_header(self._source.read(len(HEADER), 0), file=file)
        self.file = file
        self.tail: WalTail | None = None
        self.is_held = False
        self.end = len(HEADER)
        self._stretch = stretch
        self._stopped = stopped

    def __iter__(self) -> Iterator[WalRecord]:
        """DamagedWalError where a record cannot be read and a whole one follows, or the file has another end than at
        the clean stop. OSError passes through.
        """
        cursor = self._cursor()
        while (record := self._next(cursor)) is not None:
            yield record

    def runs(self) -> Iterator[WalRun]:
        """The same records, of each writer in their order; of different writers as their runs end. Errors as above."""
        cursor = self._cursor()
        growing: dict[bytes, WalRun] = {}
        while True:
            _grow(cursor, growing)
            record = self._next(cursor)
            if record is None:
                break
            word = word_of(number_of(cursor.data, record.offset - cursor.base))
            if (ended := growing.get(word)) is not None:
                yield ended
            growing[word] = WalRun(
                record.writer, record.truncate, [LogEntry(record.index, record.term, record.payload)]
            )
        yield from growing.values()

    @property
    def size(self) -> int:
        """Bytes of the file, as large as it was when it was opened."""
        return self._source.size

    def _cursor(self) -> RecordCursor:
        return RecordCursor(self._source.read(self._stretch, 0), len(HEADER), {})

    def _next(self, cursor: RecordCursor) -> WalRecord | None:
        """The record at the cursor, which moves behind it; None at the end of what counts."""
        while True:
            self.end = cursor.position
            try:
                record = take_record(cursor)
            except BadRecordError as error:
                # Cut off by the end of the stretch in memory, not by that of the file: read on.
                if isinstance(error, CutOffRecordError) and self._read_on(cursor):
                    continue
                self._judge(cursor, str(error))
                return None
            self.end = cursor.position
            if record.writer == HELD_WRITER:
                self.is_held = True
                continue
            return record

    def _read_on(self, cursor: RecordCursor) -> bool:
        """Read the stretch that begins at the cursor, longer than what is left of the one before; False when there is
        no more.
        """
        left, begin = len(cursor.data) - cursor.offset, cursor.position
        if begin + left >= self._source.size:
            return False
        # What is left can go first: one stretch in memory, not two.
        cursor.data, cursor.base, cursor.offset = b"", begin, 0
        cursor.data = self._source.read(min(max(self._stretch, 2 * left), self._source.size - begin), begin)
        return len(cursor.data) > left

    def _judge(self, cursor: RecordCursor, reason: str) -> None:
        """Of what cannot be read at the cursor: nothing but zeros, a torn record, or DamagedWalError."""
        offset = cursor.position
        rest = self._source.read(self._source.size - offset, offset)
        if rest.strip(b"\0"):
            # From the record itself on: whole, but of an unknown writer, it is no torn one either.
            whole = find_record(rest, 0, cursor.writers)
            if whole is not None:
                follows = f"a whole record follows at offset {offset + whole}"
                where = follows if whole else "the record itself is whole"
                raise DamagedWalError(self.file, offset, f"{reason}; {where}")
            self.tail = WalTail(offset, reason)
        self._compare(offset, reason if self.tail else "no record follows")

    def _compare(self, end: int, reason: str) -> None:
        """WalChangedAfterStopError: what was written and synced when the system was stopped cleanly ended elsewhere."""
        before, size = self._stopped, self._source.size
        if before is not None and (end < before.whole or size != before.size):
            had = f"it had {before.size} bytes, whole records up to {before.whole}, when its system was stopped cleanly"
            record = str(Path(self.file).parent / STOP_FILE)
            raise WalChangedAfterStopError(self.file, end, f"{reason}; the file has {size} bytes, {had}", record)


@contextmanager
def read_wal(path: Path) -> Iterator[WalReader]:
    """The records of the file at `path`, as large as it is now, which stays open. OSError passes through; errors of
    `WalReader`.
    """
    # Before the file, which may grow until its system is stopped, and never after.
    stopped = read_stop(path.parent).get(path.name)
    fd = open_wal(path)
    try:
        source = FileBytes(os.fstat(fd).st_size, lambda count, offset: pread_up_to(fd, count, offset))
        yield WalReader(source, file=str(path), stopped=stopped)
    finally:
        os.close(fd)


def _grow(cursor: RecordCursor, growing: dict[bytes, WalRun]) -> None:
    """Move the cursor over all records that go on with a run, by the header word of its writer: the inner loop. What is
    anything else, or not whole in this stretch, stays for `take_record`.
    """
    data, offset, size = cursor.data, cursor.offset, len(cursor.data)
    view, end = memoryview(data), size - HEAD.size
    unpack, check, new, head, checked = HEAD.unpack_from, adler32, tuple.__new__, HEAD.size, INDEX_TERM.size
    current, following, entries = b"", -1, list[LogEntry]()
    while offset < end:
        word, crc, length, index, term = unpack(data, offset)
        if word != current:
            run = growing.get(word)
            if run is None:
                break
            current, entries = word, run.entries
            following = entries[-1][0] + 1
        body = offset + head
        after = body + length
        if index != following or not length or after > size or (crc and crc != check(view[body - checked : after])):
            break
        entries.append(new(LogEntry, (index, term, data[body:after])))
        following = index + 1
        offset = after
    cursor.offset = offset


def take_record(cursor: RecordCursor) -> WalRecord:
    """The record at the cursor, which moves behind it; it introduces its writer only if all of it is right."""
    data, begin = cursor.data, cursor.offset
    position = begin + WORD_BYTES
    if position > len(data):
        raise CutOffRecordError("the record's header is cut off")
    flags, number = data[begin], number_of(data, begin)
    if flags & KNOWN_BIT:
        writer = cursor.writers.get(number)
        if writer is None:
            raise BadRecordError(f"writer number {number} is not introduced by any record before")
    else:
        writer, position = _writer_id(data, position)
    body = position + FIXED.size
    if body > len(data):
        raise CutOffRecordError("the record's header is cut off")
    crc, length, index, term = FIXED.unpack_from(data, position)
    end = body + length
    if not length:
        raise BadRecordError("the record has no payload")
    if end > len(data):
        raise CutOffRecordError(f"the record of {length} bytes is cut off after {len(data) - body}")
    # Index and term are the last bytes of the fixed part, directly before the payload: one stretch to check.
    if crc and crc != adler32(memoryview(data)[body - INDEX_TERM.size : end]):
        raise BadRecordError(f"the checksum of index {index} is not {crc:08x}")
    cursor.writers[number] = writer
    cursor.offset = end
    return WalRecord(writer, index, term, data[body:end], bool(flags & TRUNCATE_BIT), cursor.base + begin)


def _writer_id(data: bytes, position: int) -> tuple[bytes, int]:
    if position + ID_LENGTH.size > len(data):
        raise CutOffRecordError("the record's header is cut off")
    (length,) = ID_LENGTH.unpack_from(data, position)
    position += ID_LENGTH.size
    if not length:
        raise BadRecordError("the record introduces a writer without an id")
    if position + length > len(data):
        raise CutOffRecordError("the writer's id is cut off")
    return data[position : position + length], position + length


def find_record(data: bytes, begin: int, writers: dict[int, bytes]) -> int | None:
    """Offset of the first whole record with a matching checksum at or after `begin`, of a known writer or of one that
    it introduces; None without any.

    Neither a wrong length nor lost bytes hide what follows: each offset counts. Zeros are no record: they introduce a
    writer without an id.
    """
    # Numbers are given in order, so a whole record has that of a known writer, or one of the next, of those that the
    # damage hides: of 4 million numbers, chance hits nearly none.
    limit = max(writers, default=-1) + 1 + _HIDDEN_WRITERS
    octets = np.frombuffer(data, dtype=np.uint8)
    for start in range(begin, len(data) - _SHORTEST, _SCANNED):
        part = octets[start : min(start + _SCANNED, len(data) - _SHORTEST) + _PEEKED]
        high, middle, low = part[:-4], part[1:-3], part[2:-2]
        numbers = (high & 0x3F).astype(np.uint32) << 16 | middle.astype(np.uint32) << 8 | low
        zeros = (high | middle | low | part[3:-1] | part[4:]) == 0
        for position in np.flatnonzero((numbers < limit) & ~zeros).tolist():
            if _is_whole(data, start + position):
                return start + position
    return None


def _is_whole(data: bytes, offset: int) -> bool:
    """Return whether a record with a checksum stands at `offset`, of any writer."""
    position = offset + WORD_BYTES
    if not data[offset] & KNOWN_BIT:
        try:
            _, position = _writer_id(data, position)
        except BadRecordError:
            # A chance hit of the search: no writer's id stands there.
            return False
    if position + FIXED.size > len(data):
        return False
    crc, length, index, term = FIXED.unpack_from(data, position)
    body = position + FIXED.size
    return bool(crc and length and body + length <= len(data)) and crc == checksum(
        index, term, memoryview(data)[body : body + length]
    )
