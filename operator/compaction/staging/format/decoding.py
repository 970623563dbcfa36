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

from compaction.staging.errors import CorruptRangeError, UnsupportedRangeError
from compaction.staging.format.blocks import (
    BLOCK_OVERHEAD,
    RESTART_BYTES,
    TRAILER,
    TRAILER_BYTES,
    first_not_ascending,
    greater,
    padded,
    shared_prefixes,
    words_of,
)
from compaction.staging.format.columns import (
    EMPTY_COLUMNS,
    I64,
    LONGEST32,
    U8,
    RecordColumns,
    content_of,
    data_of,
    decode_varints,
    joined,
    offsets_of,
    pieces_of,
)
from compaction.staging.format.table_parts import SEAL_BYTES, unseal_into, unsealed_sizes

MOST_BETWEEN_RESTARTS: Final = 1024
"""Entries between two restart points: writers make 16. More would make reading slow, not wrong."""
_PADDING: Final = 16
"""Behind the last block, so that numbers and words that begin in it can be read whole."""
_RECORD: Final = np.uint64(int.from_bytes(TRAILER, "little"))


@dataclass(frozen=True, slots=True)
class BlockPlaces:
    """Handles of several blocks: where each begins in the object, and its size as stored, without its seal."""

    offsets: I64
    sizes: I64

    @property
    def ends(self) -> I64:
        """The places where the seals of the blocks end."""
        ends: I64 = self.offsets + self.sizes + SEAL_BYTES
        return ends

    def slice(self, begin: int, end: int) -> BlockPlaces:
        """Blocks `begin` to `end`."""
        return BlockPlaces(self.offsets[begin:end], self.sizes[begin:end])


@dataclass(frozen=True, slots=True)
class IndexColumns:
    """Entries of an index. No key of block i is greater than `lasts[i]`, a user key; all of block i + 1 are."""

    lasts: Any
    places: BlockPlaces

    def __len__(self) -> int:
        return self.places.offsets.size

    def slice(self, begin: int, end: int) -> IndexColumns:
        """Entries `begin` to `end`."""
        return IndexColumns(self.lasts.slice(begin, end - begin), self.places.slice(begin, end))


@dataclass(frozen=True, slots=True)
class DecodedBlocks:
    """Records of some blocks; block i has the records bounds[i] to bounds[i + 1]."""

    records: RecordColumns
    bounds: I64


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries with their stored keys; `shared` is what each says that it shares, `bounds` as of `DecodedBlocks`."""

    keys: Any
    values: Any
    shared: I64
    bounds: I64


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Decompressed blocks, one after the other: `ends` are their ends in `data`, which has `_PADDING` bytes more."""

    path: str
    places: BlockPlaces
    data: U8
    ends: I64

    def offset(self, at: int) -> int:
        """Return the offset in the object of the block that holds the byte `at`."""
        return int(self.places.offsets[min(int(np.searchsorted(self.ends, at, side="right")), self.ends.size - 1)])

    def fail(self, at: int, reason: str) -> NoReturn:
        """The block that holds the byte `at` is wrong."""
        raise CorruptRangeError(self.path, self.offset(at), reason)


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


def decode_blocks(stored: bytes, handles: BlockPlaces, *, path: str) -> DecodedBlocks:
    """The records of blocks that lie one after the other; `stored` has them all, each with its five last bytes.

    Keys are without their trailers and strictly ascending. Raises CorruptRangeError, UnsupportedRangeError.
    """
    blocks = _unsealed(stored, handles, path)
    entries = _entries(blocks)
    if not len(entries.keys):
        return DecodedBlocks(EMPTY_COLUMNS, entries.bounds)
    keys, trailers = _without_trailers(entries.keys)
    if (trailers != _RECORD).any():
        number = int(np.searchsorted(entries.bounds, np.argmax(trailers != _RECORD), side="right")) - 1
        raise UnsupportedRangeError(
            path,
            int(handles.offsets[number]),
            "an entry that is no plain record (a deletion, a merge, a sequence number)",
        )
    offsets, data = offsets_of(keys), padded(data_of(keys))
    wrong = first_not_ascending(data, offsets, shared_prefixes(data, offsets, entries.shared[1:]))
    if wrong is not None:
        number = int(np.searchsorted(entries.bounds, wrong, side="right")) - 1
        raise CorruptRangeError(path, int(handles.offsets[number]), "its keys are not in ascending order")
    return DecodedBlocks(RecordColumns(keys, entries.values), entries.bounds)


