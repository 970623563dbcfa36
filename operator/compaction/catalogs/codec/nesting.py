"""Objects within objects: a header of type and version, then the payload; lists of them. Serializers of version 1
write their children without headers, so only those of later versions use this (docs/design/catalogs.md#values).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compaction.catalogs.codec.reader import Reader
from compaction.catalogs.codec.types import TypeId
from compaction.catalogs.codec.writer import Trace, Writer

Read = Callable[["ObjectReader"], Any]
Write = Callable[["ObjectWriter", Any], None]


class ObjectReader(Reader):
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


class ObjectWriter(Writer):
    """A writer that knows serializers, as `ObjectReader` does; without a trace it writes the newest version."""

    __slots__ = ("serializers",)

    def __init__(self, serializers: Mapping[int, Sequence[Write]], trace: Trace | None = None) -> None:
        super().__init__(trace)
        self.serializers = serializers

    def object(self, kind: TypeId, one: Any) -> None:
        self._header(kind)(self, one)

    def objects(self, kind: TypeId, many: Sequence[Any]) -> None:
        self.varint(len(many))
        for one in many:
            self.object(kind, one)

    def alike(self, kind: TypeId, many: Sequence[Any]) -> None:
        self.varint(len(many))
        if many:
            write = self._header(kind)
            for one in many:
                write(self, one)

    def _header(self, kind: TypeId) -> Write:
        versions = self.serializers[kind]
        version = len(versions) - 1 if self.trace is None else self.trace.header()
        self.packed("h", kind)
        self.varint(version)
        return versions[version]
