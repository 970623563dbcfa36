"""Messages between the two sides of an installation, as plain data and as bytes of any transport that carries
frames.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from compaction.segments.errors import InstallMessageError
from compaction.segments.memtable import LogEntry
from compaction.segments.model import MAX_INDEX

# Messages between the two sides of an installation: plain data (docs/design/segment-install.md#messages).
#
# Every message carries the sender's term and the number of the transfer, which grows with each attempt of a term:
# what belongs to an older attempt is recognised, however late it arrives.


class Refusal(StrEnum):
    """The reason why a receiver does not go on with a transfer."""

    NEWER_TERM = "NewerTerm"
    """The receiver's term is larger: the sender is no leader any more."""
    STALE_TRANSFER = "StaleTransfer"
    """The receiver has seen a transfer with a larger number in this term; `at` is that number."""
    UNKNOWN_TRANSFER = "UnknownTransfer"
    """The receiver does not have this transfer: it was restarted, or has dropped it."""
    INVALID = "Invalid"
    """What was sent contradicts the offer, or is damaged."""
    MISSING_ENTRIES = "MissingEntries"
    """Live entries of the snapshot are not in the receiver's log."""
    FAILED = "Failed"
    """The receiver's storage refuses something."""


class SentEntry(NamedTuple):
    """A live entry, and the index before it in the receiver's log; None when the log holds none."""

    previous: int | None
    entry: LogEntry


@dataclass(frozen=True, slots=True)
class Offer:
    """Sender: a snapshot can be had. The stream of its chunks has `indexes_bytes` of the `indexes` file and then
    `data_bytes` of `snapshot.dat`.
    """

    term: int
    transfer: int
    index: int
    snapshot_term: int
    indexes_bytes: int
    data_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole stream."""
        return self.indexes_bytes + self.data_bytes


@dataclass(frozen=True, slots=True)
class Entries:
    """Sender: live entries, ascending."""

    term: int
    transfer: int
    entries: tuple[SentEntry, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sender: bytes of the stream from `offset` on, at least one."""

    term: int
    transfer: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cancel:
    """Sender: the transfer ends here."""

    term: int
    transfer: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Receiver: everything is there up to entry `index` (None: the log is empty) and up to `offset` of the stream.

    The first one answers the offer: `index` is where the receiver's log ends, so larger live indexes are needed.
    """

    term: int
    transfer: int
    index: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Installed:
    """Receiver: it has applied everything up to `index`, by this transfer or before."""

    term: int
    transfer: int
    index: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Receiver: the transfer is over on its side. `at`: a number that goes with the reason, else 0."""

    term: int
    transfer: int
    reason: Refusal
    at: int = 0
    detail: str = ""


FromSender = Offer | Entries | Chunk | Cancel
FromReceiver = Progress | Installed | Refused
Message = FromSender | FromReceiver


# Messages of an installation as bytes, for any transport that carries frames (docs/design/segment-install.md#bytes).
#
# Big-endian: `CSIN`, u8 version, u8 kind, u32 crc32 of the kind and what follows, u64 term, u64 transfer, then what
# the kind has. An index that may be missing is sent as index + 1, and 0 for none. Pure: no claim of the bytes (a
# count, a length) is believed before the bytes are there.

MAGIC: Final = b"CSIN"
VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 64 << 20
"""A larger message is not sent and not read: what a transport has to hold in memory at most."""
MAX_DETAIL_BYTES: Final = 2000
_FRAME: Final = struct.Struct(">4sBBI")
_HEAD: Final = struct.Struct(">QQ")
_OFFER: Final = struct.Struct(">QQQQ")
_ENTRY: Final = struct.Struct(">QQQI")
_OFFSET: Final = struct.Struct(">Q")
_PROGRESS: Final = struct.Struct(">QQ")
_REFUSED: Final = struct.Struct(">BQH")
_COUNT: Final = struct.Struct(">H")
OVERHEAD: Final = _FRAME.size + _HEAD.size + _COUNT.size
"""Bytes of a message with entries, without them."""
ENTRY_OVERHEAD: Final = _ENTRY.size
"""Bytes of an entry besides its payload."""
_KINDS: Final[dict[type[Message], int]] = {
    Offer: 1, Entries: 2, Chunk: 3, Cancel: 4, Progress: 5, Installed: 6, Refused: 7,
}  # fmt: skip
_REFUSALS: Final = tuple(Refusal)


def encode(message: Message) -> bytes:
    """InstallMessageError for a message of more than `MAX_MESSAGE_BYTES`."""
    kind = _KINDS[type(message)]
    body = _HEAD.pack(message.term, message.transfer) + _body(message)
    size = _FRAME.size + len(body)
    if size > MAX_MESSAGE_BYTES:
        raise InstallMessageError(size, 0, f"it is larger than {MAX_MESSAGE_BYTES} bytes")
    return _FRAME.pack(MAGIC, VERSION, kind, checksum(kind, body)) + body


def checksum(kind: int, body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(bytes((kind,))))


