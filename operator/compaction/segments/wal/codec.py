"""Records of a write-ahead log file, byte for byte as Ra's, and whether the log takes a write: pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from compaction.segments.errors import InvalidEntryError, InvalidWalFormatError
from compaction.segments.model import adler32

# Records of a write-ahead log file, byte for byte as Ra's (docs/design/segment-wal.md#file): pure, no I/O.
#
# File: `RAWA`, u8 version 1, then records, big-endian: 1 bit truncate, 1 bit known writer, 22 bits writer number; of
# a writer's first record in the file also u16 length and the writer's id; u32 adler32 over index, term and payload (0
# = not checked); u32 payload length; u64 index; u64 term; payload. Zeros up to the end are the rest of a preallocated
# file.

MAGIC: Final = b"RAWA"
VERSION: Final = 1
HEADER: Final = MAGIC + bytes((VERSION,))
HELD_WRITER: Final = b"*held"
"""Writer of the first record of a file that was replaced by one with the records of some logs only, those that could
not be opened. It is no entry, and no log has this id.
"""
MAX_WRITERS: Final = 1 << 22
MAX_WRITER_ID_BYTES: Final = 0xFFFF
MAX_PAYLOAD_BYTES: Final = 0xFFFFFFFF
TRUNCATE_BIT: Final = 0x80
KNOWN_BIT: Final = 0x40
_NUMBER_MASK: Final = 0x3F

FIXED: Final = struct.Struct(">IIQQ")
"""Checksum, payload length, index, term: what stands between the header word and the payload."""
INDEX_TERM: Final = struct.Struct(">QQ")
WORD_BYTES: Final = 3
HEAD: Final = struct.Struct(">3sIIQQ")
"""Of a record whose writer is known, everything before the payload: header word and the fixed part."""
ID_LENGTH: Final = struct.Struct(">H")


class WalRecord(NamedTuple):
    """One entry as a file holds it. `offset`: where its record begins; `truncate`: lower indexes are dead."""

    writer: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index, which no caller needs
    term: int
    payload: bytes
    truncate: bool = False
    offset: int = 0


@dataclass(frozen=True, slots=True)
class WalTail:
    """A record at the end of a file that does not count, because the process or the machine stopped while it was
    written: where it begins, and what is wrong with it.
    """

    offset: int
    reason: str


def checksum(index: int, term: int, payload: bytes | memoryview) -> int:
    """Adler-32 over index, term and payload."""
    return adler32(payload, adler32(INDEX_TERM.pack(index, term)))


def _beyond(index: int, term: int) -> InvalidEntryError:
    return InvalidEntryError(f"index {index}, term {term}: both are unsigned 64-bit numbers")


class RecordEncoder:
    """Encodes the records of one file: numbers its writers in the order of their first record, from 0."""

    __slots__ = ("_checksums", "_words")

    def __init__(self, *, checksums: bool = True) -> None:
        self._checksums = checksums
        self._words: dict[bytes, tuple[bytes, bytes]] = {}

    def head(self, writer: bytes, index: int, term: int, payload: bytes, *, truncate: bool = False) -> bytes:
        """Everything of a record that stands before its payload.

        InvalidEntryError for what the format cannot hold: an empty payload, an id of no or too many bytes, numbers
        beyond 64 bits, more than 2**22 writers.
        """
        words = self._words.get(writer)
        first = b""
        if words is None:
            words, first = self._introduce(writer)
        fixed = self._fixed(index, term, payload)
        if first:
            self._words[writer] = words
            return (bytes((first[0] | TRUNCATE_BIT,)) + first[1:] if truncate else first) + fixed
        return words[truncate] + fixed

    def heads(self, writer: bytes, entries: Sequence[tuple[int, int, bytes]]) -> list[bytes]:
        """Return the results of `head` for further records (index, term, payload) of a known writer.

        None of the records truncates.
        """
        word = self._words[writer][0]
        pack, check, number = HEAD.pack, adler32, INDEX_TERM.pack
        try:
            if not self._checksums:
                return [pack(word, 0, len(payload), index, term) for index, term, payload in entries]
            return [
                pack(word, check(payload, check(number(index, term))), len(payload), index, term)
                for index, term, payload in entries
            ]
        except struct.error as error:
            raise _beyond(*entries[0][:2]) from error

    def knows(self, writer: bytes) -> bool:
        """Return whether a record of this file has introduced the writer."""
        return writer in self._words

    def _fixed(self, index: int, term: int, payload: bytes) -> bytes:
        try:
            crc = checksum(index, term, payload) if self._checksums else 0
            return FIXED.pack(crc, len(payload), index, term)
        except struct.error as error:
            raise _beyond(index, term) from error

    def _introduce(self, writer: bytes) -> tuple[tuple[bytes, bytes], bytes]:
        """The two header words of a writer from its second record on, and the head of its first record."""
        number = len(self._words)
        if not 0 < len(writer) <= MAX_WRITER_ID_BYTES:
            raise InvalidEntryError(f"a writer's id has 1..{MAX_WRITER_ID_BYTES} bytes, not {len(writer)}")
        if number >= MAX_WRITERS:
            raise InvalidEntryError(f"a write-ahead log file holds at most {MAX_WRITERS} writers")
        word, known = number.to_bytes(WORD_BYTES, "big"), word_of(number)
        return (known, bytes((known[0] | TRUNCATE_BIT,)) + known[1:]), word + ID_LENGTH.pack(len(writer)) + writer


def check_header(data: bytes, *, file: str) -> None:
    """InvalidWalFormatError unless a file that begins with `data` is a write-ahead log of version 1."""
    if len(data) < len(HEADER):
        raise InvalidWalFormatError(file, f"the header is cut off after {len(data)} of {len(HEADER)} bytes")
    if data[:4] != MAGIC:
        raise InvalidWalFormatError(file, f"the file begins with {data[:4]!r}, not {MAGIC!r}")
    if data[4] != VERSION:
        raise InvalidWalFormatError(file, f"version {data[4]} is not supported ({VERSION} is)")


def word_of(number: int) -> bytes:
    """The header word of a further record of the writer with this number, without the truncate flag."""
    word = number.to_bytes(WORD_BYTES, "big")
    return bytes((word[0] | KNOWN_BIT,)) + word[1:]


def number_of(data: bytes, offset: int) -> int:
    """The writer number in the header word at `offset`."""
    return (data[offset] & _NUMBER_MASK) << 16 | data[offset + 1] << 8 | data[offset + 2]


# Decisions of the write-ahead log to take a write: pure, from the previous index that every write carries.
#
# The rules are Ra's (docs/design/segment-wal.md#order-of-a-logs-writes), so that its files and ours mean the same.


class Standing(StrEnum):
    """The state of a log's writes: all have arrived so far, or not. The values are those of the writers snapshot."""

    IN_SEQUENCE = "in_seq"
    OUT_OF_SEQUENCE = "out_of_seq"


