"""Retention: the scenarios R of docs/design/block-replace.md, and what it does to claimed blocks.

There, a partition of six hours expires as a whole and a multi-tenant one is kept; here each block is looked at for
itself and has one tenant. Rows where that makes a difference say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from compaction.blocks.index.claims import claim
from compaction.blocks.index.live_blocks import live_blocks
from compaction.blocks.index.registering import register
from compaction.blocks.index.tables import IndexDatabase, TombstoneReason
from compaction.blocks.index.tombstones import RetentionPeriods, due, expire, would_expire
from support.stores.block_index import NOON, SECOND, a_block, check, tables

HOUR: Final = 3600 * SECOND
NOW: Final = NOON - NOON % (24 * HOUR)


def _hours(**periods: float) -> dict[str, int]:
    return {tenant: round(hours * HOUR) for tenant, hours in periods.items()}


def _register(index: IndexDatabase, *blocks: tuple[str, int, float, float]) -> None:
    """Blocks as (tenant, shard, hours ago created, hours ago the newest row); the oldest row is two days older."""
    register(
        index,
        [
            a_block(
                number,
                tenant=tenant,
                shard=shard,
                at=NOW - round(created * HOUR),
                min_time=NOW - round((newest + 48) * HOUR),
                max_time=NOW - round(newest * HOUR),
            )
            for number, (tenant, shard, created, newest) in enumerate(blocks)
        ],
        now=NOW,
    )


@pytest.mark.parametrize(
    ("default", "tenants", "blocks", "expired"),
    [
        pytest.param(0, {}, [("t1", 1, 99, 99)], [], id="no policy"),
        pytest.param(
            0, _hours(t1=12), [("t1", 1, 23, 20), ("t1", 2, 22, 18), ("t2", 1, 25, 22)], [0, 1], id="only an override"
        ),
        # There 0, because the period is shorter than a partition; here a block that is old enough is old enough.
        pytest.param(24, _hours(t2=6), [("t2", 1, 9, 8)], [0], id="shorter than a partition"),
        pytest.param(24, _hours(t2=4), [("t1", 1, 18, 16), ("t2", 1, 12, 10)], [1], id="a shorter override"),
        pytest.param(12, _hours(t1=24), [("t1", 1, 16, 18)], [], id="a longer override"),
        # There 1: blocks of the tenant "" hold rows of many tenants. Here a block has one tenant.
        pytest.param(
            12, _hours(t1=48), [("t1", 1, 30, 20), ("t2", 1, 30, 20), ("anonymous", 1, 30, 20)], [1, 2], id="anonymous"
        ),
        pytest.param(12, {}, [("t1", 1, 30, 1)], [], id="old block with recent rows"),
        pytest.param(12, {}, [("t1", 1, 1, 30)], [], id="new block with old rows"),
        pytest.param(12, {}, [("anonymous", 1, 30, 20)], [0], id="anonymous alone"),
        pytest.param(
            24,
            _hours(short=12, infinite=180 * 24),
            [("short", 1, 30, 20), ("infinite", 1, 30, 20), ("other", 1, 20, 18)],
            [0],
            id="short and infinite",
        ),
        pytest.param(24, _hours(t1=0), [("t1", 1, 99, 99), ("t2", 1, 99, 99)], [1], id="zero override"),
        pytest.param(0, _hours(t1=0), [("t1", 1, 99, 99), ("t2", 1, 99, 99)], [], id="zero default"),
    ],
)
def test_what_expires(
    index: IndexDatabase,
    default: float,
    tenants: Mapping[str, int],
    blocks: list[tuple[str, int, float, float]],
    expired: list[int],
) -> None:
    _register(index, *blocks)
    known = live_blocks(index).blocks
    rule = RetentionPeriods(default=round(default * HOUR), tenants=tenants, grace=HOUR)
    said = would_expire(index, rule, now=NOW)
    assert live_blocks(index).blocks == known
    gone = {item.block for item in expire(index, rule, now=NOW)}
    assert {item.block for item in said} == gone
    names = {block.id: (block.tenant, block.shard) for block in known}
    assert {names[block] for block in gone} == {(blocks[n][0], blocks[n][1]) for n in expired}
    assert {block.id for block in live_blocks(index).blocks} == set(names) - gone
    assert {item.block for item in due(index, now=NOW, grace=0) if item.reason is TombstoneReason.EXPIRED} == gone
    before = tables(index)
    assert expire(index, rule, now=NOW) == ()
    assert tables(index) == before
    check(index)


def test_boundaries_are_strict(index: IndexDatabase) -> None:
    _register(index, ("t", 1, 26, 24))
    rule = RetentionPeriods(default=24 * HOUR)
    assert expire(index, rule, now=NOW) == ()
    assert len(expire(index, rule, now=NOW + 1)) == 1
    _register(index, ("t", 2, 25, 24.5))
    rule = RetentionPeriods(default=24 * HOUR, grace=HOUR)
    assert expire(index, rule, now=NOW) == ()
    assert len(expire(index, rule, now=NOW + 1)) == 1


def test_a_batch_at_a_time_the_oldest_rows_first(index: IndexDatabase) -> None:
    _register(index, ("t1", 1, 60, 40), ("t2", 2, 60, 50), ("t1", 3, 60, 45))
    rule = RetentionPeriods(default=24 * HOUR)
    assert [item.tenant for item in expire(index, rule, now=NOW, limit=2)] == ["t2", "t1"]
    assert [block.shard for block in live_blocks(index).blocks] == [1]
    assert len(expire(index, rule, now=NOW, limit=2)) == 1


def test_a_claim_does_not_protect(index: IndexDatabase) -> None:
    _register(index, ("t", 1, 60, 40))
    (block,) = live_blocks(index).blocks
    claim(index, job="job", token=1, sources=[block.id], now=NOW)
    (one,) = expire(index, RetentionPeriods(default=24 * HOUR), now=NOW)
    assert (one.block, one.tenant, one.bytes, one.job) == (block.id, "t", 100, "job")
    check(index)
