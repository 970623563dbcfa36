"""Memory that a rewrite uses again and again: fresh memory costs a page fault per 4 KiB, more than a copy of it."""

from __future__ import annotations

from typing import Final

import numpy as np

CHUNK_BYTES: Final = 4 << 20
"""What is read and checked at once; a larger payload alone is."""


class Buffers:
    """For one rewrite at a time: what it reads at once.

    What is in there is only valid until the next use. `CHUNK_BYTES` at most are kept, and take memory when first used.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = np.empty(CHUNK_BYTES, dtype=np.uint8).data

    def read(self, size: int) -> memoryview:
        """`size` bytes to read into, or `CHUNK_BYTES` if that is less."""
        return self._kept[:size]

    def one(self, size: int) -> memoryview:
        """`size` bytes, fresh ones if that is more than is kept."""
        return self._kept[:size] if size <= len(self._kept) else np.empty(size, dtype=np.uint8).data
