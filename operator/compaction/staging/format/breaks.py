"""After which records a range ends (docs/design/staging.md#where-ranges-end): a hash of the key decides, mostly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from compaction.staging.format.columns import I64, data_of, offsets_of
from compaction.staging.format.prefixes import WORD, padded, words_of

_BASIS: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3


@dataclass(frozen=True, slots=True)
class BreakRule:
    """Sizes are estimated bytes of the table so far. A range ends after a record never below `min_bytes`, always from
    `max_bytes` on, and else where the hash of the record's key is a multiple of `raggedness`.
    """

    min_bytes: int = 0
    max_bytes: int = 20 << 20
    raggedness: int = 50_000


def break_points(keys: Any, raggedness: int) -> list[int]:
    """The numbers of the keys (a large_binary array) whose hash, FNV-1a of 64 bits, is a multiple of `raggedness`.

    The lowest bits of the hash depend on those bits of its steps alone. So where `raggedness` is even, a pass in bytes
    leaves few keys for the full hash (one in 16 for the usual 50,000).
    """
    offsets = offsets_of(keys)
    data = padded(data_of(keys)[offsets[0] : offsets[-1]])
    begins, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    low = min(raggedness & -raggedness, 1 << 8)
    rows = np.arange(lengths.size)
    if low > 1:
        rows = rows[_low_hashes(data, begins, lengths) & np.uint8(low - 1) == 0]
    hashes = _hashes(data, begins[rows], lengths[rows])
    found: list[int] = rows[hashes % np.uint64(raggedness) == 0].tolist()
    return found


def _low_hashes(data: npt.NDArray[np.uint8], begins: I64, lengths: I64) -> npt.NDArray[np.uint8]:
    """The lowest eight bits of each key's hash, times an odd number: which of them end in zeros is the same."""
    hashes = np.full(lengths.size, _BASIS & 0xFF, dtype=np.uint8)
    words = words_of(data)
    prime = np.uint8(_PRIME & 0xFF)
    active = np.arange(lengths.size)
    for at in range(0, int(lengths.max(initial=0)), WORD):
        longer = lengths[active] > at
        if not longer.all():
            active = active[longer]
        taken = words[begins[active] + at]
        # Bytes behind a key count as zeros: a step with one only multiplies by the prime.
        left = np.minimum(lengths[active] - at, WORD)
        if (left < WORD).any():
            taken &= np.uint64(0xFFFFFFFFFFFFFFFF) >> (8 * (WORD - left)).astype(np.uint64)
        steps = taken.view(np.uint8).reshape(-1, WORD)
        state = hashes[active]
        for byte in range(WORD):
            state = (state ^ steps[:, byte]) * prime
        hashes[active] = state
    return hashes


def _hashes(data: npt.NDArray[np.uint8], begins: I64, lengths: I64) -> npt.NDArray[np.uint64]:
    hashes = np.full(lengths.size, _BASIS, dtype=np.uint64)
    active = np.arange(lengths.size)
    for at in range(int(lengths.max(initial=0))):
        active = active[lengths[active] > at]
        hashes[active] = (hashes[active] ^ data[begins[active] + at]) * np.uint64(_PRIME)
    return hashes
