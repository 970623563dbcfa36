"""The live blocks of one instant, a page at a time: nothing stays open and no state is kept between two pages.

The instant is the version that the first page names. Which change made a block live and which one ended it is in its
row, so every later page shows the same state, whatever was registered, replaced or deleted in between, and whichever
replica is asked. That holds for as long as ended blocks are remembered; what is in their objects can be read for the
grace only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Final

from sqlalchemy import Connection, select

from compaction.blocks.errors import SnapshotExpiredError
from compaction.blocks.index.engine import IndexDatabase
from compaction.blocks.index.listing import EVERYTHING, BlockFilter, matching
from compaction.blocks.index.rows import block_of
from compaction.blocks.index.tables import BLOCKS, HEAD
from compaction.blocks.model import Block

PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Page:
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
) -> Page:
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
) -> Page:
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
    return Page(at, tuple(block_of(row) for row in rows[:limit]), len(rows) > limit)
