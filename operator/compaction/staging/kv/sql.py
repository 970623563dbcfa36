"""A key-value store in one table of a SQL database: SQLite embedded, PostgreSQL in lakeFS's layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from psycopg.pq import Format
from sqlalchemy import Connection, Engine, TextClause, bindparam, event, text

from compaction.staging.errors import KeyValueArgumentError, PredicateFailedError
from compaction.staging.kv.port import TABLE, Expected, Pair, Presence, check_key, check_row, partition_bytes
from compaction.storage.database import DEFAULT_PATIENCE, Database
from compaction.storage.errors import DatabaseSchemaError

# The one table of a key-value store: what creates it, and the statements on it.
#
# PostgreSQL has lakeFS's layout: hash-partitioned by the partition key into 100 children, created under the lock that
# its servers take, so either may come first. SQLite keeps the rows in the tree of the primary key
# (docs/design/staging.md#key-value-store).

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


# A key-value store in a SQL database: SQLite embedded, PostgreSQL in lakeFS's table layout.
#
# A call that concerns one row is one statement in a transaction of its own, so it costs one round trip. All are
# repeated when a connection is lost, for as long as the database's patience lasts
# (docs/design/staging.md#key-value-store).

T = TypeVar("T")

BINARY: Final = "compaction_binary"
LARGEST_PAGE: Final = 10_000
_PAGE_BYTES: Final = 4 << 20
"""What a page of a scan should hold at most, judged by the page before it."""
_CHUNK_ROWS: Final = 5_000
_CHUNK_BYTES: Final = 8 << 20


class KeyValueDatabase(Database):
    """The database of one or more key-value stores. Results of statements with the option `BINARY` arrive as bytes, not
    as hexadecimal text.
    """

    holds = "key-value store"
    no_tables = (
        "create a repository in it (`compactor staging repo NAME NAMESPACE_URL`), or correct the URL and the name of "
        "its table"
    )

    def __init__(self, engine: Engine, **settings: Any) -> None:
        super().__init__(engine, **settings)
        self.lock_seconds: float = settings["lock_seconds"]
        self._alone = self._writers
        if self._postgres:
            self._alone = engine.execution_options(isolation_level="AUTOCOMMIT")
            event.listen(engine, "connect", _scan_in_order)
            event.listen(engine, "before_cursor_execute", _answer_in_binary)

    def alone(self, body: Callable[[Connection], T], *, writes: bool = False) -> T:
        """Run `body`, which executes one statement, without a transaction around it. It may run more than once, also
        after a statement whose answer was lost.

        Raises:
            DatabaseUnavailableError, DatabaseSchemaError, DatabaseError
        """
        engine = self._alone if writes or self._postgres else self._readers

        def once() -> T:
            with engine.begin() as connection:
                return body(connection)

        return self._patiently(once)


def _scan_in_order(connection: Any, record: object) -> None:
    """A token is new and its statistics are those of others: PostgreSQL expects few rows, and for each page of a scan
    collects and sorts all that are left. The index has them in order.
    """
    connection.execute("SET enable_bitmapscan = off")
    connection.execute("SET enable_sort = off")
    connection.commit()


def _answer_in_binary(
    connection: Connection, cursor: Any, statement: str, parameters: object, context: Any, many: bool
) -> None:
    if context is not None and BINARY in context.execution_options:
        cursor.format = Format.BINARY


class SqlKeyValueStore:
    """`KeyValueStore` in the table `table` of a database."""

    def __init__(self, database: KeyValueDatabase, *, table: str = TABLE) -> None:
        self.database = database
        self._postgres = database.engine.dialect.name == "postgresql"
        self._table = KeyValueTable(database.engine, table, database.lock_seconds)
        self._sql = self._table.statements

    @property
    def name(self) -> str:
        """For messages; no password is in it."""
        return self.database.name

    @property
    def table(self) -> str:
        """The name of its table."""
        return self._table.name

    def migrate(self) -> None:
        """Create the table if it does not exist; may run at any time, by many at once.

        Raises:
            DatabaseSchemaError: there is a table of this name that is no key-value store.
            DatabaseUnavailableError, DatabaseError
        """
        self.database.ordered(lambda connection: self._table.create(connection, self.name))

    def get(self, partition: str, key: bytes) -> bytes | None:
        """The value, None when the key is not there."""
        row = _place(partition, key)
        return self.database.alone(lambda connection: _value(connection.execute(self._sql.get, row).scalar()))

    def get_many(self, partition: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those of the keys that are there, each chunk of keys at one moment."""
        name = partition_bytes(partition)
        for key in keys:
            check_key(partition, key)
        found: dict[bytes, bytes] = {}
        for chunk in _chunks([(key, b"") for key in sorted(set(keys))]):
            row = {"p": name, "k": [key for key, _ in chunk]}
            found |= self.database.alone(lambda connection: dict(_pairs(connection, self._sql.gets, row)))  # noqa: B023
        return found

    def set(self, partition: str, key: bytes, value: bytes) -> None:
        """Write a row, whatever was there."""
        row = _row(partition, key, value)
        self.database.alone(lambda connection: connection.execute(self._sql.upsert, row) and None, writes=True)

    def set_if(self, partition: str, key: bytes, value: bytes, expected: Expected) -> None:
        """Write a row if the key is as expected at this moment. PredicateFailedError when it is not."""
        statement, row = self._condition(partition, key, value, expected)
        tries = 0

        def swap(connection: Connection) -> bool:
            nonlocal tries
            tries += 1
            if connection.execute(statement, row).rowcount == 1:
                return True
            # A first try whose answer was lost may be what made this one fail.
            return tries > 1 and _value(connection.execute(self._sql.get, row).scalar()) == value

        if not self.database.alone(swap, writes=True):
            raise PredicateFailedError(partition, key)

    def delete(self, partition: str, key: bytes) -> None:
        """Delete a row; one that is not there counts as deleted."""
        row = _place(partition, key)
        self.database.alone(lambda connection: connection.execute(self._sql.delete, row) and None, writes=True)

    def _condition(
        self, partition: str, key: bytes, value: bytes, expected: Expected
    ) -> tuple[TextClause, dict[str, Any]]:
        """The statement that writes a row as it is expected, and its parameters."""
        row = _row(partition, key, value)
        match expected:
            case Presence.ABSENT:
                return self._sql.add, row
            case Presence.PRESENT:
                return self._sql.update, row
            case _:
                return self._sql.swap, row | {"old": expected}

    def set_all_if(self, rows: Sequence[tuple[str, bytes, bytes, Expected]]) -> None:
        """Write rows (partition, key, value, expected) of any partitions in one transaction: all of them, or none.

        The value of the first row must be unique to this call: after a lost answer it shows whether an earlier try was
        carried out.

        Raises:
            PredicateFailedError: it names the first row that is not as expected; nothing was written.
        """
        prepared = [
            (partition, key, *self._condition(partition, key, value, old)) for partition, key, value, old in rows
        ]
        tries = 0

        def swap(connection: Connection) -> None:
            nonlocal tries
            tries += 1
            for number, (partition, key, statement, row) in enumerate(prepared):
                if connection.execute(statement, row).rowcount == 1:
                    continue
                if number == 0 and tries > 1 and _value(connection.execute(self._sql.get, row).scalar()) == row["v"]:
                    return
                raise PredicateFailedError(partition, key)

        self.database.write(swap)

    def set_many(self, partition: str, rows: Sequence[Pair]) -> None:
        """Write rows of one partition, later ones over earlier ones of the same key. All of them, or none."""
        name = partition_bytes(partition)
        for key, value in rows:
            check_row(partition, name, key, value)
        # In the order of keys: two writers that lock rows in different orders would block each other.
        chunks = list(_chunks(sorted(dict(rows).items())))

        def write(connection: Connection) -> None:
            for chunk in chunks:
                if self._postgres:
                    arrays = {"p": name, "k": [key for key, _ in chunk], "v": [value for _, value in chunk]}
                    connection.execute(self._sql.upserts, arrays)
                else:
                    connection.execute(self._sql.upserts, [{"p": name, "k": key, "v": value} for key, value in chunk])

        if chunks:
            self.database.write(write)

    def delete_many(self, partition: str, keys: Sequence[bytes]) -> None:
        """Delete rows of one partition. All of them, or none."""
        name = partition_bytes(partition)
        for key in keys:
            check_key(partition, key)
        chunks = list(_chunks([(key, b"") for key in sorted(set(keys))]))

        def delete(connection: Connection) -> None:
            for chunk in chunks:
                if self._postgres:
                    connection.execute(self._sql.deletions, {"p": name, "k": [key for key, _ in chunk]})
                else:
                    connection.execute(self._sql.deletions, [{"p": name, "k": key} for key, _ in chunk])

        if chunks:
            self.database.write(delete)

    def scan(
        self, partition: str, start: bytes = b"", stop: bytes | None = None, *, page: int = 1000
    ) -> Iterator[list[Pair]]:
        """Rows with start <= key < stop in the order of the keys' bytes, in pages; each is a statement of its own.

        A page has at most `LARGEST_PAGE` rows; fewer where the rows of the page before it are large.
        """
        name = partition_bytes(partition)
        if page < 1:
            raise ValueError(f"a page of {page} rows; pass 1 or more")
        return self._pages({"p": name, "k": start, "stop": stop, "page": min(page, LARGEST_PAGE)})

    def _pages(self, bounds: dict[str, Any]) -> Iterator[list[Pair]]:
        bounded = bounds["stop"] is not None
        if not bounded:
            del bounds["stop"]
        after = False
        while True:
            statement = self._sql.scans[after][bounded]
            rows = self.database.alone(lambda connection: _pairs(connection, statement, bounds))  # noqa: B023
            if rows:
                yield rows
            if len(rows) < bounds["page"]:
                return
            after = True
            average = sum(len(key) + len(value) for key, value in rows) // len(rows) + 1
            bounds |= {"k": rows[-1][0], "page": max(1, min(2 * bounds["page"], LARGEST_PAGE, _PAGE_BYTES // average))}

    def close(self) -> None:
        """Close all connections that are not in use."""
        self.database.close()


def open_key_value_store(
    url: str, *, table: str = TABLE, authorities: str = "", patience: float = DEFAULT_PATIENCE
) -> SqlKeyValueStore:
    """The store behind a URL (`sqlite:///dir/kv.db`, `postgresql://user:password@host/database`); nothing is connected
    yet, and nothing created: `migrate` does. `patience`: seconds for which a call is repeated while the database is
    away or busy. `authorities`: see `Database.open`.

    Raises:
        DatabaseUrlError, KeyValueArgumentError
    """
    return SqlKeyValueStore(KeyValueDatabase.open(url, authorities=authorities, patience=patience), table=table)


def _place(partition: str, key: bytes) -> dict[str, Any]:
    name = partition_bytes(partition)
    check_key(partition, key)
    return {"p": name, "k": key}


def _row(partition: str, key: bytes, value: bytes) -> dict[str, Any]:
    name = partition_bytes(partition)
    check_row(partition, name, key, value)
    return {"p": name, "k": key, "v": value}


def _value(found: Any) -> bytes | None:
    return None if found is None else bytes(found)


def _pairs(connection: Connection, statement: Any, bounds: dict[str, Any]) -> list[Pair]:
    found = connection.execute(statement, bounds, execution_options={BINARY: True})
    return [(key, value) for key, value in found]


def _chunks(rows: Iterable[Pair]) -> Iterator[list[Pair]]:
    chunk: list[Pair] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[0]) + len(row[1])
        if len(chunk) == _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
