"""Registration: all or nothing, once, in the queue from the same moment; what is listed and in which order."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any

import pytest

from compaction.blocks.errors import BlockConflictError, InvalidBlockError, SnapshotExpiredError
from compaction.blocks.index.claims import claim
from compaction.blocks.index.live_blocks import BlockFilter, blocks_at, inspect, live_blocks, page, streamed
from compaction.blocks.index.queued import QueueDepth, read_changes, read_queue
from compaction.blocks.index.queued import depths as queue_depths
from compaction.blocks.index.registering import BlockReplacement, register
from compaction.blocks.index.registering import replace as pages_replace
from compaction.blocks.index.tables import BlockState, IndexDatabase
from compaction.blocks.index.tombstones import RetentionPeriods, confirm, due, expire, forget_blocks
from compaction.blocks.model import Block, BlockKey, RowFingerprint
from support.blocks.block_stores import NOON, SECOND, a_block, block_id, blocks_of, check, output_of, tables
from support.timing import seeds


def test_a_block_is_live_and_queued_from_one_moment(index: IndexDatabase) -> None:
    blocks = [a_block(3), a_block(1), a_block(2, tenant="other", shard=7, level=2)]
    done = register(index, blocks, now=NOON + 5)
    assert done.new == tuple(block.id for block in blocks)
    assert live_blocks(index).blocks == (blocks[1], blocks[2], blocks[0])  # by id
    queue = read_queue(index).entries
    assert [(entry.id, entry.at, entry.job) for entry in queue] == [(block.id, NOON + 5, None) for block in blocks]
    assert queue[2].key == blocks[2].key == BlockKey("other", 7, 2)
    check(index)


def test_the_queue_is_in_the_order_of_arrival(index: IndexDatabase) -> None:
    for number in (5, 1, 9, 3):
        register(index, [a_block(number)], now=NOON - number)
    assert [entry.id for entry in read_queue(index).entries] == [block_id(number) for number in (5, 1, 9, 3)]


def test_a_repetition_changes_nothing(index: IndexDatabase) -> None:
    register(index, blocks_of(1, 2), now=NOON)
    before = tables(index)
    again = register(index, blocks_of(2, 1, 2), now=NOON + SECOND)
    assert (again.new, again.known) == ((), (block_id(2), block_id(1)))
    assert tables(index) == before
    mixed = register(index, blocks_of(2, 3), now=NOON + SECOND)
    assert (mixed.new, mixed.known) == ((block_id(3),), (block_id(2),))
    check(index)


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": RowFingerprint(10, 7)}, {"bytes": 101}, {"level": 1}, {"tenant": "other"}, {"shard": 1},
        {"sort_key": ("service",)}, {"sort_key": ()}, {"schema_id": "s2"}, {"max_time": NOON + 3 * SECOND},
        {"path": "x"}, {"rows": 9, "fingerprint": RowFingerprint(9, 1)},
    ],
)  # fmt: skip
def test_the_same_id_with_another_content_is_refused(index: IndexDatabase, change: dict[str, Any]) -> None:
    register(index, [a_block(1)], now=NOON)
    before = tables(index)
    with pytest.raises(BlockConflictError, match=f"another content .{next(iter(change))[:4]}"):
        register(index, [a_block(2), replace(a_block(1), **change)], now=NOON)
    assert tables(index) == before, "not even the other block was registered"


def test_the_same_path_under_another_id_is_refused(index: IndexDatabase) -> None:
    register(index, [a_block(1)], now=NOON)
    with pytest.raises(BlockConflictError, match=f"that of block {block_id(1)}"):
        register(index, [replace(a_block(2), path=a_block(1).path)], now=NOON)
    with pytest.raises(InvalidBlockError, match="also that of block"):
        register(index, [a_block(2), replace(a_block(3), path=a_block(2).path)], now=NOON)
    with pytest.raises(InvalidBlockError, match="given twice"):
        register(index, [a_block(2), replace(a_block(2), bytes=7)], now=NOON)
    assert len(live_blocks(index).blocks) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": "x"}, "is not a ULID"),
        ({"id": block_id(1).lower()}, "not written as ULIDs are"),
        ({"id": "8" + block_id(1)[1:]}, "ULID"),
        ({"id": block_id(1) + "\n"}, "ULID"),
        ({"tenant": ""}, "tenant is empty"),
        ({"tenant": "a\0b"}, "tenant holds the character NUL"),
        ({"tenant": "a\ud800"}, "tenant cannot be written"),
        ({"tenant": "a" * 1025}, "tenant is longer"),
        ({"path": ""}, "path is empty"),
        ({"schema_id": ""}, "schema_id is empty"),
        ({"sort_key": ("a", "")}, r"sort_key\[1\] is empty"),
        ({"sort_key": ("a" * 1000,) * 20}, "sort_key is longer"),
        ({"shard": -1}, "shard is -1"),
        ({"shard": 2**63}, "shard is"),
        ({"level": -1}, "level is -1"),
        ({"level": 2**31}, "level is"),
        ({"bytes": -1}, "bytes is -1"),
        ({"rows": -1, "fingerprint": RowFingerprint(-1, 0)}, "rows is -1"),
        ({"fingerprint": RowFingerprint(11, 1)}, "its fingerprint 11"),
        ({"min_time": 5, "max_time": 4}, "5..4"),
        ({"max_time": 2**63}, "no range"),
        ({"min_time": -(2**63) - 1}, "no range"),
    ],
)
def test_what_cannot_be_a_block(index: IndexDatabase, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidBlockError, match=message):
        register(index, [a_block(2), replace(a_block(1), **fields)], now=NOON)
    assert live_blocks(index).blocks == ()


def test_extreme_values_come_back_as_they_were(index: IndexDatabase) -> None:
    blocks = [
        a_block(1, shard=2**31 - 1, level=2**15, bytes=2**63 - 1, min_time=1 - 2**63, max_time=2**63 - 1),
        a_block(2, fingerprint=RowFingerprint(2**63 - 1, 2**128 - 1), sort_key=()),
        a_block(
            3,
            fingerprint=RowFingerprint(0, 0),
            bytes=0,
            tenant="ж" * 33,
            path="ю" * 512,
            sort_key=("ключ", 'a"b', "%(x)s"),
        ),
        a_block(4, tenant="'; DROP TABLE blocks; --", path="a b/%/\\/ü"),
    ]
    register(index, blocks, now=NOON)
    assert list(live_blocks(index).blocks) == blocks
    assert register(index, blocks, now=NOON).new == ()


def test_many_blocks_at_once(index: IndexDatabase) -> None:
    blocks = blocks_of(*range(3000))
    register(index, blocks[:1500], now=NOON)
    done = register(index, blocks, now=NOON)
    assert (len(done.new), len(done.known)) == (1500, 1500)
    assert list(live_blocks(index).blocks) == blocks
    with streamed(index) as (_, streaming):
        assert list(streaming) == blocks
    check(index)


def test_nothing_is_registered_without_blocks(index: IndexDatabase) -> None:
    before = live_blocks(index)
    assert register(index, [], now=NOON).new == ()
    assert live_blocks(index) == before


class TestListing:
    """docs/design/block-replace.md#ranges-of-time, I3: both ends of a range are included."""

    HOUR = 3600 * SECOND

    @pytest.mark.parametrize(
        ("start", "end", "found"),
        [
            (6.5, 10, True), (7.5, 8.5, True), (6.5, 8, True), (8, 10, True), (6, 7, True), (9, 10, True),
            (5, 7 - 1e-6, False), (9 + 1e-6, 11, False), (7, 9, True), (None, 7, True), (9, None, True),
            (None, 6.9, False), (9.1, None, False), (None, None, True),
        ],
    )  # fmt: skip
    def test_overlap(self, index: IndexDatabase, start: float | None, end: float | None, found: bool) -> None:
        register(index, [a_block(1, min_time=7 * self.HOUR, max_time=9 * self.HOUR)], now=NOON)
        bounds = [None if hours is None else round(hours * self.HOUR) for hours in (start, end)]
        listing = live_blocks(index, BlockFilter(start=bounds[0], end=bounds[1]))
        assert bool(listing.blocks) is found

    def test_by_tenant_shard_and_level(self, index: IndexDatabase) -> None:
        blocks = [a_block(n, tenant="ab"[n % 2], shard=n // 2 % 2, level=n // 4) for n in range(8)]
        register(index, blocks, now=NOON)
        assert list(live_blocks(index, BlockFilter(tenant="a")).blocks) == blocks[::2]
        assert list(live_blocks(index, BlockFilter(tenant="b", shard=1, level=1)).blocks) == [blocks[7]]
        assert live_blocks(index, BlockFilter(tenant="B")).blocks == ()

    def test_inspect(self, index: IndexDatabase) -> None:
        register(index, [a_block(1)], now=NOON)
        record = inspect(index, block_id(1))
        assert record is not None
        assert (record.block, record.state, record.queued_at) == (a_block(1), BlockState.LIVE, NOON)
        assert (record.job, record.quarantined, record.ended) == (None, None, None)
        assert inspect(index, block_id(2)) is None


class TestQueue:
    def test_levels_that_are_not_planned_are_left_out(self, index: IndexDatabase) -> None:
        register(index, [a_block(n, level=n) for n in range(5)], now=NOON)
        assert [entry.level for entry in read_queue(index, levels=3).entries] == [0, 1, 2]
        changes = read_changes(index, 0, levels=3)
        assert changes is not None
        assert [entry.level for entry in changes.entries] == [0, 1, 2]

    def test_changes_since_a_version(self, index: IndexDatabase) -> None:
        register(index, blocks_of(1, 2), now=NOON)
        known = read_queue(index).version
        register(index, blocks_of(3), now=NOON)
        changes = read_changes(index, known)
        assert changes is not None
        assert [entry.id for entry in changes.entries] == [block_id(3)]
        nothing = read_changes(index, changes.version)
        assert nothing is not None
        assert (nothing.entries, nothing.left) == ((), ())
        assert read_changes(index, changes.version + 1) is None, "a version of another index, or of one restored"

    def test_depths(self, index: IndexDatabase) -> None:
        register(index, [a_block(1, bytes=5), a_block(2, level=1)], now=NOON + 1)
        register(index, [a_block(3, bytes=6), a_block(4, tenant="a")], now=NOON)
        assert queue_depths(index) == (
            QueueDepth(BlockKey("a", 0, 0), 1, 100, NOON),
            QueueDepth(BlockKey("t", 0, 0), 2, 11, NOON),
            QueueDepth(BlockKey("t", 0, 1), 1, 100, NOON + 1),
        )

    def test_nothing_is_missed_while_many_register(self, index_url: str) -> None:
        """A planner that follows the changes has, in the end, the queue; no change overtakes another unseen."""
        writers, rounds = 4, 15

        def write(writer: int) -> None:
            database = IndexDatabase.open(index_url)
            for turn in range(rounds):
                number = writer * 1000 + turn * 2
                register(database, blocks_of(number, number + 1), now=NOON)
            database.close()

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        reader = IndexDatabase.open(index_url)
        seen: dict[str, int] = {}
        order: list[int] = []
        version = 0
        while len(seen) < writers * rounds * 2:
            changes = read_changes(reader, version)
            assert changes is not None
            version = changes.version
            for entry in changes.entries:
                assert entry.id not in seen
                seen[entry.id] = entry.arrival
                order.append(entry.arrival)
            assert len(live_blocks(reader).blocks) % 2 == 0, "half of a registration was seen"
        for thread in threads:
            thread.join()
        assert order == list(range(1, writers * rounds * 2 + 1))
        check(reader)
        reader.close()


def test_many_register_the_same(index_url: str) -> None:
    results: list[str] = []

    def write() -> None:
        database = IndexDatabase.open(index_url)
        results.extend(register(database, blocks_of(1, 2, 3), now=NOON).new)
        database.close()

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [block_id(1), block_id(2), block_id(3)]


# Pages of a listing: together they are what was live at the first one, whatever happens between them.


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
    pages_replace(
        index, BlockReplacement(job, 1, tuple(block.id for block in sources), (output,), "{}"), clock=lambda: NOON
    )
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
                    clock=lambda: NOON + chance.randint(0, 400) * SECOND,
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
