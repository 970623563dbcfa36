"""Frames: what is sent is received; nothing is read that is larger than a frame may be, or no message."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from replicated_kv.errors import KeyValueError, ProtocolError, Reason, RefusedError
from replicated_kv.members import format_members, local_members, parse_members
from replicated_kv.messages import (
    MAX_FRAME_BYTES,
    MAX_PARTS,
    Append,
    AskStatus,
    Connection,
    Message,
    Position,
    Refused,
    Scan,
    Value,
)

ENTRIES = Append(term=3, leader="a", previous_index=7, previous_term=2, commit=5, terms=[3, 3])


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and the bare socket of the other side."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Connection.open(server.getsockname(), timeout=60) as near,
        server.accept()[0] as far,
    ):
        far.settimeout(60)
        yield near, far


def test_a_message_and_its_parts_arrive_as_they_were(ends: tuple[Connection, socket.socket]) -> None:
    near, far = ends
    there = Connection(far)
    for message, parts in ((ENTRIES, [b"", b"\x00" * 100_000]), (Value(index=None), []), (Scan(limit=9), [b"k"])):
        near.send(message, parts)
        assert there.receive() == (message, parts)
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        near.receive()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (struct.pack(">I", 0), "parts, not 0"),
        (struct.pack(">I", MAX_PARTS + 1), f"parts, not {MAX_PARTS + 1}"),
        (struct.pack(">2I", 1, MAX_FRAME_BYTES + 1), "at most"),
        (struct.pack(">3I", 2, 2**32 - 1, 2**32 - 1), "at most"),
        (struct.pack(">2I", 1, 3) + b"{}}", "not a message"),
        (struct.pack(">2I", 1, 2) + b"{}", "not a message"),
        (struct.pack(">2I", 1, 18) + b'{"kind":"unknown"}', "not a message"),
        (struct.pack(">2I", 1, 27) + b'{"kind":"write","other": 1}', "not a message"),
        (struct.pack(">2I", 1, 26) + b'{"kind":"scan","limit":-1}', "not a message"),
    ],
)
def test_what_is_no_frame_is_refused(ends: tuple[Connection, socket.socket], data: bytes, what: str) -> None:
    near, far = ends
    far.sendall(data)
    with pytest.raises(ProtocolError, match=what):
        near.receive()


def test_a_frame_that_ends_early_is_the_end(ends: tuple[Connection, socket.socket]) -> None:
    near, far = ends
    far.sendall(struct.pack(">2I", 1, 100) + b"{")
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        near.receive()


@pytest.mark.parametrize("parts", [[b""] * MAX_PARTS, [bytes(MAX_FRAME_BYTES)]])
def test_too_much_is_not_sent(ends: tuple[Connection, socket.socket], parts: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="at most"):
        ends[0].send(AskStatus(), parts)


@pytest.mark.parametrize(
    ("answer", "error", "what"),
    [
        (Refused(reason=Reason.NOT_LEADER, message="b leads", leader="b", term=4), RefusedError, "b leads"),
        (Position(index=1, term=1, commit=0), ProtocolError, "Value is due, not Position"),
        (None, ProtocolError, "closed before the answer"),
    ],
)
def test_a_call_has_one_answer(
    ends: tuple[Connection, socket.socket], answer: Message | None, error: type[Exception], what: str
) -> None:
    near, far = ends
    there = Connection(far)
    if answer is None:
        far.shutdown(socket.SHUT_WR)
    else:
        there.send(answer)
    with pytest.raises(error, match=what) as found:
        near.call(AskStatus(), answer=Value)
    if isinstance(found.value, RefusedError):
        assert (found.value.reason, found.value.leader, found.value.term) == (Reason.NOT_LEADER, "b", 4)


def test_members_are_written_as_they_are_read() -> None:
    members = local_members(["a", "b", "c"])
    assert parse_members(format_members(members)) == members
    assert len(set(members.values())) == 3


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=127.0.0.1", "a=127.0.0.1:0", "a=127.0.0.1:1,a=127.0.0.1:2", "a=10.0.0.1:1", "a=127.0.0.1:99999"],
)
def test_other_members_are_refused(text: str) -> None:
    with pytest.raises(KeyValueError, match="is not a"):
        parse_members(text)
