"""Primitives as they are written. ValueError and its kin (struct.error, OverflowError) mean that the format cannot hold
a value; `codec.encode` names it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

from compaction.catalogs.codec.texts import encode_text
from compaction.catalogs.model.hybrid import MINIMUM

_MAX = 2**63 - 1

T = TypeVar("T")


class Trace:
    """What a decoded value held that the model does not, handed out in the order of reading."""

    __slots__ = ("_headers", "_residue")

    def __init__(self, headers: Sequence[int], residue: Sequence[object]) -> None:
        self._headers = iter(headers)
        self._residue = iter(residue)

    def header(self) -> int:
        return next(self._headers)

    def residue(self) -> object:
        return next(self._residue)


class Writer:
    """`trace`: None for the newest form, else the value's own versions and discarded values are written again."""

    __slots__ = ("out", "trace")

    def __init__(self, trace: Trace | None = None) -> None:
        self.out = bytearray()
        self.trace = trace

    def varint(self, value: int) -> None:
        if not -_MAX - 1 <= value <= _MAX:
            raise ValueError(f"{value} does not fit into 64 bits")
        value = (value + 1) & 0xFFFFFFFFFFFFFFFF
        while value > 0x7F:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)

    def number(self, value: int) -> None:
        if not -0x80000000 <= value <= 0x7FFFFFFF:
            raise ValueError(f"{value} does not fit into 32 bits")
        self.varint(value)

    def byte(self, value: int) -> None:
        self.out.append(value)

    def boolean(self, value: bool) -> None:
        self.out.append(1 if value else 0)

    def packed(self, form: str, *values: float) -> None:
        """Fixed numbers, little-endian, as `struct` names them."""
        self.out += struct.pack("<" + form, *values)

    def raw(self, data: bytes) -> None:
        self.out += data

    def text(self, text: str) -> None:
        data = encode_text(text)
        self.varint(len(data))
        self.out += data

    def texts(self, texts: Sequence[str]) -> None:
        self.varint(len(texts))
        for text in texts:
            self.text(text)

    def int32s(self, values: Iterable[int]) -> None:
        values = tuple(values)
        self.varint(len(values))
        self.packed(f"{len(values)}i", *values)

    def timestamp(self, value: int) -> None:
        self.varint(self.instead(value) if value == MINIMUM else value)

    def instead(self, value: T) -> T:
        """The discarded value that stood here when the value was read; `value` when there is none."""
        if self.trace is None:
            return value
        return cast(T, self.trace.residue())
