"""The one table of a key-value store: what creates it, and the statements on it.

PostgreSQL has lakeFS's layout: hash-partitioned by the partition key into 100 children, created under the lock that
its servers take, so either may come first. SQLite keeps the rows in the tree of the primary key
(docs/design/staging.md#key-value-store).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Engine, TextClause, bindparam, text

from compaction.staging.errors import KeyValueArgumentError
from compaction.storage.errors import DatabaseSchemaError

TABLE: Final = "kv"
CHILDREN: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")
"""PostgreSQL cuts names off after 63 bytes, and a child's has up to three more."""
_COLUMNS: Final = ("partition_key", "key", "value")


@dataclass(frozen=True, slots=True)
class RowStatements:
    """Parameters are p, k, v (partition, key, value), `old`, `stop`, `page`; of `upserts` and `deletions` on
    PostgreSQL, k and v are arrays, on SQLite they are executed for many rows. `gets` takes an array of keys on both.
    """

    get: TextClause
    gets: TextClause
    upsert: TextClause
    add: TextClause
    update: TextClause
    swap: TextClause
    delete: TextClause
    upserts: TextClause
    deletions: TextClause
    scans: tuple[tuple[TextClause, TextClause], tuple[TextClause, TextClause]]
    """By whether the first key is excluded, and whether there is a `stop`."""


class KeyValueTable:
    """The table `name` of an engine; `lock_seconds`: how long a statement waits for writers before it. Raises
    KeyValueArgumentError for other names than `_NAME` has.
    """

    def __init__(self, engine: Engine, name: str, lock_seconds: float) -> None:
        if not _NAME.fullmatch(name):
            raise KeyValueArgumentError(
                f"table {name[:80]!a}: choose a name of up to 60 letters, digits, underscores, dots and hyphens"
            )
        self.name = name
        self._quote = engine.dialect.identifier_preparer.quote
        self._postgres = engine.dialect.name == "postgresql"
        self.statements = self._statements(self._quote(name), f"{lock_seconds * 1000:.0f}ms")

    def _statements(self, table: str, limit: str) -> RowStatements:
        conflict = "ON CONFLICT (partition_key, key) DO"
        columns = f"{table} ({', '.join(_COLUMNS)})"
        row = "partition_key = :p AND key = :k"
        source, beside, using = "VALUES (:p, :k, :v)", "", ""
        if self._postgres:
            # A statement alone limits its own wait for locks: it is evaluated before a row is locked.
            limited = f"(SELECT set_config('lock_timeout', '{limit}', true)) AS limits"
            source, beside, using = f"SELECT :p, :k, :v FROM {limited}", f"FROM {limited} ", f"USING {limited} "
        upsert = f"INSERT INTO {columns} {source} {conflict} UPDATE SET value = excluded.value"
        upserts, deletions = upsert, f"DELETE FROM {table} WHERE {row}"
        if self._postgres:
            upserts = (
                f"INSERT INTO {columns} SELECT :p, k, v"
                " FROM unnest(CAST(:k AS bytea[]), CAST(:v AS bytea[])) AS rows(k, v)"
                f" {conflict} UPDATE SET value = excluded.value"
            )
            deletions = f"DELETE FROM {table} WHERE partition_key = :p AND key = ANY(CAST(:k AS bytea[]))"

        def scan(first: str, stop: str) -> TextClause:
            bounds = f"partition_key = :p AND key {first} :k{stop}"
            return text(f"SELECT key, value FROM {table} WHERE {bounds} ORDER BY key LIMIT :page")

        among = "key = ANY(CAST(:k AS bytea[]))" if self._postgres else "key IN :k"
        gets = text(f"SELECT key, value FROM {table} WHERE partition_key = :p AND {among}")
        return RowStatements(
            get=text(f"SELECT value FROM {table} WHERE {row}"),
            gets=gets if self._postgres else gets.bindparams(bindparam("k", expanding=True)),
            upsert=text(upsert),
            add=text(f"INSERT INTO {columns} {source} {conflict} NOTHING"),
            update=text(f"UPDATE {table} SET value = :v {beside}WHERE {row}"),
            swap=text(f"UPDATE {table} SET value = :v {beside}WHERE {row} AND value = :old"),
            delete=text(f"DELETE FROM {table} {using}WHERE {row}"),
            upserts=text(upserts),
            deletions=text(deletions),
            scans=(
                (scan(">=", ""), scan(">=", " AND key < :stop")),
                (scan(">", ""), scan(">", " AND key < :stop")),
            ),
        )

    def create(self, connection: Connection, database: str) -> None:
        """Create what is missing; nothing that exists is changed. DatabaseSchemaError when a table of this name is no
        key-value store.
        """
        if self._postgres:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": self._setup_lock()})
        first, *rest = self._postgres_layout() if self._postgres else self._sqlite_layout()
        connection.exec_driver_sql(first)
        found = list(connection.exec_driver_sql(f"SELECT * FROM {self._quote(self.name)} LIMIT 0").keys())
        if found != list(_COLUMNS):
            raise DatabaseSchemaError(
                database,
                f'table "{self.name}" is no key-value store (its columns are {", ".join(found)}): choose another name',
            )
        for statement in rest:
            connection.exec_driver_sql(statement)

    def _setup_lock(self) -> int:
        """The number that lakeFS locks while it creates its table: FNV-1a of 32 bits."""
        value = 0x811C9DC5
        for byte in f"lakefs:{self.name}".encode():
            value = (value ^ byte) * 0x01000193 % (1 << 32)
        return value

    def _sqlite_layout(self) -> Iterator[str]:
        columns = ", ".join(f"{column} BLOB NOT NULL" for column in _COLUMNS)
        table = self._quote(self.name)
        yield f"CREATE TABLE IF NOT EXISTS {table} ({columns}, PRIMARY KEY (partition_key, key)) WITHOUT ROWID"

    def _postgres_layout(self) -> Iterator[str]:
        columns = ", ".join(f"{column} BYTEA NOT NULL" for column in _COLUMNS)
        table = self._quote(self.name)
        yield (
            f"CREATE TABLE IF NOT EXISTS {table} ({columns}, PRIMARY KEY (partition_key, key))"
            " PARTITION BY HASH (partition_key)"
        )
        for child in range(CHILDREN):
            name = self._quote(f"{self.name}_{child}")
            yield (
                f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table}"
                f" FOR VALUES WITH (MODULUS {CHILDREN}, REMAINDER {child})"
            )
        # For people: keys as text.
        keys = ", ".join(f"encode({column}, 'escape') AS {column}" for column in _COLUMNS[:2])
        view = self._quote(f"{self.name}_v")
        yield f"CREATE OR REPLACE VIEW {view} AS SELECT {keys}, value FROM {table}"