def decode_index(stored: bytes, blocks: BlockPlaces, *, path: str) -> tuple[IndexColumns, I64]:
    """The entries of blocks of an index that lie one after the other, and the bounds of each block's.

    Keys are strictly ascending; places are in order. Raises as `decode_blocks`.
    """
    offset = int(blocks.offsets[0])
    entries = _entries(_unsealed(stored, blocks, path))
    keys, _ = _without_trailers(entries.keys)
    values = np.concatenate((content_of(entries.values), np.zeros(2 * LONGEST32, dtype=np.uint8)))
    ends = offsets_of(entries.values) - offsets_of(entries.values)[0]
    offsets, at = decode_varints(values, ends[:-1])
    sizes, at = decode_varints(values, at)
    if ((at != ends[1:]) | (offsets < 0) | (sizes < 0)).any():
        raise CorruptRangeError(path, offset, "an entry of its index is no place of a block")
    places = BlockPlaces(offsets, sizes)
    bounds, data = offsets_of(keys), padded(data_of(keys))
    ascending = bool(greater(data, bounds, shared_prefixes(data, bounds, entries.shared[1:])).all())
    if not ascending or (offsets[1:] < places.ends[:-1]).any():
        raise CorruptRangeError(path, offset, "its index is not in order")
    if places.ends.max(initial=0) > offset:
        raise CorruptRangeError(path, offset, "its index names places behind itself")
    return IndexColumns(keys, places), entries.bounds


def _unsealed(stored: bytes, places: BlockPlaces, path: str) -> _Blocks:
    """All blocks checked and decompressed. Nothing is allocated before all claims are checked."""
    begins = places.offsets - places.offsets[0]
    raw = np.frombuffer(stored, dtype=np.uint8)
    sizes = unsealed_sizes(stored, raw, begins, places.sizes, path=path, offset=int(places.offsets[0]))
    ends = np.cumsum(sizes)
    data = np.zeros(int(ends[-1]) + _PADDING, dtype=np.uint8)
    unseal_into(stored, raw, begins, places.sizes, data, ends, path=path, offset=int(places.offsets[0]))
    return _Blocks(path, places, data, ends)


def _entries(blocks: _Blocks) -> _Entries:
    """All entries in their order."""
    lanes = _lanes(blocks)
    steps = _steps(blocks, lanes)
    counts = np.zeros(lanes.begins.size, dtype=np.int64)
    for number, step in enumerate(steps):
        counts[step.lanes] = number + 1
    per_block = np.bincount(lanes.blocks, weights=counts, minlength=blocks.ends.size).astype(np.int64)
    bounds: I64 = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(per_block)))
    if not steps:
        return _Entries(EMPTY_COLUMNS.keys, EMPTY_COLUMNS.values, np.zeros(0, dtype=np.int64), bounds)
    first = np.cumsum(counts) - counts
    order = np.concatenate([first[step.lanes] + number for number, step in enumerate(steps)])
    places = np.empty(order.size, dtype=np.int64)
    places[order] = np.arange(order.size)
    values = pieces_of(
        blocks.data,
        np.concatenate([step.value for step in steps])[places],
        np.concatenate([step.end for step in steps])[places],
    )
    keys = _keys(blocks, steps)
    shared = np.concatenate([step.shared for step in steps])
    if len(steps) > 1:
        keys, shared = keys.take(pa.array(places)), shared[places]
    return _Entries(keys, values, shared, bounds)


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
            reason = f"more than {MOST_BETWEEN_RESTARTS} records between two restart points"
            raise UnsupportedRangeError(blocks.path, blocks.offset(int(at[0])), reason)
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


def _keys(blocks: _Blocks, steps: list[_Step]) -> Any:
    """Stored keys, step by step. A key is the front of the one before in its lane, and what is new."""
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
    return pa.concat_arrays(whole) if len(whole) > 1 else whole[0]


def _without_trailers(stored: Any) -> tuple[Any, npt.NDArray[np.uint64]]:
    """User keys, and the trailers behind them."""
    ends, data = offsets_of(stored), data_of(stored)
    trailers = words_of(padded(data))[ends[1:] - TRAILER_BYTES]
    return pieces_of(data, ends[:-1], ends[1:] - TRAILER_BYTES), trailers
