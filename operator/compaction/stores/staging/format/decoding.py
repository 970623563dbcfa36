"""Many data blocks at once into columns of records.

Entries follow from one another only between two restart points. So all stretches between restart points, of all blocks
at hand, are decoded side by side: the first entry of each, then the second of each, and so on. What a block claims
(lengths, counts, prefixes) is compared with the bytes that are there before anything is copied or allocated for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.exceptions import CorruptRangeError, UnsupportedRangeError
from compaction.stores.staging.format.columns import (
    EMPTY_COLUMNS,
    I64,
    U8,
    RecordColumns,
    binary_array,
    data_of,
    joined,
    offsets_of,
    pieces_of,
)
from compaction.stores.staging.format.index import BlockHandle
from compaction.stores.staging.format.layout import BLOCK_OVERHEAD, RESTART_BYTES, TRAILER_BYTES
from compaction.stores.staging.format.prefixes import TRAILER, first_not_ascending, padded, shared_prefixes, words_of
from compaction.stores.staging.format.sealing import SEAL_BYTES, unseal_into, unsealed_size
from compaction.stores.staging.format.varints import decode_varints

MOST_BETWEEN_RESTARTS: Final = 1024
"""Entries between two restart points: writers make 16. More would make reading slow, not wrong."""
_PADDING: Final = 16
"""Behind the last block, so that numbers and words that begin in it can be read whole."""
_RECORD: Final = np.uint64(int.from_bytes(TRAILER, "little"))


@dataclass(frozen=True, slots=True)
class DecodedBlocks:
    """Records of some blocks; block i has the records bounds[i] to bounds[i + 1]."""

    records: RecordColumns
    bounds: I64


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Decompressed blocks, one after the other: `ends` are their ends in `data`, which has `_PADDING` bytes more."""

    path: str
    handles: list[BlockHandle]
    data: U8
    ends: I64

    def fail(self, at: int, reason: str) -> NoReturn:
        """The block that holds the byte `at` is wrong."""
        number = min(int(np.searchsorted(self.ends, at, side="right")), self.ends.size - 1)
        raise CorruptRangeError(self.path, self.handles[number].offset, reason)


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Stretches between restart points: places of their entries in the data, and the block of each."""

    begins: I64
    ends: I64
    blocks: I64


@dataclass(frozen=True, slots=True)
class _Step:
    """One entry of each lane that has one more: `lanes` numbers them; places in the data."""

    lanes: I64
    shared: I64
    key: I64
    value: I64
    end: I64


def decode_blocks(stored: U8, handles: list[BlockHandle], *, path: str) -> DecodedBlocks:
    """The records of blocks that lie one after the other; `stored` has them all, each with its five last bytes.

    Keys are without their trailers and strictly ascending. Raises CorruptRangeError, UnsupportedRangeError.
    """
    blocks = _unsealed(stored, handles, path)
    lanes = _lanes(blocks)
    steps = _steps(blocks, lanes)
    counts = np.zeros(lanes.begins.size, dtype=np.int64)
    for step in steps:
        counts[step.lanes] += 1
    per_block = np.bincount(lanes.blocks, weights=counts, minlength=len(handles)).astype(np.int64)
    bounds: I64 = np.concatenate(([0], np.cumsum(per_block)))
    if not steps:
        return DecodedBlocks(EMPTY_COLUMNS, bounds)
    first = np.cumsum(counts) - counts
    order = np.concatenate([first[step.lanes] + number for number, step in enumerate(steps)])
    places = np.empty(order.size, dtype=np.int64)
    places[order] = np.arange(order.size)
    keys = _keys(blocks, steps, places)
    values = pieces_of(
        blocks.data,
        np.concatenate([step.value for step in steps])[places],
        np.concatenate([step.end for step in steps])[places],
    )
    shared = np.concatenate([step.shared for step in steps])[places]
    _check_order(blocks, keys, shared, bounds)
    return DecodedBlocks(RecordColumns(keys, values), bounds)


def _unsealed(stored: U8, handles: list[BlockHandle], path: str) -> _Blocks:
    begin = handles[0].offset
    parts = [stored[one.offset - begin : one.offset - begin + one.size + SEAL_BYTES] for one in handles]
    sizes = [unsealed_size(part, path=path, offset=one.offset) for part, one in zip(parts, handles, strict=True)]
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    data = np.zeros(int(ends[-1]) + _PADDING, dtype=np.uint8)
    at = 0
    for part, size, one in zip(parts, sizes, handles, strict=True):
        unseal_into(part, data[at : at + size], path=path, offset=one.offset)
        at += size
    return _Blocks(path, handles, data, ends)


def _lanes(blocks: _Blocks) -> _Lanes:
    """Everything between two restart points, when they are in order and within their blocks."""
    begins = np.concatenate(([0], blocks.ends[:-1]))
    short = blocks.ends - begins < BLOCK_OVERHEAD + RESTART_BYTES
    if short.any():
        blocks.fail(int(begins[np.argmax(short)]), "a block has no restart points")
    counts = _u32(blocks.data, blocks.ends - BLOCK_OVERHEAD)
    entries_end = blocks.ends - BLOCK_OVERHEAD - RESTART_BYTES * counts
    wrong = (counts < 1) | (entries_end < begins)
    if wrong.any():
        blocks.fail(int(begins[np.argmax(wrong)]), "a block has more restart points than bytes, or none")
    of_block = np.repeat(np.arange(counts.size), counts)
    firsts = np.cumsum(counts) - counts
    ordinals = np.arange(of_block.size) - firsts[of_block]
    places = begins[of_block] + _u32(blocks.data, entries_end[of_block] + RESTART_BYTES * ordinals)
    ends = np.append(places[1:], 0)
    ends[firsts + counts - 1] = entries_end
    wrong = (ends < places) | ((ordinals == 0) & (places != begins[of_block]))
    wrong |= (ends == places) & (counts[of_block] > 1)
    if wrong.any():
        blocks.fail(int(begins[of_block[np.argmax(wrong)]]), "its restart points are not in order")
    return _Lanes(places, ends, of_block)


def _u32(data: U8, at: I64) -> I64:
    words: npt.NDArray[np.uint32] = np.ndarray((data.size - 3,), dtype="<u4", buffer=data, strides=(1,))
    return words[at].astype(np.int64)


def _steps(blocks: _Blocks, lanes: _Lanes) -> list[_Step]:
    """All entries, checked: lengths within their lane, prefixes within the key before."""
    steps: list[_Step] = []
    active = np.flatnonzero(lanes.begins < lanes.ends)
    at, ends = lanes.begins[active], lanes.ends[active]
    before = np.zeros(active.size, dtype=np.int64)
    while active.size:
        if len(steps) == MOST_BETWEEN_RESTARTS:
            handle = blocks.handles[int(lanes.blocks[active[0]])]
            reason = f"more than {MOST_BETWEEN_RESTARTS} records between two restart points"
            raise UnsupportedRangeError(blocks.path, handle.offset, reason)
        shared, key = decode_varints(blocks.data, at)
        unshared, key = decode_varints(blocks.data, np.minimum(key, ends))
        length, key = decode_varints(blocks.data, np.minimum(key, ends))
        value = key + unshared
        end = value + length
        wrong = (shared < 0) | (unshared < 0) | (length < 0) | (end > ends) | (shared > before)
        wrong |= shared + unshared < TRAILER_BYTES
        if wrong.any():
            blocks.fail(int(at[np.argmax(wrong)]), "an entry claims more bytes than there are")
        steps.append(_Step(active, shared, key, value, end))
        before = shared + unshared
        more = end < ends
        active, at, ends, before = active[more], end[more], ends[more], before[more]
    return steps


def _keys(blocks: _Blocks, steps: list[_Step], places: I64) -> Any:
    """User keys in the order of records. A step's key is the front of the one before in its lane, and what is new."""
    whole: list[Any] = []
    for number, step in enumerate(steps):
        new = pieces_of(blocks.data, step.key, step.value)
        if number:
            before = whole[-1]
            if steps[number - 1].lanes.size > step.lanes.size:
                before = before.take(pa.array(np.searchsorted(steps[number - 1].lanes, step.lanes)))
            begins = offsets_of(before)[:-1]
            new = joined(pieces_of(data_of(before), begins, begins + step.shared), new)
        whole.append(new)
    stored = pa.concat_arrays(whole)
    ends, data = offsets_of(stored), data_of(stored)
    trailers = words_of(padded(data))[ends[1:] - TRAILER_BYTES]
    if (trailers != _RECORD).any():
        at = int(np.concatenate([step.key for step in steps])[np.argmax(trailers != _RECORD)])
        handle = blocks.handles[min(int(np.searchsorted(blocks.ends, at, side="right")), len(blocks.handles) - 1)]
        raise UnsupportedRangeError(
            blocks.path, handle.offset, "an entry that is no plain record (a deletion, a merge, a sequence number)"
        )
    bounds = np.empty(2 * len(stored) + 1, dtype=np.int64)
    bounds[::2] = ends
    bounds[1::2] = ends[1:] - TRAILER_BYTES
    return binary_array(bounds, stored.buffers()[2]).take(pa.array(2 * places))


def _check_order(blocks: _Blocks, keys: Any, shared: I64, bounds: I64) -> None:
    offsets, data = offsets_of(keys), padded(data_of(keys))
    wrong = first_not_ascending(data, offsets, shared_prefixes(data, offsets, shared[1:]))
    if wrong is not None:
        number = int(np.searchsorted(bounds, wrong, side="right")) - 1
        raise CorruptRangeError(blocks.path, blocks.handles[number].offset, "its keys are not in ascending order")
