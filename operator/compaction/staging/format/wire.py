"""Protocol Buffers on the wire, for the few messages of a staging area: fields known and unknown, in bounded memory.

A message is a list of fields (`WireField`), as they came. docs/design/staging.md#messages has the messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from compaction.staging.format.varints import decode_varint, encode_varint

MAX_FIELD: Final = (1 << 29) - 1
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


class WireType(IntEnum):
    """How a field's value is written. The two group types of old are refused."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


_KINDS: Final = {kind.value: kind for kind in WireType}
_FIXED: Final = {WireType.FIXED64: 8, WireType.FIXED32: 4}
"""Bytes of a value without a length of its own."""


class WireError(ValueError):
    """What is wrong with a message, and at which of its bytes."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason


@dataclass(frozen=True, slots=True)
class WireField:
    """One field. `value`: an unsigned number for VARINT, else the bytes. `raw`: the field as it was read."""

    number: int
    kind: WireType
    value: int | bytes
    raw: bytes
    offset: int

    def number_value(self) -> int:
        """A number of a VARINT field, unsigned. WireError for another kind."""
        if not isinstance(self.value, int):
            raise WireError(self.offset, f"field {self.number} is no number")
        return self.value

    def signed_value(self) -> int:
        """A number of a VARINT field, of 64 bits with a sign."""
        value = self.number_value()
        return value - _WRAP if value >= _SIGN else value

    def bytes_value(self) -> bytes:
        """The bytes of a BYTES field. WireError for another kind."""
        if self.kind is not WireType.BYTES or not isinstance(self.value, bytes):
            raise WireError(self.offset, f"field {self.number} is no bytes")
        return self.value

    def text_value(self) -> str:
        """The bytes of a BYTES field as UTF-8. WireError when they are not."""
        try:
            return self.bytes_value().decode()
        except UnicodeDecodeError:
            raise WireError(self.offset, f"field {self.number} is not UTF-8") from None


def read_fields(data: bytes) -> Iterator[WireField]:
    """The fields of a message in order. Raises WireError."""
    at = 0
    while at < len(data):
        begin = at
        try:
            key, at = decode_varint(data, at)
            number, low = key >> 3, key & 7
            kind = _KINDS.get(low)
            if kind is None or not 0 < number <= MAX_FIELD:
                raise WireError(begin, f"field {min(number, MAX_FIELD)} of type {low}")
            if kind is WireType.VARINT:
                value: int | bytes
                value, at = decode_varint(data, at)
            else:
                length = _FIXED.get(kind)
                if length is None:
                    length, at = decode_varint(data, at)
                if length > len(data) - at:
                    raise WireError(begin, f"field {number} claims {length} bytes of {len(data) - at}")
                value, at = data[at : at + length], at + length
        except (IndexError, OverflowError):
            raise WireError(begin, "it is cut off") from None
        except ValueError as error:
            raise error if isinstance(error, WireError) else WireError(begin, str(error)) from None
        yield WireField(number, kind, value, data[begin:at], begin)


def number_field(number: int, value: int) -> bytes:
    """A VARINT field; nothing for 0, the default. Negative numbers take ten bytes."""
    return encode_varint(number << 3 | WireType.VARINT) + encode_varint(value % _WRAP) if value else b""


def bytes_field(number: int, value: bytes, *, always: bool = False) -> bytes:
    """A BYTES field; nothing for an empty one unless `always`."""
    if not value and not always:
        return b""
    return encode_varint(number << 3 | WireType.BYTES) + encode_varint(len(value)) + value
