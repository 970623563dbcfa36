"""Blocks of entries: where they end, the prefixes that neighbouring keys share, and how records become them."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from compaction.staging.format.columns import (
    I64,
    U8,
    RecordColumns,
    binary_array,
    data_of,
    decode_varint,
    encode_varint,
    encode_varints,
    joined,
    lengths_of,
    offsets_of,
    pieces_of,
    varint_lengths,
)

# The number of bytes that neighbouring keys share, and whether keys ascend: 32 bytes at a time, by the column.

WORD: Final = 8
WINDOW: Final = 32
"""Bytes of two keys that are compared at once."""
TRAILER: Final = b"\x01" + bytes(7)
"""What follows each user key in a block: sequence number 0 and kind SET, little-endian (docs/design/staging.md#blocks).
"""


def words_of(data: U8) -> npt.NDArray[np.uint64]:
    """The little-endian word that begins at each byte of `data`, which must end in `WORD` bytes of padding."""
    return np.ndarray((data.size - WORD + 1,), dtype="<u8", buffer=data, strides=(1,))


def padded(data: U8) -> U8:
    """A copy with `WINDOW` zero bytes behind it."""
    copy = np.zeros(data.size + WINDOW, dtype=np.uint8)
    copy[: data.size] = data
    return copy


def shared_prefixes(data: U8, offsets: I64, known: I64 | None = None) -> I64:
    """Of each key but the first, how many bytes it begins with as the key before it does.

    `data` is padded; `offsets` as of a large_binary array of n keys. `known`: n - 1 lengths that are shared for sure.
    """
    lengths = np.diff(offsets)
    most = np.minimum(lengths[:-1], lengths[1:])
    shared = np.zeros(most.size, dtype=np.int64) if known is None else np.minimum(known, most)
    windows = np.lib.stride_tricks.sliding_window_view(data, WINDOW)
    active: I64 | None = None
    """Which are not decided, None for all."""
    before, after, limits, at = offsets[:-2], offsets[1:-1], most, shared.copy()
    while at.size:
        same = _same(windows[before + at], windows[after + at])
        at += same
        if active is None:
            shared = at.copy()
        else:
            shared[active] = at
        left = np.flatnonzero((same == WINDOW) & (at < limits))
        active = left if active is None else active[left]
        before, after, limits, at = before[left], after[left], limits[left], at[left]
    return np.minimum(shared, most)


def _same(u8: U8, other: U8) -> I64:
    """Return the number of bytes that rows of `WINDOW` bytes have in common at their beginnings."""
    differ = u8.view("<u8") ^ other.view("<u8")
    unequal = differ != 0
    word = unequal.argmax(axis=1)
    first = differ[np.arange(word.size), word]
    # The lowest bit that differs is in the first byte that does.
    low = np.bitwise_count((first & (~first + np.uint64(1))) - np.uint64(1)).astype(np.int64) >> 3
    return np.where(first == 0, WINDOW, WORD * word + low)


def greater(data: U8, offsets: I64, shared: I64) -> npt.NDArray[np.bool_]:
    """Of each key but the first, whether it is greater than the one before; `shared` as of `shared_prefixes`."""
    lengths = np.diff(offsets)
    # Where a key ends, so does the comparison: the padding makes reading one byte more safe.
    longer = (shared == lengths[:-1]) & (shared < lengths[1:])
    differ = (shared < lengths[:-1]) & (shared < lengths[1:])
    ascends: npt.NDArray[np.bool_] = longer | (differ & (data[offsets[:-2] + shared] < data[offsets[1:-1] + shared]))
    return ascends


def first_not_ascending(data: U8, offsets: I64, shared: I64) -> int | None:
    """The number of the first key that is not greater than the one before it; None when all are."""
    ascends = greater(data, offsets, shared)
    return None if ascends.all() else int(np.argmin(ascends)) + 1


def stored_prefixes(data: U8, offsets: I64, shared: I64) -> I64:
    """The prefix lengths that a block stores, from those of the user keys alone.

    The writer compares with the *stored* key before, trailer included: where that key is a prefix of the next one, its
    trailer may go on being the same. It never takes more than the next user key has.
    """
    lengths = np.diff(offsets)
    stored = shared.copy()
    rows = np.flatnonzero(shared == lengths[:-1])
    for byte in TRAILER:
        begins = stored[rows]
        rows, begins = rows[begins < lengths[1:][rows]], begins[begins < lengths[1:][rows]]
        rows = rows[data[offsets[1:-1][rows] + begins] == byte]
        if not rows.size:
            break
        stored[rows] += 1
    return stored


# The ends of blocks, by the size of their entries (docs/design/staging.md#where-blocks-end).
#
# A block's size depends on which of its entries are restart points, and those on where the block begins. So the sums
# of entry sizes exist once for each remainder that a block's first record may have, and a block's end is one search
# in them.

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


# Blocks of entries: how records become them, many at once, and the small blocks that hold index and properties.
#
# docs/design/staging.md#blocks has the format.


class EntryError(ValueError):
    """The entries of a block are wrong; the reader knows which block it is."""


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One entry of a small block."""

    key: bytes
    value: bytes


def encode_blocks(records: RecordColumns, stored: I64, begins: list[int]) -> Iterator[bytes]:
    """The blocks of records that begin at `begins` (the last entry is the end of the last block), as bytes.

    `stored`: the shared prefix of each record's key with the one before, the first of each block's not regarded.
    """
    bounds = np.asarray(begins, dtype=np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    records = records.slice(first, last)
    bounds = bounds - first
    ordinals = np.arange(last - first) - np.repeat(bounds[:-1], np.diff(bounds))
    restarts = ordinals % RESTART_INTERVAL == 0
    shared = np.where(restarts, 0, stored[first:last])
    entries = _entries(records, shared)
    at = offsets_of(entries)
    blocks = joined(binary_array(at[bounds], data_of(entries)), _tails(at, bounds, restarts))
    ends, data = offsets_of(blocks).tolist(), data_of(blocks).data
    for begin, end in pairwise(ends):
        yield bytes(data[begin:end])


def _entries(records: RecordColumns, shared: I64) -> Any:
    """Each record as an entry, as an array of them."""
    ends = offsets_of(records.keys)
    begins = ends[:-1] + shared
    # The trailer is never shared, the user key may be as a whole.
    unshared = ends[1:] - begins + len(TRAILER)
    heads = encode_varints(shared, unshared, lengths_of(records.values))
    return joined(heads, pieces_of(data_of(records.keys), begins, ends[1:]), TRAILER, records.values)


def _tails(at: I64, bounds: I64, restarts: Any) -> Any:
    """Return the bytes behind the entries of each block: the places of its restart points, and their number."""
    points = np.flatnonzero(restarts)
    blocks = np.searchsorted(bounds, points, side="right") - 1
    counts = np.bincount(blocks, minlength=bounds.size - 1)
    words = np.zeros(points.size + counts.size, dtype="<u4")
    ends = np.cumsum(counts + 1)
    places = np.ones(words.size, dtype=np.bool_)
    places[ends - 1] = False
    words[places] = at[points] - at[bounds[blocks]]
    words[ends - 1] = counts
    return binary_array(np.concatenate(([0], ends * RESTART_BYTES)), words.view(np.uint8))


def encode_small_block(entries: Iterable[tuple[bytes, bytes]], *, restart_interval: int = 1) -> bytes:
    """A block of a few sorted entries, whose keys are written as they are."""
    out = bytearray()
    restarts: list[int] = []
    before = b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % restart_interval == 0:
            restarts.append(len(out))
        else:
            shared = common_prefix(before, key)
        out += encode_varint(shared) + encode_varint(len(key) - shared) + encode_varint(len(value))
        out += key[shared:] + value
        before = key
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def decode_small_block(block: bytes) -> list[BlockEntry]:
    """All entries of a block, one after the other. Raises EntryError."""
    end = _entries_end(block)
    entries: list[BlockEntry] = []
    at, before = 0, b""
    while at < end:
        try:
            shared, at = decode_varint(block, at)
            unshared, at = decode_varint(block, at)
            length, at = decode_varint(block, at)
        except (IndexError, ValueError):
            raise EntryError("an entry is cut off") from None
        if shared > len(before) or unshared + length > end - at:
            raise EntryError(f"an entry claims {shared}, {unshared} and {length} bytes")
        key = before[:shared] + block[at : at + unshared]
        at += unshared
        entries.append(BlockEntry(key, block[at : at + length]))
        at += length
        before = key
    return entries


def _entries_end(block: bytes) -> int:
    """Return the place where the entries end and the restart points begin."""
    if len(block) < BLOCK_OVERHEAD + RESTART_BYTES:
        raise EntryError(f"{len(block)} bytes are no block")
    count = int.from_bytes(block[-BLOCK_OVERHEAD:], "little")
    end = len(block) - BLOCK_OVERHEAD - RESTART_BYTES * count
    if not count or end < 0:
        raise EntryError(f"{count} restart points in a block of {len(block)} bytes")
    return end


def common_prefix(item: bytes, other: bytes) -> int:
    """Return the number of bytes that both begin with."""
    most = min(len(item), len(other))
    if item[:most] == other[:most]:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if item[:middle] == other[:middle]:
            low = middle
        else:
            high = middle
    return low
