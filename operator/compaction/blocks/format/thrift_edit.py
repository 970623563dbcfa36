"""Footers that are changed in places: Thrift's compact protocol with the types of its values.

`thrift` reads a footer into plain values, which is all that checks need; what is to be written again needs their types
too. A value is a pair of its type and itself: a struct a dict by field number, a list the type of its elements and
them. What is not changed is written as it was, fields that we do not know included. For footers that were checked
before: nothing bounds what this costs.
"""

from __future__ import annotations

from typing import Any, Final

from compaction.blocks.format.thrift import FooterError

TRUTH, BYTE, I32, I64, BINARY, LIST, STRUCT = 1, 3, 5, 6, 8, 9, 12
_FALSE: Final = 2
_NUMBERS: Final = (4, I32, I64)
_DOUBLE: Final = 7
_SET: Final = 10
_SHORT: Final = 15
"""Lists of so many elements and more have their number after their head."""

Typed = dict[int, tuple[int, Any]]


def parse(data: bytes) -> Typed:
    """The struct that `data` begins with. Raises FooterError where it is none."""
    try:
        return _struct(data, 0)[0]
    except IndexError:
        raise FooterError("its footer is cut off") from None


def written(value: Typed) -> bytes:
    """The inverse."""
    found = bytearray()
    _write_struct(found, value)
    return bytes(found)


def _struct(data: bytes, at: int) -> tuple[Typed, int]:
    fields: Typed = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _number(data, at)
            number = (number >> 1) ^ -(number & 1)
        if kind in (TRUTH, _FALSE):
            fields[number] = (TRUTH, kind == TRUTH)
        else:
            value, at = _value(data, at, kind)
            fields[number] = (kind, value)


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == STRUCT:
        return _struct(data, at)
    if kind in (LIST, _SET):
        size, kind = data[at] >> 4, data[at] & 15
        at += 1
        if size == _SHORT:
            size, at = _number(data, at)
        elements = []
        for _ in range(size):
            element, at = (data[at], at + 1) if kind in (TRUTH, _FALSE) else _value(data, at, kind)
            elements.append(element)
        return (kind, elements), at
    if kind in _NUMBERS:
        number, at = _number(data, at)
        return (number >> 1) ^ -(number & 1), at
    if kind == BINARY:
        size, at = _number(data, at)
    elif kind in (BYTE, _DOUBLE):
        size = 1 if kind == BYTE else 8
    else:
        raise FooterError(f"its footer has a value of the unknown type {kind}")
    return data[at : at + size], at + size


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _write_struct(out: bytearray, value: Typed) -> None:
    last = 0
    for number in sorted(value):
        kind, content = value[number]
        head = _FALSE if kind == TRUTH and not content else kind
        if 0 < number - last <= _SHORT:
            out.append((number - last) << 4 | head)
        else:
            out.append(head)
            _write_number(out, number << 1)
        if kind != TRUTH:
            _write(out, kind, content)
        last = number
    out.append(0)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, _SET):
        inner, elements = value
        out.append(min(len(elements), _SHORT) << 4 | inner)
        if len(elements) >= _SHORT:
            _write_number(out, len(elements))
        for element in elements:
            if inner in (TRUTH, _FALSE):
                out.append(element)
            else:
                _write(out, inner, element)
    elif kind in _NUMBERS:
        _write_number(out, (value << 1) ^ (value >> 63))
    else:
        if kind == BINARY:
            _write_number(out, len(value))
        out += value


def _write_number(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
