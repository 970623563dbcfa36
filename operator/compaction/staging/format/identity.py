"""Content identities of ranges, entries and commits, and the frame that holds one beside its data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from compaction.staging.errors import RangeRecordError
from compaction.staging.format.columns import (
    BINARY,
    I64,
    LONGEST32,
    RecordColumns,
    content_of,
    data_of,
    decode_varint,
    decode_varints,
    encode_varint,
    encode_varints,
    joined,
    lengths_of,
    offsets_of,
    pieces_of,
)
from compaction.staging.format.messages import CatalogEntry, CommitData

# Content identities: of ranges and metaranges, entries and commits (docs/design/staging.md#identities).
#
# All are SHA-256. Those of ranges count records alone: not how they are compressed or cut into blocks.

_BYTES, _STRING, _INT64, _STRINGS, _MAP, _EMBEDDED = range(6)
_COMMIT: Final = "commit:v1"
_SMALL: Final = 4096
_DECIMALS: Final[Any] = pa.array([b"|%d" % number for number in range(_SMALL)], BINARY)


class ContentIdentity:
    """Items hashed one after the other, each behind a byte that says its type."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def integer(self, value: int) -> ContentIdentity:
        """A signed integer of 64 bits."""
        self._hash.update(bytes([_INT64, 8]) + value.to_bytes(8, "big", signed=True))
        return self

    def string(self, value: str) -> ContentIdentity:
        """A string by its UTF-8 bytes."""
        return self._sized(_STRING, value.encode(errors="surrogateescape"))

    def data(self, value: bytes) -> ContentIdentity:
        """Bytes."""
        return self._sized(_BYTES, value)

    def strings(self, values: Iterable[str]) -> ContentIdentity:
        """Several strings in their order."""
        every = list(values)
        self._hash.update(bytes([_STRINGS]))
        self.integer(len(every))
        for value in every:
            self.string(value)
        return self

    def mapping(self, pairs: Mapping[str, str]) -> ContentIdentity:
        """A map of strings, in the order of its keys' bytes."""
        self._hash.update(bytes([_MAP]))
        self.integer(len(pairs))
        for key in sorted(pairs, key=lambda name: name.encode(errors="surrogateescape")):
            self.string(key).string(pairs[key])
        return self

    def embedded(self, digest: bytes) -> ContentIdentity:
        """The digest of other content."""
        self._hash.update(bytes([_EMBEDDED]))
        return self.data(digest)

    def records(self, content: Any) -> ContentIdentity:
        """Bytes as they are, without a type."""
        self._hash.update(content)
        return self

    def digest(self) -> bytes:
        """32 bytes."""
        return self._hash.digest()

    def _sized(self, kind: int, value: bytes) -> ContentIdentity:
        self._hash.update(bytes([kind]))
        self.integer(len(value))
        self._hash.update(value)
        return self


class RangeIdentity:
    """The id of a range or metarange, batch by batch."""

    def __init__(self) -> None:
        self._identity = ContentIdentity()
        self._empty = True

    def add(self, records: RecordColumns) -> None:
        """Records in the order of the table."""
        if not len(records):
            return
        # Each length stands behind the "|" that ends what comes before it; the very first has none.
        heads, middles = _decimals(lengths_of(records.keys)), _decimals(lengths_of(records.values))
        middles = joined(middles)
        content = content_of(joined(heads, records.keys, middles, records.values))
        self._identity.records(content[1:] if self._empty else content)
        self._empty = False

    def hexdigest(self, user: Mapping[str, str]) -> str:
        """The id: 64 hexadecimal digits. `user`: the properties that are set when writing begins."""
        if not self._empty:
            self._identity.records(b"|")
            self._empty = True
        return self._identity.mapping(user).digest().hex()


def _decimals(lengths: I64) -> Any:
    """Of each length `|` and its decimal digits."""
    if int(lengths.max(initial=0)) < _SMALL:
        return _DECIMALS.take(pa.array(lengths))
    found, rows = np.unique(lengths, return_inverse=True)
    return pa.array([b"|%d" % number for number in found.tolist()], BINARY).take(pa.array(rows))


def entry_identity(entry: CatalogEntry) -> bytes:
    """The identity of an object: size, ETag, metadata, and the content type where there is one; 32 bytes.

    Neither where the object lies nor when it was written is part of it.
    """
    identity = ContentIdentity().integer(entry.size).string(entry.e_tag).mapping(entry.metadata)
    if entry.content_type:
        identity.string(entry.content_type)
    return identity.digest()


def commit_id(commit: CommitData) -> str:
    """The id of a commit: 64 hexadecimal digits. Neither its generation nor its version is part of it."""
    parents = ContentIdentity().strings(commit.parents).digest()
    identity = (
        ContentIdentity().string(_COMMIT).string(commit.committer).string(commit.message).string(commit.meta_range_id)
    )
    identity.integer(commit.creation_date.seconds).mapping(commit.metadata)
    return identity.embedded(parents).digest().hex()


# The contents of a value of a range or a metarange: an identity and data, each behind its length.
#
# By the column for ranges, one at a time for the few records of a metarange (docs/design/staging.md#values).

MAX_PART_BYTES: Final = 40 << 20


class FramingError(ValueError):
    """A value is wrong; the reader knows whose it is."""


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
