"""Where blocks end, by the size of their entries (docs/design/staging.md#where-blocks-end).

A block's size depends on which of its entries are restart points, and those on where the block begins. So the sums of
entry sizes exist once for each remainder that a block's first record may have, and a block's end is one search in them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np

from compaction.staging.format.columns import I64
from compaction.staging.format.varints import varint_lengths

RESTART_INTERVAL: Final = 16
BLOCK_BYTES: Final = 4096
BLOCK_OVERHEAD: Final = 4
"""The number of restart points."""
RESTART_BYTES: Final = 4
TRAILER_BYTES: Final = 8
_LEAST_ENTRY: Final = 3 + TRAILER_BYTES


def flush_threshold(block_bytes: int) -> int:
    """A block of at most so many bytes takes one more entry, whatever its size: 90 %, rounded up."""
    return (block_bytes * 90 + 99) // 100


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Blocks of a run of records: block i has records begins[i] to begins[i + 1]; the last one is still open.

    `sizes` counts the bytes of each before compression, the open one's included.
    """

    begins: list[int]
    sizes: list[int]


class EntrySizes:
    """Sizes of a run of records as entries of blocks. `stored` is the shared prefix of each with the one before."""

    def __init__(self, keys: I64, values: I64, stored: I64) -> None:
        stored_keys = keys + TRAILER_BYTES
        value_sizes = varint_lengths(values) + values
        whole_keys = varint_lengths(stored_keys)
        unshared = stored_keys - stored
        alone = 1 + whole_keys + stored_keys + value_sizes + RESTART_BYTES
        inside = varint_lengths(stored) + varint_lengths(unshared) + unshared + value_sizes
        self.count: Final = keys.size
        # The writer's guess of what one more entry adds: four bytes for the shared length, the whole key.
        self._guesses = (stored_keys + values + 4 + whole_keys + varint_lengths(values)).data
        self._sums = _sums(inside, alone - inside)
        self._views = [row.data for row in self._sums]

    def size(self, begin: int, end: int) -> int:
        """Bytes of a block with the records `begin` to `end`."""
        row = self._views[begin % RESTART_INTERVAL]
        size: int = BLOCK_OVERHEAD + row[end] - row[begin]
        return size

    def first_of_size(self, begin: int, end: int, size: int) -> int:
        """The least n for which a block with the records `begin` to n has so many bytes, `end` + 1 if none has."""
        row = self._sums[begin % RESTART_INTERVAL]
        least = int(row[begin]) + size - BLOCK_OVERHEAD
        return max(begin + 1, int(np.searchsorted(row[: end + 1], least, side="left")))

    def cut(self, block_bytes: int = BLOCK_BYTES) -> BlockLayout:
        """The blocks that a writer makes of these records when the first of them begins one."""
        threshold = flush_threshold(block_bytes)
        begins, sizes = [0], []
        while (end := self._end(begins[-1], block_bytes, threshold)) < self.count:
            sizes.append(self.size(begins[-1], end))
            begins.append(end)
        sizes.append(self.size(begins[-1], self.count))
        return BlockLayout(begins, sizes)

    def _end(self, begin: int, block_bytes: int, threshold: int) -> int:
        """The record before which the block is flushed, or `count`."""
        if begin >= self.count:
            return self.count
        row = self._views[begin % RESTART_INTERVAL]
        base = row[begin] - BLOCK_OVERHEAD
        most = min(self.count, begin + threshold // _LEAST_ENTRY + 1)
        at = bisect_right(row, base + threshold, begin + 1, most + 1)
        guesses = self._guesses
        while at < self.count:
            size = row[at] - base
            restart = RESTART_BYTES if (at - begin) % RESTART_INTERVAL == 0 else 0
            if size >= block_bytes or size + guesses[at] + restart > block_bytes:
                break
            at += 1
        return min(at, self.count)


def _sums(inside: I64, more: I64) -> I64:
    """Row r: sums of the sizes before each record, when the records r, r + 16, ... are restart points."""
    count = inside.size
    sums = np.empty((RESTART_INTERVAL, count + 1), dtype=np.int64)
    sums[:, 0] = 0
    np.cumsum(inside, out=sums[0, 1:])
    sums[1:] = sums[0]
    for row in range(RESTART_INTERVAL):
        at = np.cumsum(more[row::RESTART_INTERVAL])
        begin = row + 1
        if at.size:
            sums[row, begin:] += np.repeat(at, RESTART_INTERVAL)[: count + 1 - begin]
    return sums
