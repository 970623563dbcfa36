"""The schema: made by migrations, equal to the tables in both databases, by many at once, and never by an older program
over a newer one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from compaction.blocks.index.live_blocks import live_blocks
from compaction.blocks.index.migrations.indexes import WITH_INDEXES
from compaction.blocks.index.migrations.upgrading import migrations
from compaction.blocks.index.registering import register
from compaction.blocks.index.tables import METADATA, NEWEST_SCHEMA, IndexDatabase
from compaction.blocks.store import VERSION_TABLE, ensure_schema
from compaction.storage.errors import DatabaseSchemaError
from support.stores.block_index import IDENTITY, NOON, blocks_of
from tools.servers.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database in which nothing was ever made."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/new%20index.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.create()
    yield server.url(name)
    server.drop(name)


def test_migrations_make_the_tables(index: IndexDatabase) -> None:
    with index.snapshot() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, WITH_INDEXES) == []


def test_the_newest_migration_is_the_one_that_the_program_asks_for() -> None:
    assert ScriptDirectory.from_config(migrations()).get_heads() == [NEWEST_SCHEMA]


def test_rules_of_the_tables_are_in_the_database(index: IndexDatabase) -> None:
    """Alembic does not compare checks and conditions of indexes: their names are looked up instead."""
    with index.snapshot() as connection:
        if connection.dialect.name == "sqlite":
            made = connection.execute(text("SELECT group_concat(sql) FROM sqlite_master")).scalar_one()
        else:
            made = connection.execute(
                text(
                    "SELECT string_agg(conname, ' ') || (SELECT string_agg(indexdef, ' ') FROM pg_indexes)"
                    " FROM pg_constraint"
                )
            ).scalar_one()
    checks = [c.name for table in METADATA.tables.values() for c in table.constraints if str(c.name).startswith("ck_")]
    assert len(checks) >= 7
    assert [name for name in checks if str(name) not in made] == []
    assert made.upper().count(" WHERE ") >= 4


def test_an_index_that_exists_keeps_its_identity_and_its_blocks(index: IndexDatabase) -> None:
    register(index, blocks_of(1, 2), now=NOON)
    assert ensure_schema(index, identity="another") == IDENTITY
    assert len(live_blocks(index).blocks) == 2


def test_many_make_it_at_once(empty_url: str) -> None:
    identities: list[str] = []

    def make(name: str) -> None:
        database = IndexDatabase.open(empty_url)
        identities.append(ensure_schema(database, identity=name))
        database.close()

    threads = [threading.Thread(target=make, args=(f"maker-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(identities) == 4
    assert len(set(identities)) == 1


def test_death_while_it_is_made_leaves_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class SuddenDeath(BaseException):
        pass

    def die(*args: object, **kwargs: object) -> None:
        raise SuddenDeath

    database = IndexDatabase.open(empty_url)
    with monkeypatch.context() as patch:
        patch.setattr("compaction.blocks.index.migrations.upgrading.insert", die)
        with pytest.raises(SuddenDeath):
            ensure_schema(database, identity="first")
    assert ensure_schema(database, identity="second") == "second"
    database.close()


def test_a_newer_schema_is_left_alone(index: IndexDatabase) -> None:
    with index.engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(DatabaseSchemaError, match="newer version of this program"):
        ensure_schema(index, identity=IDENTITY)


def test_without_a_schema_the_error_says_so(empty_url: str) -> None:
    database = IndexDatabase.open(empty_url)
    with pytest.raises(DatabaseSchemaError, match="the tables are missing"):
        live_blocks(database)
    with pytest.raises(DatabaseSchemaError, match="the tables are missing"):
        register(database, blocks_of(1), now=NOON)
    database.close()
