"""Blocks of entries: how records become them, many at once, and the small blocks that hold index and properties.

docs/design/staging.md#blocks has the format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from compaction.staging.format.columns import (
    I64,
    RecordColumns,
    binary_array,
    data_of,
    joined,
    lengths_of,
    offsets_of,
    pieces_of,
)
from compaction.staging.format.layout import BLOCK_OVERHEAD, RESTART_BYTES, RESTART_INTERVAL
from compaction.staging.format.prefixes import TRAILER
from compaction.staging.format.varints import decode_varint, encode_varint, encode_varints


class EntryError(ValueError):
    """What is wrong with a block's entries; the reader knows which block it is."""


@dataclass(frozen=True, slots=True)
class Entry:
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
    """What stands behind the entries of each block: the places of its restart points, and how many there are."""
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


def decode_small_block(block: bytes) -> list[Entry]:
    """All entries of a block, one after the other. Raises EntryError."""
    end = _entries_end(block)
    entries: list[Entry] = []
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
        entries.append(Entry(key, block[at : at + length]))
        at += length
        before = key
    return entries


def _entries_end(block: bytes) -> int:
    """Where the entries end and the restart points begin."""
    if len(block) < BLOCK_OVERHEAD + RESTART_BYTES:
        raise EntryError(f"{len(block)} bytes are no block")
    count = int.from_bytes(block[-BLOCK_OVERHEAD:], "little")
    end = len(block) - BLOCK_OVERHEAD - RESTART_BYTES * count
    if not count or end < 0:
        raise EntryError(f"{count} restart points in a block of {len(block)} bytes")
    return end


def common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle
    return low
