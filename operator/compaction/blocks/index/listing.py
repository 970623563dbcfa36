"""What readers see: the live blocks at one instant, through any compaction.

Each answer comes from one snapshot of the database, so of a replacement it has either all sources or all outputs, never
both and never neither. The objects stay readable for the grace after that instant.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Select, select

from compaction.blocks.index.engine import IndexDatabase, head_version
from compaction.blocks.index.rows import CONTENT, block_of
from compaction.blocks.index.tables import BLOCKS, QUARANTINE, TOMBSTONES, BlockState
from compaction.blocks.model import Block

_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class BlockFilter:
    """Which blocks: of one tenant, shard or level, and those with rows in `start`..`end` (epoch microseconds, both
    ends included, as the times of blocks are). None does not restrict.
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
    """What is known about a block; None when nothing is (any more)."""
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
