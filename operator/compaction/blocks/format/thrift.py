"""Thrift's compact protocol, read into plain values with every cost bounded.

A Parquet footer is a struct in it. The library that reads Parquet makes about a kilobyte from as little as three bytes
of a footer, recurses as deep as a schema is nested, and ends the process over some contradictions; so whatever a
footer holds is checked here first. A struct is a dict by field number, of int, bool, float, bytes, list and dict.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

MAX_STRUCTS: Final = 200_000
MAX_VALUES: Final = 2_000_000
MAX_NESTING: Final = 32
"""Of structs and lists; Parquet needs about ten."""
ENCRYPTION_ALGORITHM: Final = 8
"""The field of a plain footer whose columns are encrypted. Such a footer is signed."""
SIGNATURE_BYTES: Final = 28
"""Nonce and tag of AES-GCM."""

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    0,
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
)

Struct = dict[int, Any]


class FooterError(Exception):
    """The footer is wrong. `costly`: it may be sound, but it is more than we accept."""

    def __init__(self, reason: str, *, costly: bool = False) -> None:
        super().__init__(reason)
        self.costly = costly


@dataclass(slots=True)
class _Reader:
    data: bytes
    position: int = 0
    structs: int = 0
    values: int = 0


def decode(data: bytes) -> Struct:
    """One struct that takes all of `data`, but for the signature of one that says it is signed. Raises FooterError."""
    value, taken = decode_front(data)
    rest = len(data) - taken
    if rest and not (rest == SIGNATURE_BYTES and ENCRYPTION_ALGORITHM in value):
        raise FooterError(f"its footer has {rest} bytes too many")
    return value


def decode_front(data: bytes) -> tuple[Struct, int]:
    """The struct that `data` begins with, and how many bytes it takes: a page's header. Raises FooterError."""
    reader = _Reader(data)
    try:
        return _struct(reader, 0), reader.position
    except IndexError:
        raise FooterError("its footer is cut off") from None


def decode_up_to(data: bytes, number: int) -> Struct:
    """The fields of a struct that come before and with this one, as all writers have them in their order: a footer's
    schema without its row groups, which cost many times as much. Raises FooterError.
    """
    try:
        return _struct(_Reader(data), 0, last=number)
    except IndexError:
        raise FooterError("its footer is cut off") from None


def _struct(reader: _Reader, nesting: int, last: int = MAX_VALUES) -> Struct:
    reader.structs += 1
    if reader.structs > MAX_STRUCTS:
        raise FooterError(f"its footer holds more than {MAX_STRUCTS} structs", costly=True)
    if nesting > MAX_NESTING:
        raise FooterError("its footer is nested too deeply", costly=True)
    fields: Struct = {}
    number = 0
    data = reader.data
    while number < last:
        header = data[reader.position]
        reader.position += 1
        kind = header & 15
        if kind == _STOP:
            return fields
        number = number + (header >> 4) if header >> 4 else _signed(reader)
        if number in fields:
            # Readers differ in which of both they take.
            raise FooterError(f"its footer has field {number} of a struct twice")
        fields[number] = kind == _TRUE if kind in {_TRUE, _FALSE} else _value(reader, kind, nesting)
    return fields


def _value(reader: _Reader, kind: int, nesting: int) -> Any:
    """A field's value, or an element of a list (whose truth, unlike a field's, is a byte)."""
    reader.values += 1
    if reader.values > MAX_VALUES:
        raise FooterError(f"its footer holds more than {MAX_VALUES} values", costly=True)
    if _I16 <= kind <= _I64:
        return _signed(reader)
    if kind == _BINARY:
        return _bytes(reader, _unsigned(reader))
    if kind == _STRUCT:
        return _struct(reader, nesting + 1)
    if kind in {_LIST, _SET}:
        return _list(reader, nesting)
    if kind in {_TRUE, _FALSE, _BYTE}:
        value = reader.data[reader.position]
        reader.position += 1
        return value == 1 if kind != _BYTE else value
    if kind == _DOUBLE:
        return struct.unpack("<d", _bytes(reader, 8))[0]
    # Parquet has no maps.
    raise FooterError(f"its footer has a value of the unknown type {kind}")


def _list(reader: _Reader, nesting: int) -> list[Any]:
    header = reader.data[reader.position]
    reader.position += 1
    size, kind = header >> 4, header & 15
    if size == 15:
        size = _unsigned(reader)
    if size > len(reader.data) - reader.position:
        raise FooterError(f"its footer has a list of {size} in {len(reader.data) - reader.position} bytes")
    if nesting > MAX_NESTING:
        raise FooterError("its footer is nested too deeply", costly=True)
    return [_value(reader, kind, nesting + 1) for _ in range(size)]


def _bytes(reader: _Reader, size: int) -> bytes:
    end = reader.position + size
    if end > len(reader.data):
        raise IndexError
    value = reader.data[reader.position : end]
    reader.position = end
    return value


def _unsigned(reader: _Reader) -> int:
    value = shift = 0
    while True:
        byte = reader.data[reader.position]
        reader.position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise FooterError("its footer has a number of more than 64 bits")
    if value >> 64:
        raise FooterError("its footer has a number of more than 64 bits")
    return value


def _signed(reader: _Reader) -> int:
    value = _unsigned(reader)
    return (value >> 1) ^ -(value & 1)
