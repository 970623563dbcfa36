"""Blocks as plain data, and where they lie below the root of a store."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from compaction.api.text.printing import plural, printable
from compaction.blocks.errors import InvalidTenantError

# Blocks as everybody sees them: the index, the planner, the rewrite. Plain frozen data.
#
# Units: bytes; rows; epoch microseconds (UTC) for times of data, inclusive on both ends. A block is immutable:
# whatever changes gets another id.

SECOND: Final = 1_000_000
"""Times are microseconds."""
ALGORITHM: Final = "rows64-2"
"""How fingerprints are computed (`fingerprint`)."""
DIGEST_BITS: Final = 64
_DIGESTS: Final = 1 << DIGEST_BITS


class BlockKey(NamedTuple):
    """The key of blocks that are compacted together: those of one tenant, shard and level; never of two."""

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


# Paths of blocks: `<tenant>/<shard>/<ULID>.parquet` below the store's root, in every store alike.
#
# A tenant is any text of one line: without control characters and marks of direction. What is not a letter, a digit,
# `_` or `-` of ASCII (or a dot behind the first character) is written as `=` and two hexadecimal digits for each byte
# of UTF-8, so no name leaves its folder, and two names never share one.

SUFFIX: Final = ".parquet"
MAX_TENANT: Final = 200
"""Bytes of an escaped tenant: folders hold names of 255."""
MAX_SHARD: Final = (1 << 31) - 1

ULID_TEXT: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", re.ASCII)
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_-]")
_ESCAPED: Final = re.compile(r"(?:[A-Za-z0-9_-]|=[0-9A-F]{2})(?:[A-Za-z0-9_.-]|=[0-9A-F]{2})*", re.ASCII)
_SHARD: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class BlockPlace(NamedTuple):
    """The parts of a block's path."""

    tenant: str
    shard: int
    id: str


def block_path(tenant: str, shard: int, block: str) -> str:
    """The path of a block. Raises InvalidTenantError; ValueError for a shard or id that no block has."""
    if not 0 <= shard <= MAX_SHARD:
        raise ValueError(f"shard {shard} is not in 0..{MAX_SHARD}")
    if not ULID_TEXT.fullmatch(block):
        raise ValueError(f"{block!r} is not a ULID in upper case")
    return f"{shard_prefix(tenant, shard)}/{block}{SUFFIX}"


def shard_prefix(tenant: str, shard: int) -> str:
    """The folder of a tenant's shard."""
    return f"{escape_tenant(tenant)}/{shard}"


def escape_tenant(tenant: str) -> str:
    """A tenant as one part of a path. Raises InvalidTenantError: empty, too long, or no text of one line.

    This is the rule of every entrance: commands, HTTP, the index, and, in its own words, the resources
    (`api/policy/block_store.py`).
    """
    if (shown := printable(tenant)) != tenant:
        raise InvalidTenantError(
            f"tenant {shown[:60]!r} holds control characters or marks of direction: leave them out"
        )
    try:
        data = tenant.encode()
    except UnicodeEncodeError:
        raise InvalidTenantError(f"tenant {tenant!r} cannot be written in UTF-8") from None
    parts = [
        chr(byte) if _PLAIN.match(bytes([byte])) or (byte == 0x2E and position) else f"={byte:02X}"
        for position, byte in enumerate(data)
    ]
    escaped = "".join(parts)
    if not 1 <= len(escaped) <= MAX_TENANT:
        raise InvalidTenantError(
            f"tenant {tenant[:40]!r} takes {len(escaped)} bytes of a path, allowed are 1 to {MAX_TENANT}"
        )
    return escaped


def place_problem(tenant: str, shard: int) -> str:
    """Return the reason for which no block can be of this tenant and shard; empty when one can."""
    try:
        escape_tenant(tenant)
    except InvalidTenantError as error:
        return str(error)
    return "" if 0 <= shard <= MAX_SHARD else f"shard {shard} is not in 0..{MAX_SHARD}"


def unescape_tenant(part: str) -> str | None:
    """The tenant of a folder; None for one that `escape_tenant` does not make."""
    if not _ESCAPED.fullmatch(part):
        return None
    data = re.sub(rb"=([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), part.encode())
    try:
        tenant = data.decode()
        return tenant if escape_tenant(tenant) == part else None
    except (UnicodeDecodeError, InvalidTenantError):
        # The path escapes a tenant as we never do, so it is not one of ours.
        return None


def parse_block_path(path: str) -> BlockPlace | None:
    """The inverse of `block_path`; None for everything else, which is not ours to touch."""
    parts = path.split("/")
    if len(parts) != 3 or not parts[2].endswith(SUFFIX) or not _SHARD.fullmatch(parts[1]):
        return None
    tenant, shard, block = unescape_tenant(parts[0]), int(parts[1]), parts[2].removesuffix(SUFFIX)
    if tenant is None or shard > MAX_SHARD or not ULID_TEXT.fullmatch(block):
        return None
    return BlockPlace(tenant, shard, block)


# The targets of a block store, and a planned job in its words.
#
# A target is a batch, `<tenant>/<shard>/L<level>/<its first id in order>`: no other batch has that block, so jobs of
# one key run beside one another, and the parts that a Faulty job is split into take turns.


@dataclass(frozen=True, slots=True)
class BlockWork:
    """A planned job: `sources` ascending, all of one tenant and shard; their outputs are of `output_level`. A source
    may be of a lower level than `level`: it has skipped some.
    """

    tenant: str
    shard: int
    level: int
    sources: tuple[str, ...]

    @property
    def output_level(self) -> int:
        """The level of what comes out."""
        return self.level + 1


def work_of(target: str, level: int, sources: tuple[str, ...]) -> BlockWork:
    """Return the work of a job of a block store."""
    tenant, shard, _, _ = target.rsplit("/", 3)
    return BlockWork(tenant=tenant, shard=int(shard), level=level, sources=sources)


def target_name(tenant: str, shard: int, level: int, first: str) -> str:
    """The name of a target."""
    return f"{tenant}/{shard}/L{level}/{first}"


def tenant_of_target(target: str) -> str:
    """The tenant of a target; "" for a name in another form."""
    parts = target.rsplit("/", 3)
    return parts[0] if len(parts) == 4 else ""


def format_merge(sources: int, outputs: int) -> str:
    """Say what a job did with blocks: `20 blocks merged into 1`; nothing comes of those without rows."""
    blocks = plural(sources, "block")
    return f"{blocks} merged into {outputs}" if outputs else f"{blocks} without rows dropped"
