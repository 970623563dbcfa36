"""The live blocks of one instant, through any compaction, at once or a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection, Select, select

from compaction.blocks.errors import SnapshotExpiredError
from compaction.blocks.index.rows import CONTENT, block_of
from compaction.blocks.index.tables import BLOCKS, HEAD, QUARANTINE, TOMBSTONES, BlockState, IndexDatabase, head_version
from compaction.blocks.model import Block

# The view of readers: the live blocks at one instant, through any compaction.
#
# Each answer comes from one snapshot of the database, so of a replacement it has either all sources or all outputs,
# never both and never neither. The objects stay readable for the grace after that instant.

_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class BlockFilter:
    """A selection of blocks: those of one tenant, shard or level, and those with rows in `start`..`end` (epoch
    microseconds, both ends included, as the times of blocks are). None does not restrict.
    """

    tenant: str | None = None
    shard: int | None = None
    level: int | None = None
    start: int | None = None
    end: int | None = None


EVERYTHING: Final = BlockFilter()


@dataclass(frozen=True, slots=True)
class Listing:
    """The live blocks of one instant, ordered by id. `version`: the last change that it includes."""

    version: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """All that is known about one block. `job`: the open job that claims it, or the one that replaced it."""

    block: Block
    state: BlockState
    queued_at: int | None
    job: str | None
    changed_at: int
    quarantined: tuple[str, str] | None
    """Reason and message."""
    ended: str | None
    """Why it is no longer live, while its tombstone stands."""


def live_blocks(database: IndexDatabase, which: BlockFilter = EVERYTHING) -> Listing:
    """The live blocks at one instant. Raises DatabaseUnavailableError, DatabaseError."""
    return database.read(
        lambda connection: Listing(head_version(connection), tuple(_blocks(connection.execute(_query(which)))))
    )


@contextmanager
def streamed(database: IndexDatabase, which: BlockFilter = EVERYTHING) -> Iterator[tuple[int, Iterator[Block]]]:
    """As `live_blocks`, version and blocks, read while they are asked for: for more than fit into memory."""
    with database.snapshot() as connection:
        version = head_version(connection)
        rows = connection.execution_options(stream_results=True, yield_per=_PAGE).execute(_query(which))
        yield version, _blocks(rows)


def _query(which: BlockFilter) -> Select[Any]:
    return matching(which).where(BLOCKS.c.state == BlockState.LIVE)


def matching(which: BlockFilter) -> Select[Any]:
    """The blocks of the filter, live or not, by id."""
    query = select(*CONTENT).order_by(BLOCKS.c.id)
    if which.tenant is not None:
        query = query.where(BLOCKS.c.tenant == which.tenant)
    if which.shard is not None:
        query = query.where(BLOCKS.c.shard == which.shard)
    if which.level is not None:
        query = query.where(BLOCKS.c.level == which.level)
    if which.start is not None:
        query = query.where(BLOCKS.c.max_time >= which.start)
    if which.end is not None:
        query = query.where(BLOCKS.c.min_time <= which.end)
    return query


def _blocks(rows: Any) -> Iterator[Block]:
    return (block_of(row) for row in rows)


def inspect(database: IndexDatabase, block_id: str) -> BlockRecord | None:
    """Return the record of a block; None when nothing is known of it (any more)."""
    return database.read(lambda connection: _inspect(connection, block_id))


def _inspect(connection: Connection, block_id: str) -> BlockRecord | None:
    row = connection.execute(
        select(
            *CONTENT,
            BLOCKS.c.state,
            BLOCKS.c.enqueued_at,
            BLOCKS.c.job,
            BLOCKS.c.changed_at,
            QUARANTINE.c.reason.label("quarantine"),
            QUARANTINE.c.message,
            TOMBSTONES.c.reason.label("ended"),
            TOMBSTONES.c.job.label("replaced_by"),
        )
        .select_from(BLOCKS.outerjoin(QUARANTINE, QUARANTINE.c.block == BLOCKS.c.id))
        .outerjoin(TOMBSTONES, TOMBSTONES.c.block == BLOCKS.c.id)
        .where(BLOCKS.c.id == block_id)
    ).one_or_none()
    if row is None:
        return None
    return BlockRecord(
        block=block_of(row),
        state=BlockState(row.state),
        queued_at=row.enqueued_at,
        job=row.job or row.replaced_by,
        changed_at=row.changed_at,
        quarantined=None if row.quarantine is None else (row.quarantine, row.message),
        ended=row.ended,
    )


# The live blocks of one instant, a page at a time: nothing stays open and no state is kept between two pages.
#
# The instant is the version that the first page names. Which change made a block live and which one ended it is in
# its row, so every later page shows the same state, whatever was registered, replaced or deleted in between, and
# whichever replica is asked. That holds for as long as ended blocks are remembered; what is in their objects can be
# read for the grace only.

PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class BlockPage:
    """Some of the blocks that were live after change `version`, by id. `more`: there are others behind the last."""

    version: int
    blocks: tuple[Block, ...]
    more: bool


def page(
    database: IndexDatabase,
    which: BlockFilter = EVERYTHING,
    *,
    version: int | None = None,
    after: str = "",
    limit: int = PAGE,
) -> BlockPage:
    """The next blocks behind the id `after` that were live after change `version`; None is now.

    Raises:
        SnapshotExpiredError: the index does not know any more what was live then, or never did.
        DatabaseUnavailableError, DatabaseError
    """
    return database.read(lambda connection: _page(database, connection, which, version, after, limit))


def blocks_at(
    database: IndexDatabase, which: BlockFilter = EVERYTHING, *, version: int, size: int = PAGE
) -> Iterator[Block]:
    """All of them, by id, read while they are asked for; memory for `size` blocks. Raises as `page` does."""
    after, more = "", True
    while more:
        found = page(database, which, version=version, after=after, limit=size)
        yield from found.blocks
        more = found.more
        if more:
            after = found.blocks[-1].id


def _page(
    database: IndexDatabase, connection: Connection, which: BlockFilter, version: int | None, after: str, limit: int
) -> BlockPage:
    head = connection.execute(select(HEAD.c.version, HEAD.c.forgotten)).one()
    at = head.version if version is None else version
    if at > head.version:
        raise SnapshotExpiredError(database.name, f"there was no change {at}, the last one is {head.version}")
    if at < head.forgotten:
        raise SnapshotExpiredError(database.name, f"what was live after change {at} is forgotten")
    # Two queries, each with an index of its own, instead of one with an OR that none can serve.
    behind = matching(which).where(BLOCKS.c.id > after, BLOCKS.c.added <= at).limit(limit + 1)
    still, since = (
        connection.execute(behind.where(condition)).all()
        for condition in (BLOCKS.c.state == "live", BLOCKS.c.ended > at)
    )
    rows = list(islice(merge(still, since, key=lambda row: row.id), limit + 1))
    return BlockPage(at, tuple(block_of(row) for row in rows[:limit]), len(rows) > limit)
