"""Rows of staging tokens, by the column, and layers of them as one stream in which each key is once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compaction.errors import shown_bytes
from compaction.staging.errors import CorruptMessageError, KeyValueArgumentError
from compaction.staging.format.columns import (
    BINARY,
    EMPTY_COLUMNS,
    I64,
    LONGEST32,
    TOMBSTONE,
    U8,
    RecordColumns,
    concatenated,
    data_of,
    decode_varints,
    encode_varints,
    joined,
    lengths_of,
    offsets_of,
    pieces_of,
    rows_where,
    tombstones,
)
from compaction.staging.format.identity import (
    MAX_PART_BYTES,
    FramingError,
    ValueColumns,
    frame_value,
    frame_values,
    split_value,
    split_values,
)
from compaction.staging.format.messages import StagedEntryData
from compaction.staging.kv.port import Expected, KeyValueStore, Pair, Presence

# Rows of a staging token and changes by the column: both ways, without Python per record for rows of the usual order.
#
# docs/design/staging.md#staged-changes.

_KEY, _IDENTITY, _DATA = b"\x0a", b"\x12", b"\x1a"
"""How fields 1, 2 and 3 begin when they are bytes."""
_PADDING: Final = LONGEST32 + 2
FEW: Final = 16
"""Rows that are decoded faster one by one."""


def encode_row(key: bytes, value: bytes) -> bytes:
    """The row of one change; `value` is framed, or b"" for a tombstone. KeyValueArgumentError without an identity, or
    when it is not framed.
    """
    try:
        identity, data = split_value(value) if value else (b"", b"")
    except FramingError as error:
        raise KeyValueArgumentError(
            f"{shown_bytes(key)}: its value is not framed: {error}; frame identity and data"
        ) from None
    if value and not identity:
        raise _no_identity(key)
    return StagedEntryData(key=key, identity=identity, data=data).encode()


def decode_row(token: str, key: bytes, row: bytes) -> bytes:
    """The framed value in a row, b"" for a tombstone. CorruptMessageError names token and key."""
    name = f"{token}: row {shown_bytes(key)}"
    entry = StagedEntryData.decode(row, name=name)
    if entry.key != key:
        raise CorruptMessageError(name, StagedEntryData.NAME, 0, f"its message is of another key, {entry.key[:80]!a}")
    if max(len(entry.identity), len(entry.data)) > MAX_PART_BYTES:
        raise CorruptMessageError(name, StagedEntryData.NAME, 0, f"a part is larger than {MAX_PART_BYTES} bytes")
    return TOMBSTONE if entry.tombstone else frame_value(entry.identity, entry.data)


def encode_rows(changes: RecordColumns) -> list[Pair]:
    """The rows of many changes.

    Raises:
        KeyValueArgumentError: a change is no tombstone and has no identity.
        RangeRecordError: a value is not framed.
    """
    deleted = tombstones(changes)
    live = rows_where(changes, ~deleted)
    parts = split_values(live)
    identities = lengths_of(parts.identities)
    if not identities.all():
        raise _no_identity(live.keys[int(np.argmin(identities))].as_py())
    messages = joined(_fields(_KEY, live.keys), _fields(_IDENTITY, parts.identities), _fields(_DATA, parts.data))
    if deleted.any():
        mixed = np.empty(len(changes), dtype=np.int64)
        mixed[~deleted] = np.arange(len(live))
        mixed[deleted] = np.arange(len(live), len(changes))
        tombs = _fields(_KEY, rows_where(changes, deleted).keys)
        messages = pa.concat_arrays([messages, tombs]).take(pa.array(mixed))
    return list(zip(changes.keys.to_pylist(), messages.to_pylist(), strict=True))


def _fields(tag: bytes, values: Any) -> Any:
    """Of each value its field, nothing for an empty one."""
    lengths = lengths_of(values)
    fields = joined(tag, encode_varints(lengths), values)
    return fields if lengths.all() else pc.if_else(pa.array(lengths > 0), fields, pa.scalar(b"", BINARY))


def _no_identity(key: bytes) -> KeyValueArgumentError:
    return KeyValueArgumentError(
        f"{shown_bytes(key)}: a change without an identity; pass an identity, or set a tombstone"
    )


def decode_rows(token: str, rows: Sequence[Pair]) -> RecordColumns:
    """The changes in a page of rows, in their order. CorruptMessageError names token and key."""
    if len(rows) < FEW:
        return RecordColumns.of((key, decode_row(token, key, row)) for key, row in rows)
    keys = pa.array([key for key, _ in rows], BINARY)
    messages = pa.array([row for _, row in rows], BINARY)
    places = _Places.of(messages)
    usual = places.usual & pc.equal(pieces_of(places.data, *places.key), keys).to_numpy(zero_copy_only=False)
    parts = ValueColumns(pieces_of(places.data, *places.identity), pieces_of(places.data, *places.entry))
    values = frame_values(parts)
    deleted = usual & (lengths_of(parts.identities) == 0)
    if not usual.all() or deleted.any():
        # Without an identity the data is of no meaning; other rows are few and decoded one by one.
        special = ~usual | deleted
        known = zip(np.flatnonzero(special).tolist(), deleted[special].tolist(), strict=True)
        odd = [b"" if is_deleted else decode_row(token, *rows[at]) for at, is_deleted in known]
        values = pc.replace_with_mask(values, pa.array(special), pa.array(odd, BINARY))
    return RecordColumns(keys, values)


Span = tuple[I64, I64]


@dataclass(frozen=True, slots=True)
class _Places:
    """The places in `data` where the parts of each message begin and end. `usual`: fields 1, 2 and 3 in this order,
    nothing else; only of these rows the places are meant, those of others are empty.
    """

    data: U8
    usual: npt.NDArray[np.bool_]
    key: Span
    identity: Span
    entry: Span

    @classmethod
    def of(cls, messages: Any) -> _Places:
        offsets = offsets_of(messages)
        data = np.concatenate((data_of(messages)[offsets[0] : offsets[-1]], np.zeros(_PADDING, dtype=np.uint8)))
        begins, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
        key = _field(data, _KEY, begins, ends)
        identity = _field(data, _IDENTITY, key[1], ends)
        entry = _field(data, _DATA, identity[1], ends)
        usual = entry[1] == ends
        for item in (key, identity, entry):
            usual &= item[1] - item[0] <= MAX_PART_BYTES
        # The parts of all rows are cut out together, so those that are not meant must be in order too.
        spans = (
            (np.where(usual, item[0], begins), np.where(usual, item[1], begins)) for item in (key, identity, entry)
        )
        return cls(data, usual, *spans)


def _field(data: U8, tag: bytes, at: I64, ends: I64) -> Span:
    """The content of a field that begins at `at`; empty and at `at` where there is no such field within its row."""
    lengths, begins = decode_varints(data, at + 1)
    stops = begins + lengths
    found = (data[at] == tag[0]) & (at < ends) & (lengths > 0) & (stops <= ends)
    return np.where(found, begins, at), np.where(found, stops, at)


# Staging tokens in a key-value store: staged changes of single objects, of many, and whole tokens in order.
#
# docs/design/staging.md#staged-changes.


def new_token(repository: str, branch: str) -> str:
    """The name of a token that never was."""
    return f"{repository}-{branch}:{uuid4()}"


def after_prefix(prefix: bytes) -> bytes | None:
    """The smallest key above all keys with this prefix; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A staged change. `value`: framed, or b"" for a tombstone. `raw`: the row as it was read, for `set_if`."""

    value: bytes
    raw: bytes


class StagedTokens:
    """The staged changes of tokens. A value is framed (docs/design/staging.md#values), b"" stands for a tombstone.

    Every method raises DatabaseError when the store cannot be used, and those that read rows CorruptMessageError, which
    names token and key. May be used by many threads.
    """

    def __init__(self, kv: KeyValueStore) -> None:
        self.kv = kv

    def read(self, token: str, key: bytes) -> StagedRow | None:
        """The change of one object with its row, None when there is none."""
        raw = self.kv.get(token, key)
        return None if raw is None else StagedRow(decode_row(token, key, raw), raw)

    def get(self, token: str, key: bytes) -> bytes | None:
        """The change of one object: framed value, b"" for a tombstone, None when there is none."""
        row = self.read(token, key)
        return None if row is None else row.value

    def get_many(self, token: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The changes of those of the objects that have one, as `get` returns them."""
        return {key: decode_row(token, key, raw) for key, raw in self.kv.get_many(token, keys).items()}

    def set(self, token: str, key: bytes, value: bytes) -> None:
        """Stage a change, whatever was there. KeyValueArgumentError for a value without an identity."""
        self.kv.set(token, key, encode_row(key, value))

    def set_tombstone(self, token: str, key: bytes) -> None:
        """Stage a deletion."""
        self.set(token, key, TOMBSTONE)

    def set_if(self, token: str, key: bytes, value: bytes, expected: Expected) -> None:
        """Stage a change if the row is as expected: absent, present, or `StagedRow.raw`. PredicateFailedError when it
        is not.
        """
        self.kv.set_if(token, key, encode_row(key, value), expected)

    def update(self, token: str, key: bytes, change: Callable[[bytes | None], bytes | None]) -> None:
        """Stage what `change` makes of the change there is; None leaves it. PredicateFailedError when another writer
        came between.
        """
        row = self.read(token, key)
        value = change(None if row is None else row.value)
        if value is not None:
            self.set_if(token, key, value, Presence.ABSENT if row is None else row.raw)

    def set_many(self, token: str, changes: RecordColumns) -> None:
        """Stage many changes: all of them, or none."""
        self.kv.set_many(token, encode_rows(changes))

    def has_rows(self, token: str) -> bool:
        """Return whether anything is staged in a token."""
        return next(iter(self.kv.scan(token, page=1)), None) is not None

    def remove(self, token: str, key: bytes) -> None:
        """Delete the row of an object: below it counts what older tokens say."""
        self.kv.delete(token, key)

    def changes(
        self, token: str, start: bytes = b"", stop: bytes | None = None, *, page: int = 1000
    ) -> Iterator[RecordColumns]:
        """The changes with start <= key < stop in the order of their keys, page by page; no snapshot. `page`: rows of
        the first one.
        """
        for rows in self.kv.scan(token, start, stop, page=page):
            yield decode_rows(token, rows)

    def drop(self, token: str, *, pause: Callable[[int], object] = lambda _: None) -> int:
        """Delete all rows of a token, page by page, and return how many; may be interrupted and repeated. `pause` is
        called with the rows of each page, to go slowly.
        """
        return self.drop_prefix(token, b"", pause=pause)

    def drop_prefix(self, token: str, prefix: bytes, *, pause: Callable[[int], object] = lambda _: None) -> int:
        """Delete the rows whose key has a prefix, as `drop` does."""
        dropped = 0
        while True:
            before = dropped
            for rows in self.kv.scan(token, prefix, after_prefix(prefix)):
                self.kv.delete_many(token, [key for key, _ in rows])
                dropped += len(rows)
                pause(len(rows))
            # A writer that is slow may have come in behind the scan.
            if dropped == before:
                return dropped


# Layers of staged changes, the newest first, as one stream in which each key is once: by whole columns.
#
# docs/design/staging.md#layers.

BUFFERED: Final = 1 << 17
"""Records that the layers which have not ended buffer together before a round. The first rounds take fewer, since a
listing often wants only the first few keys.
"""
BUFFERED_BYTES: Final = 64 << 20
"""The same in bytes: fewer records where they are large."""
SMALLEST_SHARE: Final = 256
LARGEST_BATCH: Final = 1 << 16
"""Records of a batch that is returned."""


class _Layer:
    """The remainder of one stream: `buffered` batches, in order, and whether there will be more."""

    __slots__ = ("_batches", "_stream", "ended", "nbytes", "records")

    def __init__(self, stream: Iterable[RecordColumns]) -> None:
        self._stream = iter(stream)
        self._batches: list[RecordColumns] = []
        self.records = self.nbytes = 0
        self.ended = False

    def fill(self, share: int, nbytes: int) -> None:
        """Buffer at least `share` records or so many bytes, or all there are."""
        while not self.ended and (not self.records or (self.records < share and self.nbytes < nbytes)):
            batch = next(self._stream, None)
            if batch is None:
                self.ended = True
            elif len(batch):
                self._batches.append(batch)
                self.records += len(batch)
                self.nbytes += batch.nbytes

    @property
    def last_key(self) -> bytes:
        return _key(self._batches[-1], -1)

    def take(self, cut: bytes | None) -> RecordColumns:
        """Remove and return the buffered records with keys up to `cut`; all of them for None."""
        taken = []
        while self._batches:
            batch = self._batches[0]
            if cut is None or _key(batch, -1) <= cut:
                taken.append(self._batches.pop(0))
                continue
            count = 0
            if _key(batch, 0) <= cut:
                count = bisect_right(range(len(batch)), cut, key=lambda at: _key(batch, at))
                taken.append(batch.slice(0, count))
                self._batches[0] = batch.slice(count, len(batch))
            break
        found = concatenated(taken)
        self.records -= len(found)
        self.nbytes -= found.nbytes
        return found

    def rest(self) -> Iterator[RecordColumns]:
        """All that is left, without buffering it."""
        yield from self._batches
        self._batches = []
        yield from self._stream


def _key(batch: RecordColumns, at: int) -> bytes:
    found: bytes = batch.keys[at].as_py()
    return found


def layered(layers: Sequence[Iterable[RecordColumns]]) -> Iterator[RecordColumns]:
    """The records of all layers in the order of their keys, of equal keys the one of the first layer that has it;
    tombstones are kept.

    Each layer is a stream of batches whose keys ascend strictly, within and across them. Memory: for each layer one
    batch and its share of `BUFFERED` records.
    """
    left = [_Layer(stream) for stream in layers]
    share = SMALLEST_SHARE
    while len(left) > 1:
        for layer in left:
            layer.fill(share, BUFFERED_BYTES // len(left))
        left = _joined_neighbours([layer for layer in left if layer.records])
        share = max(SMALLEST_SHARE, min(2 * share, BUFFERED // max(1, len(left))))
        cut = min((layer.last_key for layer in left if not layer.ended), default=None)
        decided = _newest([layer.take(cut) for layer in left])
        for begin in range(0, len(decided), LARGEST_BATCH):
            yield decided.slice(begin, min(begin + LARGEST_BATCH, len(decided)))
    for layer in left:
        yield from (batch for batch in layer.rest() if len(batch))


def _joined_neighbours(layers: list[_Layer]) -> list[_Layer]:
    """The layers with neighbours that ended joined into one, where that makes them fewer by a quarter or more: so each
    record is joined a few times, not once for every other layer that ends.
    """
    groups: list[list[_Layer]] = []
    for layer in layers:
        if groups and layer.ended and groups[-1][-1].ended:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    if len(layers) - len(groups) < max(1, len(layers) // 4):
        return layers
    return [group[0] if len(group) == 1 else _ended(group) for group in groups]


def _ended(group: list[_Layer]) -> _Layer:
    joined = _Layer([_newest([layer.take(None) for layer in group])])
    joined.fill(1, 1)
    joined.ended = True
    return joined


def _newest(parts: list[RecordColumns]) -> RecordColumns:
    """Sorted, of equal keys the record of the first part that has it."""
    some = [part for part in parts if len(part)]
    if len(some) < 2:
        return some[0] if some else EMPTY_COLUMNS
    together = concatenated(some)
    # The sort is stable, so the first of equal keys stays the first.
    order = pc.array_sort_indices(together.keys)
    keys = together.keys.take(order)
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    if not first.all():
        kept = pa.array(np.flatnonzero(first))
        order, keys = order.take(kept), keys.take(kept)
    return RecordColumns(keys, together.values.take(order))