class WriteVerdict(StrEnum):
    """The decision about a write."""

    WRITE = "Write"
    WRITE_TRUNCATING = "WriteTruncating"
    """With the truncate flag: whatever lies below this index is dead."""
    BELOW_LIVE = "BelowLive"
    """Not written, and yet done: the entry lies below the smallest live index, so nothing will read it."""
    REQUEST_RESEND = "RequestResend"
    """A gap: the log is asked, once, to send everything after its last index again."""
    REFUSE = "Refuse"
    """The gap is known, and this write does not fill it."""


class WriterState(NamedTuple):
    """The last index that a log wrote, and whether its writes are in sequence."""

    last: int
    standing: Standing = Standing.IN_SEQUENCE


def judge(
    writer: WriterState | None, *, index: int, previous: int | None, smallest_live: int
) -> tuple[WriteVerdict, WriterState | None]:
    """Return the decision about a write of `index`, and the writer's state after it.

    `previous`: the index before it in its log, contiguous or sparse; None when the log holds none.
    `writer` None: the log has not written anything yet that is known here, so every index may be its first.
    """
    if index < smallest_live:
        return WriteVerdict.BELOW_LIVE, WriterState(smallest_live - 1)
    if writer is None:
        return WriteVerdict.WRITE, WriterState(index)
    if index == smallest_live and index > writer.last:
        # Nothing between the last index and this one is alive any more.
        return WriteVerdict.WRITE_TRUNCATING, WriterState(index)
    if previous is None or previous <= writer.last:
        return WriteVerdict.WRITE, WriterState(index)
    if writer.standing is Standing.IN_SEQUENCE:
        return WriteVerdict.REQUEST_RESEND, WriterState(writer.last, Standing.OUT_OF_SEQUENCE)
    return WriteVerdict.REFUSE, writer
