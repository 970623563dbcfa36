"""An object as a file for pyarrow: small reads are coalesced, large ones go straight through, memory is bounded."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

WINDOW_BYTES: Final = 1 << 20
"""A read smaller than this fetches the whole window it lies in."""
WINDOWS: Final = 8
"""So many are kept, the least recently used goes first: Parquet reads several columns in turn."""


class ObjectReader(io.RawIOBase):
    """Read-only and seekable. `fetch(start, length)` gives exactly these bytes or raises. Safe for threads.

    Memory: at most `windows` windows of `window` bytes, besides what a read returns.
    """

    def __init__(
        self,
        path: str,
        size: int,
        fetch: Callable[[int, int], bytes],
        *,
        window: int = WINDOW_BYTES,
        windows: int = WINDOWS,
    ) -> None:
        super().__init__()
        self.name = path
        self.bytes_fetched = 0
        self._size, self._fetch = size, fetch
        self._window, self._windows = window, windows
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._position = 0
        self._lock = threading.Lock()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Bytes of the object (pyarrow asks)."""
        return self._size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.name}: position {base + offset} is before the beginning")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes from here; all the rest without a size. Shorter only at the end."""
        with self._lock:
            left = max(0, self._size - self._position)
            length = left if size is None or size < 0 else min(size, left)
            data = self._read_at(self._position, length)
            self._position += length
            return data

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self.read(-1)

    def close(self) -> None:
        self._kept.clear()
        super().close()

    def _read_at(self, start: int, length: int) -> bytes:
        if self.closed:
            raise ValueError(f"{self.name}: read after close")
        if length >= self._window:
            return self._get(start, length)
        parts = []
        end = start + length
        while start < end:
            number, skip = divmod(start, self._window)
            part = self._window_of(number)[skip : skip + end - start]
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _window_of(self, number: int) -> bytes:
        kept = self._kept.get(number)
        if kept is None:
            begin = number * self._window
            kept = self._get(begin, min(self._window, self._size - begin))
            self._kept[number] = kept
            if len(self._kept) > self._windows:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return kept

    def _get(self, start: int, length: int) -> bytes:
        self.bytes_fetched += length
        return self._fetch(start, length)
