"""Content identities: of ranges and metaranges, entries and commits (docs/design/staging.md#identities).

All are SHA-256. Those of ranges count records alone: not how they are compressed or cut into blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from compaction.staging.format.columns import BINARY, I64, RecordColumns, content_of, joined, lengths_of
from compaction.staging.format.messages import CatalogEntry, CommitData

_BYTES, _STRING, _INT64, _STRINGS, _MAP, _EMBEDDED = range(6)
_COMMIT: Final = "commit:v1"
_SMALL: Final = 4096
_DECIMALS: Final[Any] = pa.array([b"|%d" % number for number in range(_SMALL)], BINARY)


class Identity:
    """Items hashed one after the other, each behind a byte that says its type."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def integer(self, value: int) -> Identity:
        """A signed integer of 64 bits."""
        self._hash.update(bytes([_INT64, 8]) + value.to_bytes(8, "big", signed=True))
        return self

    def string(self, value: str) -> Identity:
        """A string by its UTF-8 bytes."""
        return self._sized(_STRING, value.encode(errors="surrogateescape"))

    def data(self, value: bytes) -> Identity:
        """Bytes."""
        return self._sized(_BYTES, value)

    def strings(self, values: Iterable[str]) -> Identity:
        """Several strings in their order."""
        every = list(values)
        self._hash.update(bytes([_STRINGS]))
        self.integer(len(every))
        for value in every:
            self.string(value)
        return self

    def mapping(self, pairs: Mapping[str, str]) -> Identity:
        """A map of strings, in the order of its keys' bytes."""
        self._hash.update(bytes([_MAP]))
        self.integer(len(pairs))
        for key in sorted(pairs, key=lambda name: name.encode(errors="surrogateescape")):
            self.string(key).string(pairs[key])
        return self

    def embedded(self, digest: bytes) -> Identity:
        """The digest of other content."""
        self._hash.update(bytes([_EMBEDDED]))
        return self.data(digest)

    def records(self, content: Any) -> Identity:
        """Bytes as they are, without a type."""
        self._hash.update(content)
        return self

    def digest(self) -> bytes:
        """32 bytes."""
        return self._hash.digest()

    def _sized(self, kind: int, value: bytes) -> Identity:
        self._hash.update(bytes([kind]))
        self.integer(len(value))
        self._hash.update(value)
        return self


class RangeIdentity:
    """The id of a range or metarange, batch by batch."""

    def __init__(self) -> None:
        self._identity = Identity()
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
    identity = Identity().integer(entry.size).string(entry.e_tag).mapping(entry.metadata)
    if entry.content_type:
        identity.string(entry.content_type)
    return identity.digest()


def commit_id(commit: CommitData) -> str:
    """The id of a commit: 64 hexadecimal digits. Neither its generation nor its version is part of it."""
    parents = Identity().strings(commit.parents).digest()
    identity = Identity().string(_COMMIT).string(commit.committer).string(commit.message).string(commit.meta_range_id)
    identity.integer(commit.creation_date.seconds).mapping(commit.metadata)
    return identity.embedded(parents).digest().hex()
