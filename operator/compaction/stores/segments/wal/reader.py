"""What a write-ahead log file holds, in order: every whole record, and the torn one at its end.

A file ends after its last whole record: at the end of the file, at zeros up to the end, or at one record that was being
written when the power failed. Such a record does not count and is harmless: it was never acknowledged. Damage with a
whole record behind it is something else: acknowledged entries may be lost, so it is an error that names file and offset
and nothing is dropped (docs/design/segment-wal.md#damage).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from compaction.exceptions import DamagedWalError
from compaction.stores.segments.memtable.table import LogEntry
from compaction.stores.segments.wal.codec import (
    FIXED,
    HEAD,
    HEADER,
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
from compaction.stores.segments.wal.files import open_wal

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


@dataclass(slots=True)
class RecordCursor:
    """A position in a file's bytes, and the writers that its records have introduced."""

    data: bytes
    offset: int
    writers: dict[int, bytes]


class WalReader:
    """Iterates over the records of one file's bytes; `tail` is known after the last one, `end` is behind it."""

    def __init__(self, data: bytes, *, file: str) -> None:
        """InvalidWalFormatError when the header is not that of a write-ahead log."""
        check_header(data, file=file)
        self.file = file
        self.tail: WalTail | None = None
        self.end = len(HEADER)
        self._data = data

    def __iter__(self) -> Iterator[WalRecord]:
        """DamagedWalError where a record cannot be read and a whole one follows."""
        cursor = RecordCursor(self._data, len(HEADER), {})
        while (record := self._next(cursor)) is not None:
            yield record

    def runs(self) -> Iterator[WalRun]:
        """The same records, of each writer in their order; of different writers as their runs end. Errors as above."""
        cursor = RecordCursor(self._data, len(HEADER), {})
        growing: dict[bytes, WalRun] = {}
        while True:
            _grow(cursor, growing)
            begin = cursor.offset
            record = self._next(cursor)
            if record is None:
                break
            word = word_of(number_of(self._data, begin))
            if (ended := growing.get(word)) is not None:
                yield ended
            growing[word] = WalRun(
                record.writer, record.truncate, [LogEntry(record.index, record.term, record.payload)]
            )
        yield from growing.values()

    def _next(self, cursor: RecordCursor) -> WalRecord | None:
        """The record at the cursor, which moves behind it; None at the end of what counts."""
        self.end = begin = cursor.offset
        if begin >= len(self._data):
            return None
        try:
            record = take_record(cursor)
        except BadRecordError as error:
            if begin < len(self._data.rstrip(b"\0")):
                self._judge(cursor, begin, str(error))
            return None
        self.end = cursor.offset
        return record

    def _judge(self, cursor: RecordCursor, offset: int, reason: str) -> None:
        # From the record itself on: whole, but of an unknown writer, it is no torn one either.
        whole = find_record(self._data, offset, cursor.writers)
        if whole is not None:
            where = "the record itself is whole" if whole == offset else f"a whole record follows at offset {whole}"
            raise DamagedWalError(self.file, offset, f"{reason}; {where}")
        self.tail = WalTail(offset, reason)


def read_wal(path: Path) -> WalReader:
    """The records of the file at `path`, read at once. OSError passes through; errors of `WalReader`."""
    with open(open_wal(path), "rb") as file:
        return WalReader(file.read(), file=str(path))


def _grow(cursor: RecordCursor, growing: dict[bytes, WalRun]) -> None:
    """Move the cursor over all records that go on with a run, by the header word of its writer: the inner loop. What is
    anything else, or not whole, stays for `take_record`.
    """
    data, offset, end = cursor.data, cursor.offset, len(cursor.data) - HEAD.size
    view = memoryview(data)
    unpack, check, new = HEAD.unpack_from, zlib.adler32, tuple.__new__
    while offset < end:
        word, crc, length, index, term = unpack(data, offset)
        run = growing.get(word)
        if run is None or index != run.entries[-1][0] + 1:
            break
        body = offset + HEAD.size
        after = body + length
        if not length or after > len(data) or (crc and crc != check(view[body - INDEX_TERM.size : after])):
            break
        run.entries.append(new(LogEntry, (index, term, data[body:after])))
        offset = after
    cursor.offset = offset


def take_record(cursor: RecordCursor) -> WalRecord:
    """The record at the cursor, which moves behind it; it introduces its writer only if all of it is right."""
    data, begin = cursor.data, cursor.offset
    position = begin + WORD_BYTES
    if position > len(data):
        raise BadRecordError("the record's header is cut off")
    flags, number = data[begin], number_of(data, begin)
    if flags & KNOWN_BIT:
        writer = cursor.writers.get(number)
        if writer is None:
            raise BadRecordError(f"writer number {number} is not introduced by any record before")
    else:
        writer, position = _writer_id(data, position)
    body = position + FIXED.size
    if body > len(data):
        raise BadRecordError("the record's header is cut off")
    crc, length, index, term = FIXED.unpack_from(data, position)
    end = body + length
    if not length:
        raise BadRecordError("the record has no payload")
    if end > len(data):
        raise BadRecordError(f"the record of {length} bytes is cut off after {len(data) - body}")
    # Index and term are the last bytes of the fixed part, directly before the payload: one stretch to check.
    if crc and crc != zlib.adler32(memoryview(data)[body - INDEX_TERM.size : end]):
        raise BadRecordError(f"the checksum of index {index} is not {crc:08x}")
    cursor.writers[number] = writer
    cursor.offset = end
    return WalRecord(writer, index, term, data[body:end], bool(flags & TRUNCATE_BIT), begin)


def _writer_id(data: bytes, position: int) -> tuple[bytes, int]:
    if position + ID_LENGTH.size > len(data):
        raise BadRecordError("the record's header is cut off")
    (length,) = ID_LENGTH.unpack_from(data, position)
    position += ID_LENGTH.size
    if not length:
        raise BadRecordError("the record introduces a writer without an id")
    if position + length > len(data):
        raise BadRecordError("the writer's id is cut off")
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
    """Whether a record with a checksum stands at `offset`, of any writer."""
    position = offset + WORD_BYTES
    if not data[offset] & KNOWN_BIT:
        try:
            _, position = _writer_id(data, position)
        except BadRecordError:
            return False
    if position + FIXED.size > len(data):
        return False
    crc, length, index, term = FIXED.unpack_from(data, position)
    body = position + FIXED.size
    return bool(crc and length and body + length <= len(data)) and crc == checksum(
        index, term, memoryview(data)[body : body + length]
    )
