"""The state machine: which entry of the log holds the value of each key.

The values themselves are nowhere but in the log. An entry whose key was written again, or deleted, is dead; all others
are the live indexes of a snapshot. Pure: no clock, no file, no socket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from compaction.segments.snapshot.live_indexes import LiveSet
from replicated_kv.errors import CommandError

MAX_KEY_BYTES: Final = 1024
MAX_VALUE_BYTES: Final = 256 * 1024
_HEAD: Final = struct.Struct(">BH")
_ITEM: Final = struct.Struct(">QH")


class Operation(IntEnum):
    """NOTHING is the first entry of a leader: once it is committed, so is everything before it."""

    NOTHING = 0
    PUT = 1
    DELETE = 2


@dataclass(frozen=True, slots=True)
class Command:
    """What one entry of the log says. Encoded: u8 operation, u16 length of the key, key, value."""

    operation: Operation
    key: bytes = b""
    value: bytes = b""

    @classmethod
    def put(cls, key: bytes, value: bytes) -> Command:
        return cls(Operation.PUT, key, value)

    @classmethod
    def delete(cls, key: bytes) -> Command:
        return cls(Operation.DELETE, key)

    def encode(self) -> bytes:
        """CommandError: the key or the value has a size that the store does not take."""
        if (self.operation is not Operation.NOTHING) != (0 < len(self.key) <= MAX_KEY_BYTES):
            raise CommandError(f"a key has 1..{MAX_KEY_BYTES} bytes, not {len(self.key)}")
        if len(self.value) > MAX_VALUE_BYTES:
            raise CommandError(f"a value has at most {MAX_VALUE_BYTES} bytes, not {len(self.value)}")
        return _HEAD.pack(self.operation, len(self.key)) + self.key + self.value

    @classmethod
    def decode(cls, payload: bytes) -> Command:
        """CommandError: the bytes are no command."""
        if len(payload) < _HEAD.size:
            raise CommandError(f"a command has at least {_HEAD.size} bytes, not {len(payload)}")
        operation, length = _HEAD.unpack_from(payload)
        begin = _HEAD.size + length
        if operation not in Operation.__members__.values() or len(payload) < begin:
            raise CommandError(f"operation {operation} with a key of {length} bytes in {len(payload)} bytes")
        command = cls(Operation(operation), payload[_HEAD.size : begin], payload[begin:])
        if command.encode() != payload or (command.value and command.operation is not Operation.PUT):
            raise CommandError(f"{command.operation.name} does not take the rest of its {len(payload)} bytes")
        return command


class KeyIndex:
    """Key -> index of the entry that holds its value. The same commands give the same state on every member."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[bytes, int]] = ()) -> None:
        self._entries = dict(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyIndex) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # it changes

    def apply(self, index: int, command: Command) -> None:
        """The committed entry of this index; indexes come in ascending order, each once."""
        if command.operation is Operation.PUT:
            self._entries[command.key] = index
        elif command.operation is Operation.DELETE:
            # The entry of the deletion itself is dead at once: the state of a snapshot does not have the key either.
            self._entries.pop(command.key, None)

    def find(self, key: bytes) -> int | None:
        """The index of the entry with the key's value; None when there is no such key."""
        return self._entries.get(key)

    def page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """The first `limit` keys behind `after`, in their order, each with its index."""
        return sorted(item for item in self._entries.items() if item[0] > after)[:limit]

    def live(self) -> LiveSet:
        """The indexes of all entries that hold a value."""
        return LiveSet.from_indexes(self._entries.values())

    def dump(self) -> bytes:
        """The state for a snapshot, in the order of the keys: u64 index, u16 length of the key, key; for each key."""
        items = sorted(self._entries.items())
        return b"".join(_ITEM.pack(index, len(key)) + key for key, index in items)

    @classmethod
    def load(cls, state: bytes) -> KeyIndex:
        """What `dump` wrote. CommandError: the bytes are no state."""
        entries: list[tuple[bytes, int]] = []
        at = 0
        while at < len(state):
            if len(state) - at < _ITEM.size:
                raise CommandError(f"the state ends in the middle of an item, at byte {at}")
            index, length = _ITEM.unpack_from(state, at)
            at += _ITEM.size + length
            if not 0 < length <= MAX_KEY_BYTES or at > len(state):
                raise CommandError(f"the state has a key of {length} bytes that ends at byte {at} of {len(state)}")
            entries.append((state[at - length : at], index))
        return cls(entries)
