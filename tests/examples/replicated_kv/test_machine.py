"""The state machine against a dictionary: any commands, a snapshot anywhere among them, any bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_kv.errors import CommandError
from replicated_kv.machine import MAX_KEY_BYTES, MAX_VALUE_BYTES, Command, KeyIndex, Operation

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
