"""How many bytes neighbouring keys share, and whether keys ascend: 32 bytes at a time, by the column."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from compaction.staging.format.columns import I64, U8

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


def _same(one: U8, other: U8) -> I64:
    """How many bytes rows of `WINDOW` bytes have in common at their beginnings."""
    differ = one.view("<u8") ^ other.view("<u8")
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
