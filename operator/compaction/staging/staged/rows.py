"""Rows of a staging token and changes by the column: both ways, without Python per record for rows of the usual order.

docs/design/staging.md#staged-changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compaction.errors import shown_bytes
from compaction.staging.changes import TOMBSTONE, rows_where, tombstones
from compaction.staging.errors import CorruptMessageError, KeyValueArgumentError
from compaction.staging.format.columns import (
    BINARY,
    I64,
    U8,
    RecordColumns,
    data_of,
    joined,
    lengths_of,
    offsets_of,
    pieces_of,
)
from compaction.staging.format.framing import (
    MAX_PART_BYTES,
    FramingError,
    ValueColumns,
    frame_value,
    frame_values,
    split_value,
    split_values,
)
from compaction.staging.format.messages import StagedEntryData
from compaction.staging.format.varints import LONGEST32, decode_varints, encode_varints
from compaction.staging.kv.port import Pair

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
        odd = [b"" if given else decode_row(token, *rows[at]) for at, given in _special(usual, deleted)]
        values = pc.replace_with_mask(values, pa.array(~usual | deleted), pa.array(odd, BINARY))
    return RecordColumns(keys, values)


def _special(usual: npt.NDArray[np.bool_], deleted: npt.NDArray[np.bool_]) -> list[tuple[int, bool]]:
    """The rows whose value is replaced, and whether they are known to be tombstones."""
    at = np.flatnonzero(~usual | deleted)
    return list(zip(at.tolist(), deleted[at].tolist(), strict=True))


Span = tuple[I64, I64]


@dataclass(frozen=True, slots=True)
class _Places:
    """Where in `data` the parts of each message begin and end. `usual`: fields 1, 2 and 3 in this order, nothing else;
    only of these rows the places are meant, those of others are empty.
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
        for one in (key, identity, entry):
            usual &= one[1] - one[0] <= MAX_PART_BYTES
        # The parts of all rows are cut out together, so those that are not meant must be in order too.
        spans = ((np.where(usual, one[0], begins), np.where(usual, one[1], begins)) for one in (key, identity, entry))
        return cls(data, usual, *spans)


def _field(data: U8, tag: bytes, at: I64, ends: I64) -> Span:
    """The content of a field that begins at `at`; empty and at `at` where there is no such field within its row."""
    lengths, begins = decode_varints(data, at + 1)
    stops = begins + lengths
    found = (data[at] == tag[0]) & (at < ends) & (lengths > 0) & (stops <= ends)
    return np.where(found, begins, at), np.where(found, stops, at)