def _body(message: Message) -> bytes:
    match message:
        case Offer():
            return _OFFER.pack(message.index, message.snapshot_term, message.indexes_bytes, message.data_bytes)
        case Entries(entries=entries):
            return _COUNT.pack(len(entries)) + b"".join(map(_entry, entries))
        case Chunk(offset=offset, data=data):
            return _OFFSET.pack(offset) + data
        case Cancel():
            return b""
        case Progress(index=index, offset=offset):
            return _PROGRESS.pack(0 if index is None else index + 1, offset)
        case Installed(index=index):
            return _OFFSET.pack(index)
        case Refused(reason=reason, at=at, detail=detail):
            text = detail.encode(errors="replace")[:MAX_DETAIL_BYTES]
            return _REFUSED.pack(_REFUSALS.index(reason), at, len(text)) + text


def _entry(sent: SentEntry) -> bytes:
    index, term, payload = sent.entry
    return _ENTRY.pack(0 if sent.previous is None else sent.previous + 1, index, term, len(payload)) + payload


def decode(data: bytes) -> Message:
    """The message in `data`, all of it. InstallMessageError says where it is damaged, and how."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise InstallMessageError(len(data), 0, f"it is larger than {MAX_MESSAGE_BYTES} bytes")
    reader = _Reader(data)
    magic, version, kind, crc = reader.unpack(_FRAME)
    if magic != MAGIC:
        raise InstallMessageError(len(data), 0, f"it begins with {data[:4]!r}, not {MAGIC!r}")
    if version != VERSION:
        raise InstallMessageError(len(data), 4, f"version {version} is not supported ({VERSION} is)")
    actual = checksum(kind, memoryview(data)[_FRAME.size :])
    if actual != crc:
        raise InstallMessageError(len(data), 6, f"checksum {actual:08x} of the content, {crc:08x} in the header")
    term, transfer = reader.unpack(_HEAD)
    message = _decode_body(reader, kind, term, transfer)
    if reader.position != len(data):
        raise reader.error(f"{len(data) - reader.position} bytes follow the message")
    return message


class _Reader:
    """Takes fields from the front; what is missing is an error at its place."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def error(self, reason: str) -> InstallMessageError:
        return InstallMessageError(len(self.data), self.position, reason)

    def unpack(self, fields: struct.Struct) -> tuple[Any, ...]:
        if len(self.data) - self.position < fields.size:
            raise self.error(f"{fields.size} bytes are expected, {len(self.data) - self.position} are left")
        found = fields.unpack_from(self.data, self.position)
        self.position += fields.size
        return found

    def take(self, size: int) -> bytes:
        if len(self.data) - self.position < size:
            raise self.error(f"{size} bytes are expected, {len(self.data) - self.position} are left")
        self.position += size
        return self.data[self.position - size : self.position]

    @property
    def left(self) -> int:
        return len(self.data) - self.position


def _decode_body(reader: _Reader, kind: int, term: int, transfer: int) -> Message:
    match kind:
        case 1:
            index, snapshot_term, indexes_bytes, data_bytes = reader.unpack(_OFFER)
            if index >= MAX_INDEX or not indexes_bytes or not data_bytes:
                raise reader.error("an offer has an index below 2**64 - 1 and two files that are not empty")
            return Offer(term, transfer, index, snapshot_term, indexes_bytes, data_bytes)
        case 2:
            return Entries(term, transfer, _decode_entries(reader))
        case 3:
            (offset,) = reader.unpack(_OFFSET)
            if not reader.left:
                raise reader.error("a chunk holds at least one byte")
            return Chunk(term, transfer, offset, reader.take(reader.left))
        case 4:
            return Cancel(term, transfer)
        case 5:
            following, offset = reader.unpack(_PROGRESS)
            return Progress(term, transfer, following - 1 if following else None, offset)
        case 6:
            (index,) = reader.unpack(_OFFSET)
            return Installed(term, transfer, index)
        case 7:
            return _decode_refused(reader, term, transfer)
    raise InstallMessageError(len(reader.data), 5, f"kind {kind} is unknown")


def _decode_entries(reader: _Reader) -> tuple[SentEntry, ...]:
    (count,) = reader.unpack(_COUNT)
    if not count:
        raise reader.error("a message with entries holds at least one")
    found: list[SentEntry] = []
    for _ in range(count):
        following, index, term, length = reader.unpack(_ENTRY)
        previous = following - 1 if following else None
        if index >= MAX_INDEX or not length or (previous is not None and previous >= index):
            raise reader.error(f"entry {index} after {previous} with {length} bytes is no entry")
        if found and previous != found[-1].entry.index:
            raise reader.error(f"entry {index} follows {previous}, not {found[-1].entry.index}")
        found.append(SentEntry(previous, LogEntry(index, term, reader.take(length))))
    return tuple(found)


def _decode_refused(reader: _Reader, term: int, transfer: int) -> Refused:
    number, at, length = reader.unpack(_REFUSED)
    if number >= len(_REFUSALS) or length > MAX_DETAIL_BYTES:
        raise reader.error(f"refusal {number} with {length} bytes of detail is unknown")
    return Refused(term, transfer, _REFUSALS[number], at, reader.take(length).decode(errors="replace"))
