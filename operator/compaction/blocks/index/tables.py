"""The tables of the index and its database, in which one change follows another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    select,
    update,
)

from compaction.storage.database import Database
from compaction.storage.errors import DatabaseSchemaError

# The tables of the index. How they come to be is the business of `migrations`; a test compares both.
#
# Invariants that the database itself keeps: an id and a path are used once; only a live block waits in the queue
# (`arrival`) or belongs to a job; two blocks never have the same place in the queue.

KEY_TEXT: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""Text that is compared byte by byte in both databases, whatever the locale of the server."""

NEWEST_SCHEMA: Final = "0003"
"""The last of the migrations, which make these tables."""

METADATA: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


class BlockState(StrEnum):
    """The life of a block, in one direction. A deleted one is remembered for a while: writers may register it again."""

    LIVE = "live"
    TOMBSTONED = "tombstoned"
    DELETED = "deleted"


class IndexJobState(StrEnum):
    """Claimed: an attempt may commit. Committed: one has. Retired: none may, until the job is claimed again."""

    CLAIMED = "claimed"
    COMMITTED = "committed"
    RETIRED = "retired"


class TombstoneReason(StrEnum):
    """The reason for which a block is no longer live."""

    REPLACED = "replaced"
    EXPIRED = "expired"
    DROPPED = "dropped"


HEAD: Final = Table(
    "block_index",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("identity", KEY_TEXT, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("arrivals", BigInteger, nullable=False),
    Column("token_floor", BigInteger, nullable=False),
    Column("forgotten", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)
"""One row. `version`: number of the last change, and the lock that puts changes in order. `arrivals`: the last place
given in the queue. `token_floor`: the largest token of any job that is no longer remembered. `forgotten`: the newest
version of a block that is no longer remembered. `identity`: tells this index from every other, for ever.
"""

BLOCKS: Final = Table(
    "blocks",
    METADATA,
    Column("id", KEY_TEXT, primary_key=True),
    Column("tenant", KEY_TEXT, nullable=False),
    Column("shard", BigInteger, nullable=False),
    Column("level", Integer, nullable=False),
    Column("path", KEY_TEXT, nullable=False, unique=True),
    Column("min_time", BigInteger, nullable=False),
    Column("max_time", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("digest", KEY_TEXT, nullable=False),
    Column("sort_key", Text, nullable=False),
    Column("schema_id", KEY_TEXT, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("state", KEY_TEXT, nullable=False),
    Column("arrival", BigInteger),
    Column("enqueued_at", BigInteger),
    Column("job", KEY_TEXT),
    Column("version", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("added", BigInteger, nullable=False),
    Column("ended", BigInteger),
    CheckConstraint("state IN ('live', 'tombstoned', 'deleted')", name="state"),
    CheckConstraint("(state = 'live') = (ended IS NULL)", name="live_until_it_ended"),
    CheckConstraint("state = 'live' OR (arrival IS NULL AND job IS NULL)", name="only_live_ones_wait"),
    CheckConstraint("(arrival IS NULL) = (enqueued_at IS NULL)", name="in_the_queue_since"),
    CheckConstraint("min_time <= max_time AND rows >= 0 AND bytes >= 0 AND shard >= 0 AND level >= 0", name="ranges"),
)
"""`created`: the time in the ULID. `arrival`: the place in the queue, null when the block is in none. `job`: the open
job that claims it. `version`: the last change that touched the row. `added`: the change that made it live, `ended` the
one since which it is not: by these a listing goes on at the version at which it began.
"""

JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("job", KEY_TEXT, primary_key=True),
    Column("state", KEY_TEXT, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("tenant", KEY_TEXT, nullable=False),
    Column("shard", BigInteger, nullable=False),
    Column("level", Integer, nullable=False),
    Column("output_level", Integer, nullable=False),
    Column("claim", KEY_TEXT, nullable=False),
    Column("claim_version", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("arguments", KEY_TEXT),
    Column("receipt", Text),
    Column("holder", KEY_TEXT),
    CheckConstraint("state IN ('claimed', 'committed', 'retired')", name="state"),
    CheckConstraint("(state = 'committed') = (receipt IS NOT NULL AND arguments IS NOT NULL)", name="receipt"),
)
"""`claim`: marks the call that made the claim, so that it knows its own when its answer was lost. `claim_version`: the
change that made it. `arguments`: a digest of what was committed, by which a repetition is known. `holder`: the local
process that made the claim; null for a cluster's.
"""

JOB_SOURCES: Final = Table(
    "job_sources",
    METADATA,
    Column("job", KEY_TEXT, nullable=False),
    Column("block", KEY_TEXT, nullable=False),
    PrimaryKeyConstraint("job", "block"),
)
"""What each job was claimed for. It outlives the claim on a block, so that a late result learns what became of it."""

HOLDERS: Final = Table(
    "holders",
    METADATA,
    Column("holder", KEY_TEXT, primary_key=True),
    Column("host", Text, nullable=False),
    Column("place", KEY_TEXT, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("started", KEY_TEXT, nullable=False),
    Column("lease", BigInteger, nullable=False),
    Column("renewed_at", BigInteger, nullable=False),
)
"""Local processes that claim jobs (`holders`). `renewed_at`: the last sign of life, by the clock of the database."""

TOMBSTONES: Final = Table(
    "tombstones",
    METADATA,
    Column("block", KEY_TEXT, primary_key=True),
    Column("reason", KEY_TEXT, nullable=False),
    Column("job", KEY_TEXT),
    Column("since", BigInteger, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
)
"""One for each tombstoned block. `not_before`: when a deletion that failed is tried again."""

QUARANTINE: Final = Table(
    "quarantine",
    METADATA,
    Column("block", KEY_TEXT, primary_key=True),
    Column("reason", KEY_TEXT, nullable=False),
    Column("message", Text, nullable=False),
    Column("job", KEY_TEXT),
    Column("since", BigInteger, nullable=False),
)
"""Live blocks that are read but not compacted."""

CONDEMNED: Final = Table(
    "condemned",
    METADATA,
    Column("path", KEY_TEXT, primary_key=True),
    Column("since", BigInteger, nullable=False),
    Column("gone_at", BigInteger),
    Column("gone_version", BigInteger),
)
"""Objects that no block refers to and that are being deleted (`gone_at` null) or were lately: none may become a block.
"""

SCHEMAS: Final = Table(
    "schemas",
    METADATA,
    Column("schema_id", KEY_TEXT, primary_key=True),
    Column("content", Text, nullable=False),
)
"""The schemas of blocks, each once, as `Block.schema` has them; for planning, which keeps those apart that cannot be
merged. One that is missing, of a block from before there was this table, is learnt from a footer.
"""


# The database of an index: changes one after the other.
#
# Each change begins by counting `version` up in the one row of `block_index`: in SQLite the transaction has the write
# lock anyway, in PostgreSQL the row is locked until the commit. So what a change has checked still holds when it
# commits, in both databases for the same reason, and a version that a reader sees includes all smaller ones. The
# price: changes per second are bounded by commits per second; writers register many blocks at once.

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
