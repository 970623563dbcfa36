"""What a value of a range or a metarange holds: an identity and data, each behind its length.

By the column for ranges, one at a time for the few records of a metarange (docs/design/staging.md#values).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from compaction.staging.errors import RangeRecordError
from compaction.staging.format.columns import I64, RecordColumns, data_of, joined, lengths_of, offsets_of, pieces_of
from compaction.staging.format.varints import LONGEST32, decode_varint, decode_varints, encode_varint, encode_varints

MAX_PART_BYTES: Final = 40 << 20


class FramingError(ValueError):
    """What is wrong with a value; the reader knows whose it is."""


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """Parts of values: `identities` and `data` are large_binary arrays, equally long."""

    identities: Any
    data: Any


def frame_value(identity: bytes, data: bytes) -> bytes:
    """One value. Lengths are signed (zigzag) varints."""
    return encode_varint(2 * len(identity)) + identity + encode_varint(2 * len(data)) + data


def split_value(value: bytes) -> tuple[bytes, bytes]:
    """Identity and data of one value; bytes behind them are ignored. Raises FramingError."""
    identity, at = _part(value, 0)
    data, _ = _part(value, at)
    return identity, data


def _part(value: bytes, at: int) -> tuple[bytes, int]:
    begin = at
    try:
        doubled, at = decode_varint(value, at)
    except (IndexError, ValueError):
        raise FramingError("a length is cut off") from None
    if at - begin > LONGEST32:
        raise FramingError("a length takes more bytes than the largest that is allowed")
    if doubled & 1:
        raise FramingError("a length is negative")
    length = doubled >> 1
    if length > MAX_PART_BYTES or length > len(value) - at:
        raise FramingError(f"a part claims {length} bytes of {len(value) - at}")
    return value[at : at + length], at + length


def frame_values(parts: ValueColumns) -> Any:
    """All values as a large_binary array. RangeRecordError when a part is larger than `MAX_PART_BYTES`."""
    identities, data = lengths_of(parts.identities), lengths_of(parts.data)
    if max(identities.max(initial=0), data.max(initial=0)) > MAX_PART_BYTES:
        raise RangeRecordError(b"", f"a part of its value is larger than {MAX_PART_BYTES} bytes")
    return joined(encode_varints(2 * identities), parts.identities, encode_varints(2 * data), parts.data)


def split_values(records: RecordColumns) -> ValueColumns:
    """Identities and data of all values. RangeRecordError names the first record whose value has no such parts."""
    used, begins, ends = _bounds(records)
    first, first_end = _parts(records, used, begins, ends)
    second, second_end = _parts(records, used, first_end, ends)
    return ValueColumns(pieces_of(used, first, first_end), pieces_of(used, second, second_end))


def identities_of(records: RecordColumns) -> Any:
    """The identities of all values alone, as a large_binary array. RangeRecordError as of `split_values`."""
    used, begins, ends = _bounds(records)
    return pieces_of(used, *_parts(records, used, begins, ends))


def _bounds(records: RecordColumns) -> tuple[Any, I64, I64]:
    """The bytes of all values, where each begins and where it ends."""
    offsets, data = offsets_of(records.values), data_of(records.values)
    # A number at the very end is read whole: the padding ends it, and it does not fit into the value.
    used = np.concatenate((data[offsets[0] : offsets[-1]], np.zeros(LONGEST32 + 1, dtype=np.uint8)))
    return used, offsets[:-1] - offsets[0], offsets[1:] - offsets[0]


def _parts(records: RecordColumns, data: Any, at: I64, ends: I64) -> tuple[I64, I64]:
    doubled, begins = decode_varints(data, at)
    parts_end = begins + (doubled >> 1)
    wrong = (doubled < 0) | (doubled & 1 == 1) | (doubled >> 1 > MAX_PART_BYTES) | (parts_end > ends)
    if wrong.any():
        key = records.keys[int(np.argmax(wrong))].as_py()
        raise RangeRecordError(key, "its value has no identity and data: a length is negative or too large")
    return begins, parts_end
