"""The database of an index: changes one after the other.

Each change begins by counting `version` up in the one row of `block_index`: in SQLite the transaction has the write
lock anyway, in PostgreSQL the row is locked until the commit. So what a change has checked still holds when it commits,
in both databases for the same reason, and a version that a reader sees includes all smaller ones. The price: changes
per second are bounded by commits per second; writers register many blocks at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlalchemy import Connection, select, update

from compaction.blocks.index.tables import HEAD
from compaction.storage.database.engine import Database
from compaction.storage.errors import DatabaseSchemaError

T = TypeVar("T")

_NEXT_VERSION: Final = update(HEAD).values(version=HEAD.c.version + 1).returning(HEAD.c.version)


@dataclass(slots=True)
class IndexChange:
    """A change under way: no other can start. `version` is its number."""

    connection: Connection
    version: int

    def places(self, count: int) -> range:
        """The next places at the end of the queue."""
        statement = update(HEAD).values(arrivals=HEAD.c.arrivals + count).returning(HEAD.c.arrivals)
        last = self.connection.execute(statement).scalar_one()
        return range(last - count + 1, last + 1)


class IndexDatabase(Database):
    """The database of one index. A `write` beside `change` has no version and waits for no change: it is for what
    neither readers nor planners see.
    """

    holds = "index"

    def change(self, body: Callable[[IndexChange], T]) -> T:
        """Run `body` as one change: all of it happens, or nothing. It may run more than once, also after a commit whose
        answer was lost.

        Raises:
            DatabaseUnavailableError: not possible within the patience; it may have happened nevertheless.
            DatabaseSchemaError, DatabaseError
        """

        def change(connection: Connection) -> T:
            version = connection.execute(_NEXT_VERSION).scalar_one_or_none()
            if version is None:
                raise DatabaseSchemaError(self.name, "the row of `block_index` is missing: restore the database")
            return body(IndexChange(connection, version))

        return self.write(change)


def head_version(connection: Connection) -> int:
    """The number of the last change that this reader sees."""
    return int(connection.execute(select(HEAD.c.version)).scalar_one())
