"""One pass over the bytes of a value: an index moves, nothing is copied but texts, and no claim of a length is believed
before the bytes are there (docs/design/catalogs.md#primitives).
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from compaction.catalogs.codec.texts import decode_text
from compaction.catalogs.errors import CorruptCatalogValueError, UnsupportedCatalogValueError
from compaction.catalogs.model.hybrid import MINIMUM

_INT32: Final = struct.Struct("<i")
_INT64: Final = struct.Struct("<q")
_DOUBLE: Final = struct.Struct("<d")


class Reader:
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
        """When an object changed last; zero is read as the minimum."""
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
