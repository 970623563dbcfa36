"""Alembic, which makes the tables and brings them up to date. Imported only when there is something to do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, select

from compaction.blocks.index.tables import HEAD
from compaction.storage.errors import DatabaseSchemaError

_SCRIPTS: Final = Path(__file__).parent


def migrations() -> Config:
    """The migrations, as Alembic asks for them."""
    config = Config()
    # The character % starts an interpolation in Alembic's configuration.
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(connection: Connection, *, current: str | None, name: str, identity: str) -> None:
    """From `current` (None: nothing is there) to the newest schema. `name`: of the index.

    Raises DatabaseSchemaError: `current` is of a newer version of this program.
    """
    config = migrations()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise DatabaseSchemaError(
            name, f"its schema ({current}) was made by a newer version of this program: use that, or a copy"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if connection.execute(select(HEAD.c.id)).first() is None:
        connection.execute(
            insert(HEAD).values(id=1, identity=identity, version=0, arrivals=0, token_floor=0, forgotten=0)
        )
