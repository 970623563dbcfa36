"""The schema of the index, made or brought up to date by Alembic in one transaction; safe when many do it at once."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Select, column, inspect, select, table

from compaction.blocks.index.engine import IndexDatabase
from compaction.blocks.index.tables import HEAD, NEWEST_SCHEMA

VERSION_TABLE: Final = "block_index_schema"
_VERSION: Final[Select[Any]] = select(column("version_num")).select_from(table(VERSION_TABLE))


def ensure_schema(database: IndexDatabase, *, identity: str) -> str:
    """Make the tables, or bring them up to date; returns the identity of the index.

    `identity`: given to an index that is new; one that exists keeps its own. A caller that deletes objects because the
    index does not know them compares it with what is written beside the objects: the index of another store knows
    nothing.

    Raises:
        DatabaseSchemaError: the schema is of a newer version of this program.
        DatabaseUnavailableError, DatabaseError
    """
    if database.read(_current) != NEWEST_SCHEMA:
        database.ordered(lambda connection: _upgrade(database, connection, identity))
    return database.read(lambda connection: str(connection.execute(select(HEAD.c.identity)).scalar_one()))


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(_VERSION).scalar()
    return found


def _upgrade(database: IndexDatabase, connection: Connection, identity: str) -> None:
    # Alembic takes longer to import than most commands take to ask the index.
    from compaction.blocks.index.migrations.upgrading import upgrade

    upgrade(connection, current=_current(connection), name=database.name, identity=identity)
