"""Read amplification, as the index knows it."""

from __future__ import annotations

from compaction.blocks.index.queued import density
from compaction.blocks.index.registering import register
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.index.tombstones import RetentionPeriods, expire
from support.stores.block_index import NOON, SECOND, a_block

HOUR = 3600 * SECOND
BEGIN = NOON // HOUR * HOUR


def test_how_many_blocks_a_query_opens(index: IndexDatabase) -> None:
    assert density(index, span=HOUR) == (0, 0)
    blocks = [
        *(a_block(number, min_time=BEGIN + number, max_time=BEGIN + HOUR) for number in range(4)),
        a_block(4, min_time=BEGIN, max_time=BEGIN, shard=1),
        a_block(5, min_time=BEGIN, max_time=BEGIN, tenant="u"),
        a_block(6, min_time=BEGIN + HOUR, max_time=BEGIN + HOUR),
    ]
    register(index, blocks, now=NOON)
    expire(index, RetentionPeriods(tenants={"u": SECOND}), now=NOON + HOUR * 24 * 365)
    assert density(index, span=HOUR) == (6, 3)
    assert density(index, span=0) == (6, 2)
