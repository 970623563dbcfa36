"""How many bytes neighbouring keys share, and whether keys ascend: eight bytes at a time, by the column."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from compaction.stores.staging.format.columns import I64, U8

WORD: Final = 8
TRAILER: Final = b"\x01" + bytes(7)
"""What follows each user key in a block: sequence number 0 and kind SET, little-endian (docs/design/staging.md#blocks).
"""


def words_of(data: U8) -> npt.NDArray[np.uint64]:
    """The little-endian word that begins at each byte of `data`, which must end in `WORD` bytes of padding."""
    return np.ndarray((data.size - WORD + 1,), dtype="<u8", buffer=data, strides=(1,))


def padded(data: U8) -> U8:
    """A copy with `WORD` zero bytes behind it."""
    copy = np.zeros(data.size + WORD, dtype=np.uint8)
    copy[: data.size] = data
    return copy


def shared_prefixes(data: U8, offsets: I64, known: I64 | None = None) -> I64:
    """Of each key but the first, how many bytes it begins with as the key before it does.

    `data` is padded; `offsets` as of a large_binary array of n keys. `known`: n - 1 lengths that are shared for sure.
    """
    lengths = np.diff(offsets)
    most = np.minimum(lengths[:-1], lengths[1:])
    shared = np.zeros(most.size, dtype=np.int64) if known is None else np.minimum(known, most)
    words = words_of(data)
    active = np.flatnonzero(shared < most)
    while active.size:
        at = shared[active]
        differ = words[offsets[:-1][active] + at] ^ words[offsets[1:][active] + at]
        # The lowest bit that differs is in the first byte that does.
        low = differ & (~differ + np.uint64(1))
        same = np.where(differ == 0, WORD, np.bitwise_count(low - np.uint64(1)) >> 3).astype(np.int64)
        shared[active] = at + same
        active = active[(same == WORD) & (at + WORD < most[active])]
    return np.minimum(shared, most)


def first_not_ascending(data: U8, offsets: I64, shared: I64) -> int | None:
    """The number of the first key that is not greater than the one before it; None when all are."""
    if not shared.size:
        return None
    lengths = np.diff(offsets)
    before, after = offsets[:-2] + shared, offsets[1:-1] + shared
    ended = shared == lengths[:-1]
    wrong = shared == lengths[1:]  # equal to the key before, or a prefix of it
    wrong |= ~ended & (data[before] >= data[after])
    return int(np.argmax(wrong)) + 1 if wrong.any() else None


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
