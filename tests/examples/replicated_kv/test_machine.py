"""The state machine against a dictionary: any commands, a snapshot anywhere among them, any bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_kv.errors import CommandError, KeyValueError, ProtocolError, Reason, RefusedError
from replicated_kv.machine import MAX_KEY_BYTES, MAX_VALUE_BYTES, Command, KeyIndex, Operation
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

KEYS = st.sampled_from([b"a", b"b", b"\x00", b"a" * MAX_KEY_BYTES])
COMMANDS = st.one_of(
    st.builds(Command.put, KEYS, st.binary(max_size=8)),
    st.builds(Command.delete, KEYS),
    st.just(Command(Operation.NOTHING)),
)


def run(state: KeyIndex, log: Sequence[Command], first: int, last: int) -> KeyIndex:
    """Apply the entries first..last of a log, whose first entry has index 1."""
    for index in range(first, last + 1):
        state.apply(index, log[index - 1])
    return state


@given(st.lists(COMMANDS, max_size=40), st.data())
def test_it_is_a_dictionary_whose_values_are_in_the_log(log: list[Command], data: st.DataObject) -> None:
    model: dict[bytes, bytes] = {}
    for command in log:
        if command.operation is Operation.PUT:
            model[command.key] = command.value
        elif command.operation is Operation.DELETE:
            model.pop(command.key, None)
    state = run(KeyIndex(), log, 1, len(log))
    found = {key: log[index - 1] for key, index in state.page(b"", 100)}
    assert {key: command.value for key, command in found.items()} == model
    assert all(command.key == key for key, command in found.items())
    assert len(state) == len(model)
    # What is live is exactly what a read needs.
    assert set(state.live()) == {state.find(key) for key in model}
    # A member that begins with a snapshot ends in the same state, and nothing that was dead is live again.
    cut = data.draw(st.integers(0, len(log)))
    before = run(KeyIndex(), log, 1, cut)
    assert run(KeyIndex.load(before.dump()), log, cut + 1, len(log)) == state
    assert {index for index in state.live() if index <= cut} <= set(before.live())


def test_pages_follow_each_other() -> None:
    state = KeyIndex((b"%02d" % number, number) for number in range(7))
    first = state.page(b"", 3)
    rest = state.page(first[-1][0], 100)
    assert [index for _, index in first + rest] == list(range(7))
    assert state.page(rest[-1][0], 1) == []


@given(COMMANDS)
def test_a_command_survives_its_encoding(command: Command) -> None:
    payload = command.encode()
    assert payload
    assert Command.decode(payload) == command


@given(st.binary(max_size=12) | st.builds(bytes.__add__, st.sampled_from([b"\x00", b"\x01", b"\x02"]), st.binary()))
def test_other_bytes_are_refused_or_mean_one_command(payload: bytes) -> None:
    try:
        command = Command.decode(payload)
    except CommandError:
        return
    assert command.encode() == payload


@given(st.binary(max_size=60))
def test_other_states_are_refused_or_mean_one_state(data: bytes) -> None:
    try:
        state = KeyIndex.load(data)
    except CommandError:
        return
    assert len(state.dump()) <= len(data)
    assert KeyIndex.load(state.dump()) == state


@pytest.mark.parametrize(
    "command",
    [
        Command.put(b"", b""),
        Command.put(b"k" * (MAX_KEY_BYTES + 1), b""),
        Command.put(b"k", b"v" * (MAX_VALUE_BYTES + 1)),
        Command.delete(b""),
        Command(Operation.NOTHING, b"k"),
    ],
)
def test_sizes_are_bounded(command: Command) -> None:
    with pytest.raises(CommandError, match=r"has (1\.\.1024|at most)"):
        command.encode()


# Frames: what is sent is received; nothing is read that is larger than a frame may be, or no message.

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
