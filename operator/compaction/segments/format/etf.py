"""The subset of the Erlang external term format that segment logs use, exact to the byte and safe on hostile bytes.

Why not a library: docs/adr/0001-erlang-terms.md. Memory is bounded by the input: a count is believed only if that many
elements can still be in the remaining bytes, nesting is limited, compressed terms are refused.
Failures are `TermFormatError`. Tags: docs/design/segment-files.md#erlang-terms.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from compaction.segments.errors import TermFormatError

VERSION: Final = 131
SMALL_INTEGER: Final = 97
INTEGER: Final = 98
SMALL_TUPLE: Final = 104
LARGE_TUPLE: Final = 105
NIL: Final = 106
STRING: Final = 107
LIST: Final = 108
BINARY: Final = 109
SMALL_BIG: Final = 110
LARGE_BIG: Final = 111
MAP: Final = 116
ATOM_LATIN1: Final = 100
SMALL_ATOM_LATIN1: Final = 115
ATOM_UTF8: Final = 118
SMALL_ATOM_UTF8: Final = 119

MAX_DEPTH: Final = 64
MAX_BIG_BYTES: Final = 64
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_I32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Atom:
    """An Erlang atom."""

    name: str


Term = int | bytes | Atom | list["Term"] | tuple["Term", ...] | dict["Term", "Term"]


def encode_integer(value: int) -> bytes:
    """One integer as `term_to_binary` writes it: u8, i32, else a big number with a little-endian magnitude."""
    if 0 <= value <= 255:
        return bytes((SMALL_INTEGER, value))
    if -(2**31) <= value < 2**31:
        return bytes((INTEGER,)) + _I32.pack(value)
    magnitude = abs(value).to_bytes((abs(value).bit_length() + 7) // 8, "little")
    if len(magnitude) > MAX_BIG_BYTES:
        raise TermFormatError(f"an integer of {len(magnitude)} bytes is larger than any index")
    return bytes((SMALL_BIG, len(magnitude), value < 0)) + magnitude


def _encode_atom(name: str) -> bytes:
    data = name.encode("utf-8")
    if len(name) > 255:
        raise TermFormatError(f"an atom has at most 255 characters, not {len(name)}")
    if len(data) <= 255:
        return bytes((SMALL_ATOM_UTF8, len(data))) + data
    return bytes((ATOM_UTF8,)) + _U16.pack(len(data)) + data


def is_string(items: list[Term]) -> bool:
    """Return whether `term_to_binary` writes this list as STRING_EXT: 1..65535 integers, all 0..255."""
    return 0 < len(items) <= 0xFFFF and all(type(item) is int and 0 <= item <= 255 for item in items)


def _encode_body(term: Term) -> bytes:
    if isinstance(term, int):
        return encode_integer(term)
    if isinstance(term, bytes):
        return bytes((BINARY,)) + _U32.pack(len(term)) + term
    if isinstance(term, Atom):
        return _encode_atom(term.name)
    if isinstance(term, tuple):
        size = len(term)
        head = bytes((SMALL_TUPLE, size)) if size <= 255 else bytes((LARGE_TUPLE,)) + _U32.pack(size)
        return head + b"".join(map(_encode_body, term))
    if isinstance(term, dict):
        pairs = (_encode_body(key) + _encode_body(value) for key, value in term.items())
        return bytes((MAP,)) + _U32.pack(len(term)) + b"".join(pairs)
    if not term:
        return bytes((NIL,))
    if is_string(term):
        return bytes((STRING,)) + _U16.pack(len(term)) + bytes(item for item in term if isinstance(item, int))
    return bytes((LIST,)) + _U32.pack(len(term)) + b"".join(map(_encode_body, term)) + bytes((NIL,))


def encode(term: Term) -> bytes:
    """A term with its leading version byte, as `term_to_binary/1` writes it."""
    return bytes((VERSION,)) + _encode_body(term)


class Cursor:
    """A position in bytes from which terms are taken one after the other."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def version(self) -> None:
        """Take the leading 131."""
        if self.byte() != VERSION:
            raise TermFormatError(f"an Erlang term begins with byte {VERSION}, not {self.data[self.position - 1]}")

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def byte(self) -> int:
        if self.position >= len(self.data):
            raise TermFormatError(f"the term is cut off at byte {self.position}")
        self.position += 1
        return self.data[self.position - 1]

    def take(self, size: int) -> bytes:
        if size > self.remaining:
            raise TermFormatError(f"the term is cut off: {size} bytes expected at byte {self.position}")
        self.position += size
        return self.data[self.position - size : self.position]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def count(self, value: int) -> int:
        """A claimed number of elements, refused when the remaining bytes cannot hold one byte for each."""
        if value > self.remaining:
            raise TermFormatError(f"{value} elements claimed, {self.remaining} bytes left at byte {self.position}")
        return value

    def integer(self, tag: int) -> int:
        """The integer whose tag was just taken."""
        if tag == SMALL_INTEGER:
            return self.byte()
        if tag == INTEGER:
            return int(_I32.unpack(self.take(4))[0])
        if tag not in (SMALL_BIG, LARGE_BIG):
            raise TermFormatError(f"an integer is expected at byte {self.position - 1}, not a term with tag {tag}")
        size = self.byte() if tag == SMALL_BIG else self.u32()
        if size > MAX_BIG_BYTES:
            raise TermFormatError(f"an integer of {size} bytes at byte {self.position} is larger than any index")
        sign = self.byte()
        magnitude = int.from_bytes(self.take(size), "little")
        return -magnitude if sign else magnitude

    def term(self, depth: int = 0) -> Term:
        """The next term, of any kind in the subset."""
        if depth > MAX_DEPTH:
            raise TermFormatError(f"terms are nested deeper than {MAX_DEPTH}")
        tag = self.byte()
        if tag in (SMALL_INTEGER, INTEGER, SMALL_BIG, LARGE_BIG):
            return self.integer(tag)
        if tag == NIL:
            return []
        if tag == BINARY:
            return self.take(self.u32())
        if tag == STRING:
            return list(self.take(self.u16()))
        if tag in (ATOM_LATIN1, SMALL_ATOM_LATIN1, ATOM_UTF8, SMALL_ATOM_UTF8):
            return self._atom(tag)
        return self._compound(tag, depth + 1)

    def _atom(self, tag: int) -> Atom:
        size = self.byte() if tag in (SMALL_ATOM_LATIN1, SMALL_ATOM_UTF8) else self.u16()
        data = self.take(size)
        try:
            return Atom(data.decode("latin-1" if tag in (ATOM_LATIN1, SMALL_ATOM_LATIN1) else "utf-8"))
        except UnicodeDecodeError as error:
            raise TermFormatError(f"an atom is not valid UTF-8: {data[:32]!r}") from error

    def _compound(self, tag: int, depth: int) -> Term:
        if tag in (SMALL_TUPLE, LARGE_TUPLE):
            size = self.count(self.byte() if tag == SMALL_TUPLE else self.u32())
            return tuple(self.term(depth) for _ in range(size))
        if tag == LIST:
            items = [self.term(depth) for _ in range(self.count(self.u32()))]
            if self.byte() != NIL:
                raise TermFormatError("a list has an improper tail")
            return items
        if tag == MAP:
            return self._map(depth)
        raise TermFormatError(f"tag {tag} at byte {self.position - 1} is outside the supported subset")

    def _map(self, depth: int) -> Term:
        result: dict[Term, Term] = {}
        for _ in range(self.count(self.u32())):
            key = self.term(depth)
            value = self.term(depth)
            try:
                result[key] = value
            except TypeError as error:
                raise TermFormatError("a map key is a list or a map, which is not supported") from error
        return result


def decode(data: bytes) -> Term:
    """The one term that `data` holds; trailing bytes are an error."""
    cursor = Cursor(data)
    cursor.version()
    term = cursor.term()
    if cursor.remaining:
        raise TermFormatError(f"{cursor.remaining} bytes follow the term")
    return term
