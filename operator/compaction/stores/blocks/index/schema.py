"""The schema of the index, made or brought up to date by Alembic in one transaction; safe when many do it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, inspect, select

from compaction.exceptions import IndexSchemaError
from compaction.stores.blocks.index.engine import IndexDatabase
from compaction.stores.blocks.index.tables import HEAD

VERSION_TABLE: Final = "block_index_schema"
_SCRIPTS: Final = Path(__file__).with_name("migrations")


def ensure_schema(database: IndexDatabase, *, identity: str) -> str:
    """Make the tables, or bring them up to date; returns the identity of the index.

    `identity`: given to an index that is new; one that exists keeps its own. Whoever deletes objects because the index
    does not know them compares it with what is written beside the objects: the index of another store knows nothing.

    Raises:
        IndexSchemaError: the schema is of a newer version of this program.
        IndexUnavailableError, BlockIndexError
    """
    if database.read(_current) != newest_schema():
        database.ordered(lambda connection: _upgrade(database, connection, identity))
    return database.read(lambda connection: str(connection.execute(select(HEAD.c.identity)).scalar_one()))


def newest_schema() -> str:
    """The version of the schema that this program works with."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    assert newest is not None, f"no migrations in {_SCRIPTS}"
    return newest


def _config() -> Config:
    config = Config()
    # The character % starts an interpolation in Alembic's configuration.
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _upgrade(database: IndexDatabase, connection: Connection, identity: str) -> None:
    config = _config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if (current := _current(connection)) is not None and current not in known:
        raise IndexSchemaError(
            database.name, f"its schema ({current}) was made by a newer version of this program: use that, or a copy"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if connection.execute(select(HEAD.c.id)).first() is None:
        connection.execute(
            insert(HEAD).values(id=1, identity=identity, version=0, arrivals=0, token_floor=0, forgotten=0)
        )
