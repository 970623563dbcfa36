"""Pages of a listing: together they are what was live at the first one, whatever happens between them."""

from __future__ import annotations

import random

import pytest

from compaction.blocks.errors import SnapshotExpiredError
from compaction.blocks.index.claims import claim
from compaction.blocks.index.live_blocks import BlockFilter, blocks_at, live_blocks, page
from compaction.blocks.index.registering import BlockReplacement, register, replace
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.index.tombstones import RetentionPeriods, confirm, due, expire, forget_blocks
from compaction.blocks.model import Block
from support.depth import seeds
from support.stores.block_index import NOON, SECOND, a_block, block_id, blocks_of, output_of


def test_pages_cover_the_listing(index: IndexDatabase) -> None:
    blocks = blocks_of(*range(7))
    register(index, blocks, now=NOON)
    first = page(index, limit=3)
    assert (first.blocks, first.more) == (tuple(blocks[:3]), True)
    second = page(index, version=first.version, after=first.blocks[-1].id, limit=3)
    third = page(index, version=first.version, after=second.blocks[-1].id, limit=3)
    assert (second.blocks, second.more) == (tuple(blocks[3:6]), True)
    assert (third.blocks, third.more) == (tuple(blocks[6:]), False)
    exact = page(index, version=first.version, after=first.blocks[-1].id, limit=4)
    assert (exact.blocks, exact.more) == (tuple(blocks[3:]), False)


def test_of_nothing_there_is_one_empty_page(index: IndexDatabase) -> None:
    assert (page(index).blocks, page(index).more) == ((), False)
    assert list(blocks_at(index, version=0)) == []


def _compact(index: IndexDatabase, job: str, number: int, sources: list[Block]) -> Block:
    claim(index, job=job, token=1, sources=[block.id for block in sources], now=NOON)
    output = output_of(number, sources)
    replace(index, BlockReplacement(job, 1, tuple(block.id for block in sources), (output,), "{}"), now=NOON)
    return output


def test_what_is_replaced_between_two_pages_is_still_in_the_second(index: IndexDatabase) -> None:
    blocks = blocks_of(1, 2, 3, 4)
    register(index, blocks, now=NOON)
    first = page(index, limit=2)
    output = _compact(index, "j", 5, [blocks[0], blocks[3]])
    register(index, [a_block(9)], now=NOON)
    second = page(index, version=first.version, after=first.blocks[-1].id, limit=2)
    assert first.blocks + second.blocks == tuple(blocks)
    assert not second.more
    assert live_blocks(index).blocks == (blocks[1], blocks[2], output, a_block(9))
    assert page(index).blocks == live_blocks(index).blocks


def test_a_claim_does_not_move_a_block_to_a_later_version(index: IndexDatabase) -> None:
    """The version of its row changes, and a listing that began before must have it nevertheless."""
    register(index, blocks_of(1, 2), now=NOON)
    version = page(index, limit=1).version
    claim(index, job="j", token=1, sources=[block_id(1), block_id(2)], now=NOON)
    assert [block.id for block in blocks_at(index, version=version)] == [block_id(1), block_id(2)]


@pytest.mark.parametrize("seed", seeds(12))
def test_every_version_stays_as_it_was(index: IndexDatabase, seed: int) -> None:
    """Registered, replaced, expired and deleted blocks at random: the listing of each version is that of its time."""
    chance = random.Random(seed)
    seen: dict[int, tuple[Block, ...]] = {}
    filters = [BlockFilter(), BlockFilter(tenant="a"), BlockFilter(level=1), BlockFilter(end=NOON + 20 * SECOND)]
    for step in range(40):
        live = live_blocks(index).blocks
        match chance.choice(["register", "register", "compact", "expire", "sweep"]):
            case "register":
                numbers = [10 * step + item for item in range(chance.randint(1, 3))]
                tenant = chance.choice("ab")
                register(index, [a_block(number, tenant=tenant) for number in numbers], now=NOON + step)
            case "compact" if len(live) > 1:
                first = chance.choice(live)
                _compact(index, f"j{step}", 10 * step, [block for block in live if block.key == first.key][:3])
            case "expire":
                expire(
                    index,
                    RetentionPeriods(tenants={chance.choice("ab"): 1}),
                    now=NOON + chance.randint(0, 400) * SECOND,
                )
            case _:
                confirm(index, [item.block for item in due(index, now=NOON * 2, grace=0)], now=NOON + step)
        listing = live_blocks(index)
        seen[listing.version] = listing.blocks
    assert len(seen) > 20
    for version, blocks in seen.items():
        assert tuple(blocks_at(index, version=version, size=chance.randint(1, 5))) == blocks
        which = chance.choice(filters)
        assert set(blocks_at(index, which, version=version)) == {
            block
            for block in blocks
            if which.tenant in {None, block.tenant}
            and which.level in {None, block.level}
            and (which.end is None or block.min_time <= which.end)
        }


def test_a_version_that_is_forgotten_is_an_error(index: IndexDatabase) -> None:
    blocks = blocks_of(1, 2)
    register(index, blocks, now=NOON)
    version = page(index, limit=1).version
    _compact(index, "j", 5, blocks)
    confirm(index, [item.block for item in due(index, now=NOON * 2, grace=0)], now=NOON)
    assert len(list(blocks_at(index, version=version))) == 2
    forget_blocks(index, before=NOON * 2)
    with pytest.raises(SnapshotExpiredError, match="forgotten: take a new snapshot"):
        page(index, version=version)
    assert len(list(blocks_at(index, version=page(index).version))) == 1


def test_a_version_that_never_was_is_an_error(index: IndexDatabase) -> None:
    """The index was restored from a copy: what its readers saw last is not in it."""
    with pytest.raises(SnapshotExpiredError, match="no change 7, the last one is 0"):
        page(index, version=7)
