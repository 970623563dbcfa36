"""A file that is uploaded no faster than a job may write."""

from __future__ import annotations

import io
from pathlib import Path

from compaction.storage.pace import Pace


class PacedFile(io.FileIO):
    """A file to read from, each read paid for before it is made."""

    def __init__(self, path: Path, pace: Pace) -> None:
        super().__init__(path)
        self._pace = pace
        self._size = path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._size - self.tell())
        length = left if size is None or size < 0 else min(size, left)
        self._pace(length)
        return super().read(length) or b""
