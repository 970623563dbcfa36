"""What members and clients say to each other, and how it goes over TCP.

A frame is a list of byte strings: u32 count, u32 length of each, then the bytes. The first is the message as JSON;
keys, values, entries and pieces of a snapshot follow as they are. Both sides bound what they read before they read it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from replicated_kv.errors import ProtocolError, Reason, RefusedError

MAX_PARTS: Final = 4096
MAX_FRAME_BYTES: Final = 32 << 20
_U32: Final = struct.Struct(">I")
Number = Annotated[int, Field(ge=0, lt=2**63)]
Name = Annotated[str, Field(min_length=1, max_length=64)]


class Message(BaseModel):
    """`kind` names the class; whatever else JSON holds is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Announce(Message):
    """A leader asks a member to follow it in this term, and not to follow any lower one again."""

    kind: Literal["announce"] = "announce"
    term: Number
    leader: Name


class Position(Message):
    """The member follows. The last entry of its log, and up to where it is committed (0: none)."""

    kind: Literal["position"] = "position"
    index: Number
    term: Number
    commit: Number


class Append(Message):
    """Entries that follow the one of `previous` index and term; one part for each of `terms`, its payload."""

    kind: Literal["append"] = "append"
    term: Number
    leader: Name
    previous_index: Number
    previous_term: Number
    commit: Number
    terms: list[Number] = Field(max_length=MAX_PARTS - 1)


class Appended(Message):
    """`accepted`: everything up to `index` is durable, and as the leader has it. Otherwise the member's log does not
    hold the previous entry; what it holds up to `index` is committed, and so as the leader has it.
    """

    kind: Literal["appended"] = "appended"
    accepted: bool
    index: Number


class Install(Message):
    """One message of the sender of a snapshot, as the library encodes it, in the part."""

    kind: Literal["install"] = "install"
    term: Number
    leader: Name


class Installing(Message):
    """What the receiver of the snapshot answers: any number of the library's messages, a part each."""

    kind: Literal["installing"] = "installing"


class Write(Message):
    """Commands, one part each, as `Command.encode` writes them."""

    kind: Literal["write"] = "write"


class Written(Message):
    """The last of the commands is the committed entry `index`."""

    kind: Literal["written"] = "written"
    index: Number


class Read(Message):
    """The value of the key in the part."""

    kind: Literal["read"] = "read"


class Value(Message):
    """The value in the part, read from entry `index`; None and no part when there is no such key."""

    kind: Literal["value"] = "value"
    index: Number | None


class Scan(Message):
    """The first `limit` keys behind the one in the part, of whatever member is asked."""

    kind: Literal["scan"] = "scan"
    limit: int = Field(gt=0, le=(MAX_PARTS - 1) // 2)


class Page(Message):
    """A key and its value in turn, as of the entry `applied`. The end is a page without any."""

    kind: Literal["page"] = "page"
    applied: Number


class AskStatus(Message):
    kind: Literal["ask-status"] = "ask-status"


class Status(Message):
    """One member. `entries`, `segments`: what its log needs, and in how many files; `installed`: snapshots that it has
    received.
    """

    kind: Literal["status"] = "status"
    name: Name
    term: Number
    leader: Name
    last: Number
    commit: Number
    applied: Number
    snapshot: Number
    keys: Number
    entries: Number
    segments: Number
    installed: Number


class Refused(Message):
    """An error of the other side."""

    kind: Literal["refused"] = "refused"
    reason: Reason
    message: str
    leader: str = ""
    term: Number = 0


AnyMessage = Annotated[
    Announce
    | Position
    | Append
    | Appended
    | Install
    | Installing
    | Write
    | Written
    | Read
    | Value
    | Scan
    | Page
    | AskStatus
    | Status
    | Refused,
    Field(discriminator="kind"),
]
_MESSAGES: Final[TypeAdapter[Message]] = TypeAdapter(AnyMessage)
M = TypeVar("M", bound=Message)
Parts = Sequence[bytes]


class Connection:
    """Frames over one socket. One thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock

    @classmethod
    def open(cls, address: tuple[str, int], *, timeout: float) -> Connection:
        """`timeout`: seconds for the connection, and later for each read or write. OSError passes through."""
        return cls(socket.create_connection(address, timeout))

    def send(self, message: Message, parts: Parts = ()) -> None:
        """ProtocolError: it does not fit into a frame. OSError passes through."""
        frame = [message.model_dump_json().encode(), *parts]
        size = sum(map(len, frame))
        if len(frame) > MAX_PARTS or size > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame has at most {MAX_PARTS} parts and {MAX_FRAME_BYTES} bytes, not {size}")
        head = struct.pack(f">{len(frame) + 1}I", len(frame), *map(len, frame))
        self._sock.sendall(b"".join([head, *frame]))

    def receive(self) -> tuple[Message, list[bytes]]:
        """The next message and its parts. EOFError: the other side has closed. ProtocolError, OSError."""
        (count,) = _U32.unpack(self._take(_U32.size))
        if not 0 < count <= MAX_PARTS:
            raise ProtocolError(f"a frame has 1..{MAX_PARTS} parts, not {count}")
        lengths = struct.unpack(f">{count}I", self._take(_U32.size * count))
        if sum(lengths) > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {sum(lengths)}")
        data = memoryview(self._take(sum(lengths)))
        parts, at = [], 0
        for length in lengths:
            parts.append(bytes(data[at : at + length]))
            at += length
        try:
            return _MESSAGES.validate_json(parts[0]), parts[1:]
        except ValidationError as error:
            raise ProtocolError(f"not a message: {error.errors(include_input=False, include_url=False)}") from error

    def call(self, message: Message, parts: Parts = (), *, answer: type[M]) -> tuple[M, list[bytes]]:
        """Send, and receive the answer.

        RefusedError: the other side's error. ProtocolError: another answer, or none. OSError passes through.
        """
        self.send(message, parts)
        try:
            received, rest = self.receive()
        except EOFError as error:
            raise ProtocolError("the connection was closed before the answer") from error
        if isinstance(received, Refused):
            raise RefusedError(received.reason, received.message, leader=received.leader, term=received.term)
        if not isinstance(received, answer):
            raise ProtocolError(f"{answer.__name__} is due, not {type(received).__name__}")
        return received, rest

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._sock.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)
