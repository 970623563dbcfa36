"""The schemas of blocks in the index: each once, under the id that blocks have of it. They are never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, insert, select

from compaction.blocks.index.engine import IndexChange, IndexDatabase
from compaction.blocks.index.rows import chunks
from compaction.blocks.index.tables import SCHEMAS
from compaction.blocks.model import Block


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
