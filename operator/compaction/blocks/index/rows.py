"""Blocks and their schemas as rows of the index, and what a block must be to become one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, insert, select
from ulid import ULID

from compaction.blocks.errors import InvalidBlockError, InvalidTenantError
from compaction.blocks.index.tables import BLOCKS, SCHEMAS, IndexChange, IndexDatabase
from compaction.blocks.model import MAX_SHARD, Block, RowFingerprint, escape_tenant

# Blocks as rows of the index, and what a block must be to become one.
#
# What is checked here is only what the index itself relies on; whether the object is what its row says is the
# business of the reader of the object.

T = TypeVar("T")

MAX_INTEGER: Final = 2**63 - 1
MAX_LEVEL: Final = 2**15
MAX_TEXT: Final = 1024
"""Bytes of UTF-8: an index entry of PostgreSQL holds 2704, and keys of object stores end at 1024."""
AT_ONCE: Final = 500
"""Ids in one statement."""
_NUMBERS: Final = ("shard", "level", "rows", "bytes")

CONTENT: Final = tuple(
    BLOCKS.c[name]
    for name in (
        "id", "tenant", "shard", "level", "path", "min_time", "max_time", "rows", "bytes", "digest", "sort_key",
        "schema_id",
    )
)  # fmt: skip
"""The columns that make a `Block`, in the order in which `block_of` takes them."""


def chunks(items: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """The items in parts that one statement can name."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def created_at(block_id: str) -> int:
    """The time in a ULID, epoch microseconds. Raises InvalidBlockError when the id is not one as ULIDs are written."""
    try:
        parsed = ULID.from_str(block_id)
    except ValueError as error:
        raise InvalidBlockError(block_id, f"its id is not a ULID ({error})") from error
    if str(parsed) != block_id:
        raise InvalidBlockError(block_id, f"its id is not written as ULIDs are: {parsed}")
    return int(parsed.milliseconds) * 1000


def checked(blocks: Iterable[Block]) -> dict[str, Block]:
    """The blocks by id, in their order, when all of them can be held by the index.

    Raises:
        InvalidBlockError: names the first block and its field, also when two of them contradict each other.
    """
    by_id: dict[str, Block] = {}
    by_path: dict[str, str] = {}
    for block in blocks:
        _check(block)
        if by_id.setdefault(block.id, block) != block:
            raise InvalidBlockError(block.id, "it is given twice, with different contents")
        if by_path.setdefault(block.path, block.id) != block.id:
            raise InvalidBlockError(block.id, f"its path {block.path} is also that of block {by_path[block.path]}")
    return by_id


def _check(block: Block) -> None:
    created_at(block.id)
    for name in ("tenant", "path", "schema_id", *(f"sort_key[{i}]" for i in range(len(block.sort_key)))):
        value = block.sort_key[int(name[9:-1])] if name.startswith("sort_key") else getattr(block, name)
        if problem := text_problem(value):
            raise InvalidBlockError(block.id, f"{name} {problem}")
    try:
        escape_tenant(block.tenant)
    except InvalidTenantError as error:
        raise InvalidBlockError(block.id, str(error)) from None
    if len(json.dumps(block.sort_key)) > 16 * MAX_TEXT:
        raise InvalidBlockError(block.id, "sort_key is longer than the index can hold")
    for name in _NUMBERS:
        limit = {"level": MAX_LEVEL, "shard": MAX_SHARD}.get(name, MAX_INTEGER)
        if not 0 <= getattr(block, name) <= limit:
            raise InvalidBlockError(block.id, f"{name} is {getattr(block, name)}, which is not in 0..{limit}")
    if not -MAX_INTEGER <= block.min_time <= block.max_time <= MAX_INTEGER:
        raise InvalidBlockError(block.id, f"its times {block.min_time}..{block.max_time} are no range of microseconds")
    if block.fingerprint.rows != block.rows:
        raise InvalidBlockError(block.id, f"it has {block.rows} rows, and its fingerprint {block.fingerprint.rows}")


def text_problem(value: str) -> str:
    """Return the reason for which the index cannot hold this text as a key; empty when it can."""
    if not value:
        return "is empty"
    try:
        if len(value.encode()) > MAX_TEXT:
            return f"is longer than {MAX_TEXT} bytes"
    except UnicodeEncodeError:
        return "cannot be written as UTF-8"
    return "holds the character NUL" if "\0" in value else ""


def row_of(block: Block) -> dict[str, Any]:
    """The columns that the block fills."""
    return {
        "id": block.id,
        "tenant": block.tenant,
        "shard": block.shard,
        "level": block.level,
        "path": block.path,
        "min_time": block.min_time,
        "max_time": block.max_time,
        "rows": block.rows,
        "bytes": block.bytes,
        "digest": f"{block.fingerprint.digest:016x}",
        "sort_key": json.dumps(block.sort_key),
        "schema_id": block.schema_id,
        "created": created_at(block.id),
    }


def block_of(row: Any) -> Block:
    """The block of a row that begins with the columns `CONTENT`."""
    rows, digest = row[7], row[9]
    return Block(
        id=row[0],
        tenant=row[1],
        shard=row[2],
        level=row[3],
        path=row[4],
        min_time=row[5],
        max_time=row[6],
        rows=rows,
        bytes=row[8],
        fingerprint=RowFingerprint(rows, int(digest, 16)),
        sort_key=tuple(json.loads(row[10])),
        schema_id=row[11],
    )


def difference(block: Block, other: Block) -> str:
    """The first field in which two blocks differ, with both values; for messages."""
    for name in (field.name for field in fields(Block) if field.compare):
        mine, theirs = getattr(block, name), getattr(other, name)
        if mine != theirs:
            return f"{name} is {mine}, and was {theirs}"
    return "nothing differs"


# The schemas of blocks in the index: each once, under the id that blocks have of it. They are never changed.


def read_schemas(database: IndexDatabase, ids: Iterable[str]) -> dict[str, str]:
    """The contents of those of the schemas that are known, by id."""
    wanted = sorted(set(ids))
    return database.read(lambda connection: _read(connection, wanted)) if wanted else {}


def add_schemas(database: IndexDatabase, contents: Mapping[str, str]) -> None:
    """Keep schemas that were learnt. Repeating is harmless."""
    if contents:
        database.change(lambda change: _add(change, contents))


def add_schemas_of(change: IndexChange, blocks: Iterable[Block]) -> None:
    """The same for blocks that become live, as a part of a change."""
    _add(change, {block.schema_id: block.schema for block in blocks if block.schema})


def _add(change: IndexChange, contents: Mapping[str, str]) -> None:
    known = _read(change.connection, sorted(contents))
    new = [{"schema_id": name, "content": contents[name]} for name in sorted(contents.keys() - known.keys())]
    if new:
        change.connection.execute(insert(SCHEMAS), new)


def _read(connection: Connection, ids: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in chunks(ids):
        rows = connection.execute(select(SCHEMAS).where(SCHEMAS.c.schema_id.in_(part)))
        found.update((row.schema_id, row.content) for row in rows)
    return found
