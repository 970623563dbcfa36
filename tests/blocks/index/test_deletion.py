"""What ends: tombstones until their deletion is confirmed, quarantine, orphans; nothing in use is ever deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import pytest

from compaction.blocks.errors import BlockConflictError, UnknownBlockError
from compaction.blocks.index.claims import claim, job_record, retire
from compaction.blocks.index.live_blocks import inspect, live_blocks
from compaction.blocks.index.queued import Fault, drop, quarantine, quarantined, read_changes, read_queue, release
from compaction.blocks.index.registering import BlockReplacement, register, replace
from compaction.blocks.index.tables import BlockState, IndexChange, IndexDatabase, TombstoneReason
from compaction.blocks.index.tombstones import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    RetentionPeriods,
    condemn,
    condemned,
    confirm,
    confirm_gone,
    due,
    expire,
    failed,
    forget_blocks,
    forget_gone,
    known_paths,
    next_due,
    standing,
    summary,
    unknown_paths,
    would_expire,
)
from support.blocks.block_stores import NOON, SECOND, a_block, block_id, blocks_of, check, output_of, tables

GRACE = 600 * SECOND
HOUR: Final = 3600 * SECOND
BAD = Fault("Corrupt", "page 7 of column value")


def _compacted(index: IndexDatabase, *numbers: int, at: int = NOON) -> None:
    """These blocks, registered and replaced at `at` by one that has ten times the number of the first."""
    sources = blocks_of(*numbers)
    register(index, sources, now=at)
    ids = tuple(block.id for block in sources)
    job = f"job-{numbers[0]}"
    claim(index, job=job, token=1, sources=ids, now=at)
    output = output_of(1000 + numbers[0], sources)
    replace(index, BlockReplacement(job, 1, ids, (output,), "{}"), clock=lambda: at)


Clock = Callable[[], int]


def _by_replacement(index: IndexDatabase) -> Callable[[Clock], object]:
    sources = blocks_of(1, 2)
    register(index, sources, now=NOON)
    ids = tuple(block.id for block in sources)
    claim(index, job="job", token=1, sources=ids, now=NOON)
    result = BlockReplacement("job", 1, ids, (output_of(9, sources),), "{}")
    return lambda clock: replace(index, result, clock=clock)


def _by_hand(index: IndexDatabase) -> Callable[[Clock], object]:
    register(index, blocks_of(1), now=NOON)
    quarantine(index, {block_id(1): BAD}, now=NOON)
    return lambda clock: drop(index, block_id(1), clock=clock)


def _by_age(index: IndexDatabase) -> Callable[[Clock], object]:
    register(index, blocks_of(1, 2), now=NOON)
    return lambda clock: expire(index, RetentionPeriods(default=SECOND), clock=clock)


class TestTombstones:
    @pytest.mark.parametrize("way", [_by_replacement, _by_hand, _by_age])
    def test_a_change_that_waits_takes_nothing_of_the_grace(
        self, index: IndexDatabase, way: Callable[[IndexDatabase], Callable[[Clock], object]]
    ) -> None:
        """Readers take snapshots of the blocks until it has its turn."""
        end, held, asked, over = way(index), threading.Event(), threading.Event(), threading.Event()
        early, late = NOON + 1000 * HOUR, NOON + 1001 * HOUR

        def first(_: IndexChange) -> None:
            held.set()
            asked.wait()
            time.sleep(0.2)
            over.set()

        def second() -> None:
            held.wait()
            asked.set()
            end(lambda: late if over.is_set() else early)

        with ThreadPoolExecutor(2) as pool:
            changes = [pool.submit(index.change, first), pool.submit(second)]
        assert [change.result() for change in changes] == [None, None]
        assert {item.since for item in standing(index)} == {late}

    def test_due_after_the_grace_oldest_first_and_until_confirmed(self, index: IndexDatabase) -> None:
        _compacted(index, 3, 4, at=NOON + SECOND)
        _compacted(index, 1, 2)
        assert due(index, now=NOON + GRACE - 1, grace=GRACE) == ()
        assert next_due(index, grace=GRACE) == NOON + GRACE
        for _ in range(2):
            first = due(index, now=NOON + GRACE, grace=GRACE)
            assert [item.block for item in first] == [block_id(1), block_id(2)]
        (one, _) = first
        assert (one.path, one.tenant, one.bytes) == (a_block(1).path, "t", 100)
        assert (one.reason, one.job, one.since) == (TombstoneReason.REPLACED, "job-1", NOON)
        both = due(index, now=NOON + SECOND + GRACE, grace=GRACE, limit=3)
        assert [item.block for item in both] == [block_id(1), block_id(2), block_id(3)]
        assert summary(index) == (4, 400, NOON, 0)
        assert confirm(index, [block_id(1), block_id(3), block_id(99)], now=NOON) == 2
        assert confirm(index, [block_id(1), block_id(3)], now=NOON) == 0
        assert [item.block for item in due(index, now=NOON + 2 * GRACE, grace=GRACE)] == [block_id(2), block_id(4)]
        gone = inspect(index, block_id(1))
        assert gone is not None
        assert gone.state is BlockState.DELETED
        check(index)

    def test_nothing_live_is_handed_out_or_confirmed(self, index: IndexDatabase) -> None:
        register(index, blocks_of(1), now=0)
        assert confirm(index, [block_id(1)], now=NOON) == 0
        assert due(index, now=NOON, grace=0) == ()
        assert live_blocks(index).blocks == (a_block(1),)
        assert (next_due(index, grace=0), summary(index)) == (None, (0, 0, None, 0))

    def test_one_that_cannot_be_deleted_does_not_keep_others_waiting(self, index: IndexDatabase) -> None:
        _compacted(index, 1, 2)
        now = NOON
        for attempts in range(1, 12):
            failed(index, {block_id(1): "403 Forbidden\0" * 100, block_id(99): "unknown"}, now=now)
            pause = min(FIRST_PAUSE * 2 ** (attempts - 1), LONGEST_PAUSE)
            assert [item.block for item in due(index, now=now + pause - 1, grace=0)] == [block_id(2)]
            (one, _) = due(index, now=now + pause, grace=0)
            assert (one.block, one.attempts) == (block_id(1), attempts)
            assert one.error is not None
            assert one.error.startswith("403 Forbidden?403")
            now += pause
        assert summary(index).failing == 1
        assert next_due(index, grace=0) == NOON
        confirm(index, [block_id(2)], now=now)
        assert next_due(index, grace=0) == now
        confirm(index, [block_id(1)], now=now)
        assert summary(index).blocks == 0

    def test_what_was_made_of_others_is_deleted_behind_them(self, index: IndexDatabase) -> None:
        """An object that is gone proves that all it was made of is gone."""
        first, second = blocks_of(1, 2), blocks_of(3, 4)
        outputs = [output_of(100, first), output_of(101, second)]
        elsewhere = blocks_of(5, shard=1)
        register(index, [*first, *second, *elsewhere], now=NOON)
        for number, (sources, made) in enumerate([(first, outputs[:1]), (second, outputs[1:]), (outputs, [])]):
            top = made or [output_of(102, outputs)]
            ids = tuple(block.id for block in sources)
            claim(index, job=f"j{number}", token=1, sources=ids, now=NOON)
            # Clocks of two coordinators differ: what ended later seems to have ended before.
            replace(index, BlockReplacement(f"j{number}", 1, ids, tuple(top), "{}"), clock=partial(int, NOON - number))
        quarantine(index, {elsewhere[0].id: BAD}, now=NOON)
        drop(index, elsewhere[0].id, clock=lambda: NOON)
        gone = [block.id for block in (*first, *second)]
        assert {item.block for item in due(index, now=NOON, grace=0)} == {*gone, elsewhere[0].id}
        failed(index, {gone[0]: "403"}, now=NOON)
        confirm(index, [*gone[1:], elsewhere[0].id], now=NOON)
        assert due(index, now=NOON, grace=0) == ()
        assert {item.block for item in standing(index)} == {gone[0], *(block.id for block in outputs)}
        assert next_due(index, grace=0) == NOON + FIRST_PAUSE
        confirm(index, gone[:1], now=NOON)
        assert [item.block for item in due(index, now=NOON, grace=0)] == [block.id for block in outputs]

    def test_a_deletion_is_remembered_and_then_forgotten(self, index: IndexDatabase) -> None:
        _compacted(index, 1, 2)
        version = read_queue(index).version
        for now in (NOON, NOON + SECOND):
            assert register(index, blocks_of(1), now=now).known == (block_id(1),), "it does not come back"
            confirm(index, [block_id(1)], now=NOON)
        assert forget_blocks(index, before=NOON) == 0
        assert read_changes(index, version) is not None
        assert forget_blocks(index, before=NOON + 1) == 1
        assert inspect(index, block_id(1)) is None
        assert forget_blocks(index, before=NOON + 1) == 0, "a tombstone is never forgotten"
        assert read_changes(index, version) is None, "what left the queue since cannot be told any more"
        assert read_changes(index, read_queue(index).version) is not None
        check(index)

    def test_two_sweepers(self, index_url: str) -> None:
        database = IndexDatabase.open(index_url)
        _compacted(database, *range(30))
        counts: list[int] = []

        def sweep() -> None:
            mine = IndexDatabase.open(index_url)
            while batch := due(mine, now=NOON, grace=0, limit=7):
                counts.append(confirm(mine, [item.block for item in batch], now=NOON))
            mine.close()

        threads = [threading.Thread(target=sweep) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(counts) == 30
        check(database)
        database.close()


class TestQuarantine:
    def test_set_aside_released_and_dropped(self, index: IndexDatabase) -> None:
        register(index, blocks_of(1, 2, 3), now=NOON)
        version = read_queue(index).version
        quarantine(index, {block_id(1): BAD, block_id(2): BAD}, now=NOON + 1, job="job")
        assert len(live_blocks(index).blocks) == 3, "readers still get them"
        assert [entry.id for entry in read_queue(index).entries] == [block_id(3)]
        changes = read_changes(index, version)
        assert changes is not None
        assert [block for block, _ in changes.left] == [block_id(1), block_id(2)]
        assert [(item.block.id, item.fault, item.job, item.since) for item in quarantined(index)] == [
            (block_id(number), BAD, "job", NOON + 1) for number in (1, 2)
        ]
        assert release(index, block_id(1), now=NOON + 2)
        assert not release(index, block_id(1), now=NOON + 3)
        assert [(entry.id, entry.at) for entry in read_queue(index).entries] == [
            (block_id(3), NOON), (block_id(1), NOON + 2),
        ]  # fmt: skip
        assert drop(index, block_id(2), clock=lambda: NOON)
        assert not drop(index, block_id(2), clock=lambda: NOON)
        assert [block.id for block in live_blocks(index).blocks] == [block_id(1), block_id(3)]
        assert [item.reason for item in due(index, now=NOON, grace=0)] == [TombstoneReason.DROPPED]
        assert quarantined(index) == ()
        check(index)

    def test_the_newer_reason_stands(self, index: IndexDatabase) -> None:
        register(index, blocks_of(1), now=NOON)
        quarantine(index, {block_id(1): Fault("Missing", "404")}, now=NOON)
        quarantine(index, {block_id(1): Fault("Corrupt", "x\0" * 5000)}, now=NOON + 1)
        (one,) = quarantined(index)
        assert (one.fault.reason, one.fault.message[:4], one.since) == ("Corrupt", "x?x?", NOON + 1)

    def test_what_cannot_be_set_aside_or_dropped(self, index: IndexDatabase) -> None:
        _compacted(index, 1, 2)
        register(index, blocks_of(3), now=NOON)
        before = tables(index)
        for block, state in ((block_id(1), "tombstoned"), (block_id(99), "unknown")):
            with pytest.raises(UnknownBlockError, match=state):
                quarantine(index, {block_id(3): BAD, block: BAD}, now=NOON)
            with pytest.raises(UnknownBlockError, match=state):
                release(index, block, now=NOON)
        for block, state in ((block_id(3), "not in quarantine"), (block_id(99), "unknown")):
            with pytest.raises(UnknownBlockError, match=state):
                drop(index, block, clock=lambda: NOON)
        assert tables(index) == before

    def test_a_claimed_block_may_be_replaced_all_the_same(self, index: IndexDatabase) -> None:
        """Its job could read it after all."""
        sources = blocks_of(1, 2)
        register(index, sources, now=NOON)
        ids = tuple(block.id for block in sources)
        claim(index, job="job", token=1, sources=ids, now=NOON)
        quarantine(index, {ids[0]: BAD}, now=NOON)
        replace(index, BlockReplacement("job", 1, ids, (output_of(9, sources),), "{}"), clock=lambda: NOON)
        assert quarantined(index) == ()
        check(index)


class TestOrphans:
    def test_only_what_no_block_refers_to(self, index: IndexDatabase) -> None:
        _compacted(index, 1, 2)
        _compacted(index, 3, 4)
        confirm(index, [block_id(3)], now=NOON)
        used = [block.path for block in live_blocks(index).blocks] + [a_block(1).path, a_block(2).path, a_block(4).path]
        paths = ["t/0/stray.parquet", *used, a_block(3).path, "%", "t/0/stray.parquet"]
        expected = ("t/0/stray.parquet", a_block(3).path, "%")
        assert set(unknown_paths(index, paths)) == set(expected), "a dry run"
        assert condemned(index) == ()
        assert condemn(index, paths, now=NOON) == expected
        assert condemn(index, paths, now=NOON + 1) == expected, "once more, after a crash"
        assert set(condemned(index)) == set(expected)
        with known_paths(index) as known:
            assert list(known) == sorted(used)
        confirm_gone(index, expected[:2], now=NOON)
        assert condemned(index) == ("%",)
        check(index)

    def test_a_condemned_object_does_not_become_a_block(self, index: IndexDatabase) -> None:
        assert condemn(index, [a_block(1).path], now=NOON) == (a_block(1).path,)
        for _ in range(2):
            with pytest.raises(BlockConflictError, match="upload it under a new id"):
                register(index, blocks_of(1, 2), now=NOON)
            confirm_gone(index, [a_block(1).path], now=NOON)
        assert live_blocks(index).blocks == ()
        register(index, blocks_of(2), now=NOON)
        assert condemn(index, [a_block(2).path], now=NOON) == ()

    def test_deletions_are_remembered_while_a_claim_is_older(self, index: IndexDatabase) -> None:
        register(index, blocks_of(1), now=NOON)
        claim(index, job="job", token=1, sources=[block_id(1)], now=NOON)
        condemn(index, ["a", "b"], now=NOON)
        confirm_gone(index, ["a"], now=NOON)
        assert forget_gone(index, before=NOON + 1) == 0
        retire(index, "job", now=NOON)
        assert forget_gone(index, before=NOON) == 0
        assert forget_gone(index, before=NOON + 1) == 1
        assert condemned(index) == ("b",), "one that was not confirmed is never forgotten"

    @pytest.mark.parametrize("round_", range(5))
    def test_a_race_between_collector_and_writer(self, index_url: str, round_: int) -> None:
        """Either the object is a block, or it may be deleted; never both."""
        database = IndexDatabase.open(index_url)
        start = threading.Barrier(2)
        ends: dict[str, bool] = {}

        def collect() -> None:
            mine = IndexDatabase.open(index_url)
            start.wait()
            ends["collected"] = bool(condemn(mine, [a_block(1).path], now=NOON))
            mine.close()

        thread = threading.Thread(target=collect)
        thread.start()
        mine = IndexDatabase.open(index_url)
        start.wait()
        try:
            register(mine, blocks_of(1), now=NOON)
            ends["registered"] = True
        except BlockConflictError:
            ends["registered"] = False
        thread.join()
        assert ends["collected"] is not ends["registered"]
        assert bool(live_blocks(database).blocks) is ends["registered"]
        check(database)
        mine.close()
        database.close()


def test_jobs_are_remembered_as_long_as_asked(index: IndexDatabase) -> None:
    _compacted(index, 1, 2)
    record = job_record(index, "job-1")
    assert record is not None
    assert (record.receipt, record.sources) == ("{}", (block_id(1), block_id(2)))


# Retention: the scenarios R of docs/design/block-replace.md, and what it does to claimed blocks.
#
# There, a partition of six hours expires as a whole and a multi-tenant one is kept; here each block is looked at for
# itself and has one tenant. Rows where that makes a difference say so.

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
    gone = {item.block for item in expire(index, rule, clock=lambda: NOW)}
    assert {item.block for item in said} == gone
    names = {block.id: (block.tenant, block.shard) for block in known}
    assert {names[block] for block in gone} == {(blocks[n][0], blocks[n][1]) for n in expired}
    assert {block.id for block in live_blocks(index).blocks} == set(names) - gone
    assert {item.block for item in due(index, now=NOW, grace=0) if item.reason is TombstoneReason.EXPIRED} == gone
    before = tables(index)
    assert expire(index, rule, clock=lambda: NOW) == ()
    assert tables(index) == before
    check(index)


def test_boundaries_are_strict(index: IndexDatabase) -> None:
    _register(index, ("t", 1, 26, 24))
    rule = RetentionPeriods(default=24 * HOUR)
    assert expire(index, rule, clock=lambda: NOW) == ()
    assert len(expire(index, rule, clock=lambda: NOW + 1)) == 1
    _register(index, ("t", 2, 25, 24.5))
    rule = RetentionPeriods(default=24 * HOUR, grace=HOUR)
    assert expire(index, rule, clock=lambda: NOW) == ()
    assert len(expire(index, rule, clock=lambda: NOW + 1)) == 1


def test_a_batch_at_a_time_the_oldest_rows_first(index: IndexDatabase) -> None:
    _register(index, ("t1", 1, 60, 40), ("t2", 2, 60, 50), ("t1", 3, 60, 45))
    rule = RetentionPeriods(default=24 * HOUR)
    assert [item.tenant for item in expire(index, rule, clock=lambda: NOW, limit=2)] == ["t2", "t1"]
    assert [block.shard for block in live_blocks(index).blocks] == [1]
    assert len(expire(index, rule, clock=lambda: NOW, limit=2)) == 1


def test_a_claim_does_not_protect(index: IndexDatabase) -> None:
    _register(index, ("t", 1, 60, 40))
    (block,) = live_blocks(index).blocks
    claim(index, job="job", token=1, sources=[block.id], now=NOW)
    (one,) = expire(index, RetentionPeriods(default=24 * HOUR), clock=lambda: NOW)
    assert (one.block, one.tenant, one.bytes, one.job) == (block.id, "t", 100, "job")
    check(index)
