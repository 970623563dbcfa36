"""Ranges and metaranges: tables with an id of their content, cut where lakeFS cuts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from compaction.errors import shown_bytes
from compaction.staging.errors import CorruptMessageError, CorruptRangeError, RangeRecordError
from compaction.staging.format.blocks import WORD, padded, words_of
from compaction.staging.format.columns import EMPTY_COLUMNS, I64, RecordColumns, concatenated, data_of, offsets_of
from compaction.staging.format.identity import FramingError, RangeIdentity, frame_value, split_value
from compaction.staging.format.messages import RangeData
from compaction.staging.format.table_reader import BATCH_BYTES, TableReader
from compaction.staging.format.table_writer import UNLIMITED, ByteSink, TableWriter

# After which records a range ends (docs/design/staging.md#where-ranges-end): a hash of the key decides, mostly.

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


# Ranges and metaranges: tables with an id of their content, cut where lakeFS cuts them, and the table that lists
# them.
#
# docs/design/staging.md#ranges-and-metaranges.

_GATHER_BYTES: Final = 4 << 20
"""Small batches are gathered until they have so many bytes."""
FOLDER: Final = "_lakefs/"
"""Ranges and metaranges lie in this folder of a storage namespace, each under its id."""


class TableKind(StrEnum):
    """The property `type` of a table."""

    RANGES = "ranges"
    METARANGES = "metaranges"


@dataclass(frozen=True, slots=True)
class RangeInfo:
    """A finished table. Bounds are its first and last key (empty without records), `estimated_size` is in bytes."""

    id: str
    min_key: bytes
    max_key: bytes
    count: int
    estimated_size: int


class RangeSink(ByteSink, Protocol):
    """The sink of one table whose id is known at its end only."""

    def store(self, info: RangeInfo) -> object:
        """All bytes were written; they belong under `info.id`."""
        ...


class RangeWriter:
    """One range or metarange. The caller keeps `sink`; RangeRecordError as of `TableWriter.add`."""

    def __init__(self, sink: ByteSink, kind: TableKind = TableKind.RANGES) -> None:
        self._kind = kind
        self._table = TableWriter(sink)
        self._identity = RangeIdentity()
        self._min_key = self._max_key = b""

    @property
    def estimated_size(self) -> int:
        """Bytes, by the measure that decides where ranges end."""
        return self._table.estimated_size

    @property
    def count(self) -> int:
        """Records so far."""
        return self._table.records

    def add(self, records: RecordColumns, *, limit: int = UNLIMITED) -> int:
        """Add records up to the first after which `estimated_size` reaches `limit`; how many were added."""
        first = not self.count
        taken = self._table.add(records, limit=limit)
        if taken:
            self._identity.add(records.slice(0, taken))
            self._min_key = records.keys[0].as_py() if first else self._min_key
            self._max_key = records.keys[taken - 1].as_py()
        return taken

    def finish(self, *, user: Mapping[bytes, bytes] | None = None) -> RangeInfo:
        """Write the end of the table. `user`: its properties instead of those that its records have: of a table of
        another writer that is written again.
        """
        kind = {"type": self._kind.value}
        info = RangeInfo(
            self._identity.hexdigest(kind), self._min_key, self._max_key, self.count, self._table.estimated_size
        )
        own = {
            b"type": self._kind.value.encode(),
            b"min_key": info.min_key,
            b"max_key": info.max_key,
            b"count": b"%d" % info.count,
            b"estimated_size_bytes": b"%d" % info.estimated_size,
        }
        self._table.finish(own if user is None else user)
        return info


def write_ranges(
    batches: Iterable[RecordColumns], open_sink: Callable[[], RangeSink], rule: BreakRule | None = None
) -> Iterator[RangeInfo]:
    """Cut records in ascending order into ranges; each is stored, then yielded. No records, no range."""
    rule = rule or BreakRule()
    open_range: tuple[RangeSink, RangeWriter] | None = None
    last: bytes | None = None
    for batch in _gathered(batches):
        points = break_points(batch.keys, rule.raggedness)
        at = 0
        while at < len(batch):
            if open_range is None:
                first = batch.keys[at].as_py()
                # Within a range its writer compares.
                if last is not None and first <= last:
                    raise RangeRecordError(first, "its key is not greater than the one before it")
                sink = open_sink()
                open_range = sink, RangeWriter(sink)
            sink, writer = open_range
            while points and points[0] < at:
                points.pop(0)
            end = points[0] + 1 if points else len(batch)
            # No range ends below min_bytes, also not because of max_bytes.
            at += writer.add(batch.slice(at, end), limit=max(rule.max_bytes, rule.min_bytes))
            size = writer.estimated_size
            hashed = bool(points) and at == points[0] + 1
            if size >= rule.min_bytes and (size >= rule.max_bytes or hashed):
                info = _stored(sink, writer)
                last = info.max_key
                yield info
                open_range = None
    if open_range is not None:
        yield _stored(*open_range)


def _stored(sink: RangeSink, writer: RangeWriter) -> RangeInfo:
    info = writer.finish()
    sink.store(info)
    return info


def _gathered(batches: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
    """The same records in batches that are neither small nor empty, in copies of at most a few megabytes."""
    held: list[RecordColumns] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _GATHER_BYTES:
            yield from concatenated(held).pieces(2 * _GATHER_BYTES)
            held, size = [], 0
    yield from concatenated(held or [EMPTY_COLUMNS]).pieces(2 * _GATHER_BYTES)


def write_metarange(ranges: Iterable[RangeInfo], sink: ByteSink) -> RangeInfo:
    """The metarange of these ranges, which are sorted by their keys. RangeRecordError when two of them overlap."""
    ordered = sorted(ranges, key=lambda item: (item.max_key, item.min_key))
    for item, other in pairwise(ordered):
        if other.min_key <= item.max_key:
            raise RangeRecordError(other.min_key, f"range {other.id} overlaps range {item.id}")
    writer = RangeWriter(sink, TableKind.METARANGES)
    writer.add(
        RecordColumns.of(
            (
                item.max_key,
                frame_value(
                    item.id.encode(), RangeData(item.min_key, item.max_key, item.estimated_size, item.count).encode()
                ),
            )
            for item in ordered
        )
    )
    return writer.finish()


def read_metarange(
    reader: TableReader, name: str, start: bytes = b"", *, batch_bytes: int = BATCH_BYTES
) -> Iterator[RangeInfo]:
    """The ranges that a metarange lists, in order, from the first that may hold a key from `start` on.

    `batch_bytes`: so much is decoded at once, at least a block.
    CorruptRangeError (`name` is the metarange's) when one has another key than it says, or overlaps the one before.
    """
    last: bytes | None = None
    for batch in reader.batches(start, batch_bytes=batch_bytes):
        for key, value in batch.pairs():
            try:
                identity, data = split_value(value)
                info = RangeData.decode(data, name=name)
                identifier = identity.decode("ascii")
            except (FramingError, CorruptMessageError, UnicodeDecodeError) as error:
                raise CorruptRangeError(
                    name, 0, f"the record {shown_bytes(key)} lists no range ({type(error).__name__})"
                ) from None
            if info.max_key != key or info.min_key > key or (last is not None and info.min_key <= last):
                raise CorruptRangeError(name, 0, f"the bounds of {shown_bytes(key)} contradict its neighbours")
            last = key
            yield RangeInfo(identifier, info.min_key, info.max_key, info.count, info.estimated_size)


def table_id(reader: TableReader, kind: TableKind) -> str:
    """The id that the records of a table have: all of it is read, and the id should be the object's name."""
    identity = RangeIdentity()
    for batch in reader.batches():
        identity.add(batch)
    return identity.hexdigest({"type": kind.value})
