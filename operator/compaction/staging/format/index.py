"""The index of a table: one entry for each data block, in one block or, once that is full, in partitions under a top.

docs/design/staging.md#index has the rules; the keys are separators, not keys of records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from compaction.staging.format.blocks import common_prefix
from compaction.staging.format.layout import BLOCK_BYTES, BLOCK_OVERHEAD, RESTART_BYTES, flush_threshold
from compaction.staging.format.prefixes import TRAILER
from compaction.staging.format.varints import decode_varint, encode_varint

SEPARATOR_TRAILER: Final = b"\x11" + b"\xff" * 7
"""The largest sequence number, and the kind of a key that separates."""
NO_KEY: Final = b"\xff" + bytes(7)
"""What stands in the index of an empty table: no key, of the invalid kind."""
_ASSUMED_HANDLE: Final = 20
"""What the writer takes for the size of the next handle when it decides whether an index block is full."""


@dataclass(frozen=True, slots=True)
class BlockHandle:
    """Where a block lies: `offset` of its first byte, `size` as stored, without the five bytes behind it."""

    offset: int
    size: int

    def encode(self) -> bytes:
        """Two varints."""
        return encode_varint(self.offset) + encode_varint(self.size)

    @classmethod
    def decode(cls, data: bytes, at: int = 0) -> tuple[BlockHandle, int]:
        """The handle at `at`, and where it ends. IndexError and ValueError as of `decode_varint`."""
        offset, at = decode_varint(data, at)
        size, at = decode_varint(data, at)
        return cls(offset, size), at


def separator(last: bytes, following: bytes | None, common: int | None = None) -> bytes:
    """The index key of a block that ends in the user key `last`; the next block begins with `following` (None: none).

    The shortest key at or after `last` and before `following`, or `last` with its own trailer where none is shorter
    (or equally short) and greater. `common`: how many bytes both begin with, where that is known.
    """
    short = _successor(last) if following is None else _between(last, following, common)
    return short + SEPARATOR_TRAILER if len(short) <= len(last) and short > last else last + TRAILER


def _between(last: bytes, following: bytes, at: int | None) -> bytes:
    if at is None:
        at = common_prefix(last, following)
    if at >= min(len(last), len(following)) or last[at] >= following[at]:
        return last
    if at < len(following) - 1 or last[at] + 1 < following[at]:
        return last[:at] + bytes([last[at] + 1])
    return _increased(last, at + 1)


def _successor(last: bytes) -> bytes:
    return _increased(last, 0)


def _increased(key: bytes, begin: int) -> bytes:
    """`key` up to its first byte from `begin` on that is not 0xff, and that one greater by 1; else `key`."""
    for at in range(begin, len(key)):
        if key[at] != 0xFF:
            return key[:at] + bytes([key[at] + 1])
    return key


@dataclass(slots=True)
class _Partition:
    """One block: every entry is a restart point, so entries are encoded as they come."""

    entries: list[bytes] = field(default_factory=list)
    last: bytes = b""
    size: int = BLOCK_OVERHEAD

    def add(self, key: bytes, handle: bytes) -> None:
        entry = b"\0" + encode_varint(len(key)) + encode_varint(len(handle)) + key + handle
        self.size += len(entry) + RESTART_BYTES
        self.last = key
        self.entries.append(entry)

    def encode(self) -> bytes:
        places = np.zeros(len(self.entries) + 1, dtype="<u4")
        np.cumsum([len(entry) for entry in self.entries[:-1]], out=places[1:-1])
        places[-1] = len(self.entries)
        return b"".join(self.entries) + places.tobytes()


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What the properties say about an index. `partitions` is 0 for an index of one block; sizes in bytes."""

    handle: BlockHandle
    partitions: int
    size: int
    top_size: int


class IndexBuilder:
    """Collects the entries of an index; `size` is that of the block being filled, before compression."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._full: list[_Partition] = []
        self._open = _Partition()
        self.blocks = 0

    @property
    def size(self) -> int:
        """Bytes of the index block that is being filled."""
        return self._open.size

    def add(self, key: bytes, offset: int, size: int) -> None:
        """One data block, by its handle; `key` is a separator with its trailer."""
        if self._is_full(key):
            self._full.append(self._open)
            self._open = _Partition()
        self._open.add(key, encode_varint(offset) + encode_varint(size))
        self.blocks += 1

    def _is_full(self, key: bytes) -> bool:
        size = self._open.size
        if not self._open.entries:
            return False
        if size >= self._block_bytes:
            return True
        if size <= flush_threshold(self._block_bytes):
            return False
        guess = len(key) + _ASSUMED_HANDLE + RESTART_BYTES + 4 + len(encode_varint(len(key))) + 1
        return size + guess > self._block_bytes

    def write(self, write_block: Callable[[bytes], BlockHandle]) -> IndexSummary:
        """Write all blocks of the index; what it comes to."""
        if not self._full:
            block = self._open.encode()
            return IndexSummary(write_block(block), 0, self._open.size + 5, 0)
        top = _Partition()
        partitions = [*self._full, self._open]
        for one in partitions:
            handle = write_block(one.encode())
            top.add(one.last, handle.encode())
        size = sum(one.size for one in partitions) + top.size + 5
        return IndexSummary(write_block(top.encode()), len(partitions), size, top.size)
