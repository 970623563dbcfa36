"""Where a reader finds the bytes of a table: anything that has a name, a size and reads from a place."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self


class TableSource(Protocol):
    """A table's bytes. `name` is for errors: the path or the URL of the object."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on, fewer only at the end."""
        ...


class BytesSource:
    """A table in memory."""

    def __init__(self, data: bytes, name: str = "table") -> None:
        self._data = data
        self.name = name
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


class FileSource:
    """A table in a local file, open for as long as the context lasts. OSError as of `open`."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        parts = []
        while length > 0 and (part := os.pread(self._fd, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)
