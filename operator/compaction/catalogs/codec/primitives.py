"""Primitives of the format: numbers, texts and nested objects, read in one pass and written."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NoReturn, TypeVar, cast

from compaction.catalogs.errors import CorruptCatalogValueError, UnsupportedCatalogValueError
from compaction.catalogs.model.descriptors import MINIMUM

# Numbers of the types that a value is built from (docs/design/catalogs.md#types).


class TypeId(IntEnum):
    """Type of an object on the wire, by its number."""

    ALTER_COLUMN = 0
    ALTER_ZONE = 1
    NEW_ZONE = 2
    DROP_COLUMN = 3
    DROP_INDEX = 4
    DROP_TABLE = 5
    DROP_ZONE = 6
    MAKE_INDEX_AVAILABLE = 7
    REMOVE_INDEX = 8
    START_BUILDING_INDEX = 9
    NEW_COLUMN = 10
    NEW_INDEX = 11
    NEW_SYS_VIEW = 12
    NEW_TABLE = 13
    RENAME_TABLE = 14
    ID_GENERATOR = 15
    SNAPSHOT = 16
    VERSIONED_UPDATE = 17
    RENAME_INDEX = 18
    SET_DEFAULT_ZONE = 19
    NEW_SCHEMA = 20
    DROP_SCHEMA = 21
    HASH_INDEX = 22
    SORTED_INDEX = 23
    SCHEMA = 24
    STORAGE_PROFILE = 25
    STORAGE_PROFILES = 26
    SYSTEM_VIEW = 27
    TABLE = 28
    TABLE_COLUMN = 29
    TABLE_VERSION = 30
    TABLE_SCHEMA_VERSIONS = 31
    ZONE = 32
    ALTER_TABLE_PROPERTIES = 33


# Modified UTF-8: zero takes two bytes, characters above U+FFFF are two surrogates of three bytes each; a surrogate
# may stand alone (docs/design/catalogs.md#primitives).

_FOUR_BYTES: Final = re.compile(rb"[\xf0-\xff\x00]")
_ABOVE: Final = re.compile("[\U00010000-\U0010ffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def decode_text(data: bytes) -> str:
    """The characters; pairs of surrogates become one character. ValueError when `data` is not modified UTF-8."""
    if _FOUR_BYTES.search(data) is not None:
        raise ValueError("a byte that modified UTF-8 has not")
    text = data.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
    if _SURROGATE.search(text) is not None:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def encode_text(text: str) -> bytes:
    """`decode_text` in reverse, byte for byte."""
    if not text.isascii():
        text = _ABOVE.sub(_pair, text)
    return text.encode("utf-8", "surrogatepass").replace(b"\x00", b"\xc0\x80")


def _pair(found: re.Match[str]) -> str:
    number = ord(found[0]) - 0x10000
    return chr(0xD800 + (number >> 10)) + chr(0xDC00 + (number & 0x3FF))


def text_order(text: str) -> bytes:
    """Key that sorts as UTF-16 code units do, the order of the reference implementation."""
    return text.encode("utf-16-be", "surrogatepass")


# One pass over the bytes of a value: an index moves, nothing is copied but texts, and no claim of a length is
# believed before the bytes are there (docs/design/catalogs.md#primitives).

_INT32: Final = struct.Struct("<i")
_INT64: Final = struct.Struct("<q")
_DOUBLE: Final = struct.Struct("<d")


class ValueReader:
    """Primitives. `at` is the offset of the next byte.

    A read past the end raises IndexError or struct.error, which `codec.decode` turns into the error of a truncated
    value. `headers` and `residue` collect what the model does not keep, in the order of reading: versions of
    serializers, and values that readers discard (docs/design/catalogs.md#exact-bytes).
    """

    __slots__ = ("at", "data", "headers", "name", "residue")

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.at = 0
        self.headers: list[int] = []
        self.residue: list[object] = []

    def corrupt(self, reason: str, at: int | None = None) -> NoReturn:
        raise CorruptCatalogValueError(self.name, self.at if at is None else at, reason)

    def unsupported(self, reason: str, at: int) -> NoReturn:
        raise UnsupportedCatalogValueError(self.name, at, reason)

    def varint(self) -> int:
        """A signed 64-bit integer that is stored plus one."""
        byte = self.data[self.at]
        if byte < 0x80:
            self.at += 1
            return byte - 1
        return self._long_varint()

    def _long_varint(self) -> int:
        data, start = self.data, self.at
        value = shift = 0
        for at in range(start, start + 10):
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        else:
            self.corrupt("a number of more than ten bytes")
        if not byte:
            self.corrupt("a number that is longer than it has to be")
        value -= 1
        if value >= 1 << 63:
            if value >= (1 << 64) - 1:
                self.corrupt("a number of more than 64 bits")
            value -= 1 << 64
        self.at = at + 1
        return value

    def number(self) -> int:
        """A varint that fits into 32 bits: an id, a version, a setting."""
        start = self.at
        byte = self.data[start]
        if byte < 0x80:
            self.at = start + 1
            return byte - 1
        value = self._long_varint()
        if not -0x80000000 <= value <= 0x7FFFFFFF:
            self.corrupt(f"{value} does not fit into 32 bits", start)
        return value

    def count(self) -> int:
        """The number of the elements that follow, each of which takes a byte at least."""
        start = self.at
        count = self.number()
        if not 0 <= count <= len(self.data) - self.at:
            left = len(self.data) - self.at
            self.corrupt(f"a list claims {count} elements, {left} bytes are left", start)
        return count

    def byte(self) -> int:
        """An unsigned byte."""
        byte = self.data[self.at]
        self.at += 1
        return byte

    def boolean(self) -> bool:
        byte = self.data[self.at]
        if byte > 1:
            self.corrupt(f"{byte} stands where 0 or 1 has to")
        self.at += 1
        return byte == 1

    def int32(self) -> int:
        (value,) = _INT32.unpack_from(self.data, self.at)
        self.at += 4
        return int(value)

    def int64(self) -> int:
        (value,) = _INT64.unpack_from(self.data, self.at)
        self.at += 8
        return int(value)

    def double(self) -> float:
        (value,) = _DOUBLE.unpack_from(self.data, self.at)
        self.at += 8
        return float(value)

    def raw(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self.at + size
        if not 0 <= size <= len(self.data) - self.at:
            self.corrupt(f"{size} bytes are claimed, {len(self.data) - self.at} are left")
        data = self.data[self.at : end]
        self.at = end
        return data

    def text(self) -> str:
        start = self.at
        size = self.data[start]
        if size < 0x80:
            size -= 1
            at = start + 1
        else:
            size = self._long_varint()
            at = self.at
        end = at + size
        if size < 0 or end > len(self.data):
            self.corrupt(f"a text claims {size} bytes, {len(self.data) - at} are left", start)
        data = self.data[at:end]
        self.at = end
        if data.isascii() and b"\x00" not in data:
            return data.decode("ascii")
        try:
            return decode_text(data)
        except ValueError:
            self.corrupt("a text that is not modified UTF-8", at)

    def texts(self) -> tuple[str, ...]:
        return tuple([self.text() for _ in range(self.count())])

    def int32s(self) -> tuple[int, ...]:
        """A count, then as many fixed integers."""
        count = self.count()
        return struct.unpack(f"<{count}i", self.raw(4 * count))

    def timestamp(self) -> int:
        """Read the time at which an object changed last; zero is read as the minimum."""
        value = self.varint()
        if value <= MINIMUM:
            if value < 0:
                self.corrupt("a negative timestamp")
            self.residue.append(value)
            return MINIMUM
        return value

    def discarded_timestamp(self) -> int:
        """As serializers of version 1 read it: whatever it is, the minimum."""
        self.residue.append(self.varint())
        return MINIMUM


# Primitives as they are written. ValueError and its kin (struct.error, OverflowError) mean that the format cannot
# hold a value; `codec.encode` names it.

_MAX = 2**63 - 1

T = TypeVar("T")


class Trace:
    """The parts of a decoded value that the model does not hold, handed out in the order of reading."""

    __slots__ = ("_headers", "_residue")

    def __init__(self, headers: Sequence[int], residue: Sequence[object]) -> None:
        self._headers = iter(headers)
        self._residue = iter(residue)

    def header(self) -> int:
        return next(self._headers)

    def residue(self) -> object:
        return next(self._residue)


class ValueWriter:
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


# Objects within objects: a header of type and version, then the payload; lists of them. Serializers of version 1
# write their children without headers, so only those of later versions use this (docs/design/catalogs.md#values).

Read = Callable[["NestedReader"], Any]
Write = Callable[["ObjectWriter", Any], None]


class NestedReader(ValueReader):
    """A reader that knows serializers: for each type the functions of its versions, whose first has the index 1."""

    __slots__ = ("serializers",)

    def __init__(self, data: bytes, name: str, serializers: Mapping[int, Sequence[Read]]) -> None:
        super().__init__(data, name)
        self.serializers = serializers

    def object(self, expected: frozenset[int]) -> Any:
        """One object of an expected type, its header first."""
        return self._header(expected)(self)

    def objects(self, expected: frozenset[int]) -> tuple[Any, ...]:
        """A count, then as many objects, each with its header."""
        return tuple([self._header(expected)(self) for _ in range(self.count())])

    def alike(self, expected: frozenset[int]) -> tuple[Any, ...]:
        """A count, and when it is not 0 one header for all objects."""
        count = self.count()
        if not count:
            return ()
        read = self._header(expected)
        return tuple([read(self) for _ in range(count)])

    def _header(self, expected: frozenset[int]) -> Read:
        data, at = self.data, self.at
        number = data[at] | data[at + 1] << 8
        if number not in expected:
            self.unexpected(number, at)
        version = data[at + 2] - 1
        if version < 0x7F:
            self.at = at + 3
        else:
            self.at = at + 2
            version = self.number()
        versions = self.serializers[number]
        if not 0 < version < len(versions):
            self.unsupported(f"version {version} of the serializer of {TypeId(number).name}", at + 2)
        self.headers.append(version)
        return versions[version]

    def unexpected(self, number: int, at: int) -> None:
        if number in self.serializers:
            self.corrupt(f"an object of the type {TypeId(number).name} in a wrong place", at)
        self.unsupported(f"an object of the unknown type {number}", at)


class ObjectWriter(ValueWriter):
    """A writer that knows serializers, as `NestedReader` does; without a trace it writes the newest version."""

    __slots__ = ("serializers",)

    def __init__(self, serializers: Mapping[int, Sequence[Write]], trace: Trace | None = None) -> None:
        super().__init__(trace)
        self.serializers = serializers

    def object(self, kind: TypeId, item: Any) -> None:
        self._header(kind)(self, item)

    def objects(self, kind: TypeId, many: Sequence[Any]) -> None:
        self.varint(len(many))
        for item in many:
            self.object(kind, item)

    def alike(self, kind: TypeId, many: Sequence[Any]) -> None:
        self.varint(len(many))
        if many:
            write = self._header(kind)
            for item in many:
                write(self, item)

    def _header(self, kind: TypeId) -> Write:
        versions = self.serializers[kind]
        version = len(versions) - 1 if self.trace is None else self.trace.header()
        self.packed("h", kind)
        self.varint(version)
        return versions[version]
