"""Blocks as everybody sees them: the index, the planner, the rewrite. Plain frozen data.

Units: bytes; rows; epoch microseconds (UTC) for times of data, inclusive on both ends. A block is immutable: whatever
changes gets another id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

SECOND: Final = 1_000_000
"""Times are microseconds."""
ALGORITHM: Final = "rows64-2"
"""How fingerprints are computed (`fingerprint`)."""
DIGEST_BITS: Final = 64
_DIGESTS: Final = 1 << DIGEST_BITS


class BlockKey(NamedTuple):
    """What is compacted together: blocks of one tenant, shard and level; never of two."""

    tenant: str
    shard: int
    level: int


@dataclass(frozen=True, slots=True)
class RowFingerprint:
    """The content of a set of rows, whatever their order, their encoding and the number of files they lie in.

    `digest` is the sum of the rows' 64-bit hashes modulo 2^64, so the fingerprint of a union of files is the sum of
    theirs, and a row that is there twice counts twice.
    """

    rows: int = 0
    digest: int = 0

    def __add__(self, other: RowFingerprint) -> RowFingerprint:
        return RowFingerprint(self.rows + other.rows, (self.digest + other.digest) % _DIGESTS)

    def __sub__(self, other: RowFingerprint) -> RowFingerprint:
        return RowFingerprint(self.rows - other.rows, (self.digest - other.digest) % _DIGESTS)

    def __str__(self) -> str:
        return f"{self.rows}:{self.digest:016x}"

    @classmethod
    def parse(cls, text: str) -> RowFingerprint:
        """The inverse of `str`. Raises ValueError."""
        rows, colon, digest = text.partition(":")
        if not (colon and rows.isascii() and rows.isdecimal() and len(digest) == DIGEST_BITS // 4):
            raise ValueError(f"{text!r} is not a fingerprint: <rows>:<16 hexadecimal digits>")
        return cls(int(rows), int(digest, 16))


@dataclass(frozen=True, slots=True)
class Block:
    """One block: the ULID says when it was made, `path` is its key below the store's root.

    `sort_key` names the columns by which its rows are sorted, in order; empty when they are not. `schema_id` tells
    schemas apart (a digest of names, types and nullability); blocks of different ids may still be merged. `schema`: the
    schema itself (`schema_classes.schema_text`) of a block whose footer was read; "" for one that the index gave: it
    keeps each schema once.
    """

    id: str
    tenant: str
    shard: int
    level: int
    path: str
    min_time: int
    max_time: int
    rows: int
    bytes: int
    fingerprint: RowFingerprint
    sort_key: tuple[str, ...]
    schema_id: str
    schema: str = field(default="", compare=False, repr=False)

    @property
    def key(self) -> BlockKey:
        """With which blocks it may be compacted."""
        return BlockKey(self.tenant, self.shard, self.level)
