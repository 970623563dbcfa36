"""What ended is deleted after the grace, and nothing else; what cannot be deleted is told and tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.blocks.index.live_blocks import inspect
from compaction.blocks.index.tables import BlockState
from compaction.blocks.index.tombstones import FIRST_PAUSE, RetentionPeriods, summary
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep import cleaning
from compaction.blocks.sweep.cleaning import REMEMBERED, expire_all, housekeeping, sweep
from compaction.storage.errors import ObjectMissingError
from support.faults.fault_proxy import Fault, FaultProxy
from support.stores.block_histories import compact
from support.stores.block_index import NOON, SECOND, block_id
from support.stores.block_stores import content, fill
from support.stores.s3 import QUICK, S3

GRACE = 600 * SECOND


def _exists(store: BlockStore, block: str) -> bool:
    known = inspect(store.index, block)
    assert known is not None
    try:
        store.objects.head(known.block.path)
    except ObjectMissingError:
        return False
    return True


def test_replaced_blocks_are_deleted_after_the_grace(block_store: BlockStore) -> None:
    store = block_store
    fill(store, [1, 2, 3])
    rows = content(store)
    compact(store, [block_id(1), block_id(2)], now=NOON)
    early = sweep(store.objects, store.index, now=NOON + GRACE - 1, grace=GRACE)
    assert (early.blocks, early.next, early.more) == (0, NOON + GRACE, False)
    assert _exists(store, block_id(1)), "readers of an older listing still read it"
    done = sweep(store.objects, store.index, now=NOON + GRACE, grace=GRACE)
    assert (done.blocks, dict(done.failed), done.next, done.more) == (2, {}, None, False)
    assert done.bytes > 0
    assert [_exists(store, block_id(number)) for number in (1, 2, 3)] == [False, False, True]
    assert content(store) == rows
    known = inspect(store.index, block_id(1))
    assert known is not None
    assert known.state is BlockState.DELETED


def test_a_limit_ends_a_sweep_and_the_next_goes_on(block_store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "BATCH", 2)
    fill(block_store, range(5))
    compact(block_store, [block_id(number) for number in range(5)], now=NOON)
    first = sweep(block_store.objects, block_store.index, now=NOON, grace=0, limit=3)
    assert (first.blocks, first.more) == (3, True)
    second = sweep(block_store.objects, block_store.index, now=NOON, grace=0)
    assert (second.blocks, second.more) == (2, False)


def test_generations_go_in_one_sweep_the_older_ones_first(block_store: BlockStore) -> None:
    fill(block_store, [1, 2, 3])
    rows = content(block_store)
    (one,) = compact(block_store, [block_id(1), block_id(2)], now=NOON)
    (two,) = compact(block_store, [one], now=NOON)
    done = sweep(block_store.objects, block_store.index, now=NOON, grace=0)
    assert (done.blocks, done.next) == (3, None)
    assert content(block_store) == rows
    assert _exists(block_store, two)


def test_what_cannot_be_deleted_is_told_and_put_off(tmp_path: Path) -> None:
    """The folder of one shard refuses; the other shard goes on."""
    store = BlockStore.open(BlockStoreConnection(f"{tmp_path}/objects", f"sqlite:///{tmp_path}/index.db"))
    fill(store, [1, 2])
    fill(store, [3, 4], shard=1)
    compact(store, [block_id(1), block_id(2)], now=NOON)
    compact(store, [block_id(3), block_id(4)], now=NOON)
    shard = tmp_path / "objects" / "acme" / "0"
    kept = shard / f"{block_id(1)}.parquet"
    kept.unlink()
    (kept / "inside").mkdir(parents=True)
    done = sweep(store.objects, store.index, now=NOON, grace=0)
    assert done.blocks == 3
    assert list(done.failed) == [block_id(1)]
    assert done.next == NOON + FIRST_PAUSE
    assert summary(store.index).failing == 1
    assert sweep(store.objects, store.index, now=NOON, grace=0).blocks == 0, "not before its time"
    (kept / "inside").rmdir()
    kept.rmdir()
    assert sweep(store.objects, store.index, now=NOON + FIRST_PAUSE, grace=0).blocks == 1, "what is gone is deleted"
    store.close()


def test_an_outage_of_the_store_ends_the_sweep(s3: S3, proxy: FaultProxy, tmp_path: Path) -> None:
    url = s3.bucket()
    direct = BlockStore.open(BlockStoreConnection(url, f"sqlite:///{tmp_path}/index.db", s3.gateway.options()))
    fill(direct, range(10))
    compact(direct, [block_id(number) for number in range(10)], now=NOON)
    away = s3.open(url, endpoint=proxy.endpoint, retrying=QUICK)
    proxy.plan(Fault.BUSY, times=1000)
    done = sweep(away, direct.index, now=NOON, grace=0)
    assert (done.blocks, len(done.failed)) == (0, 10)
    assert len(proxy.seen) < 50, "an outage is noticed, not proved ten times over"
    assert "503" in done.failed[block_id(0)]
    later = sweep(direct.objects, direct.index, now=NOON + 1, grace=0)
    assert (later.blocks, later.failed) == (0, done.failed), "until they are tried again, they have failed"
    assert sweep(direct.objects, direct.index, now=NOON + FIRST_PAUSE, grace=0).blocks == 10
    direct.close()


def test_retention_ends_blocks_and_the_sweep_deletes_them(block_store: BlockStore) -> None:
    store = block_store
    fill(store, [1, 2])
    fill(store, [3], tenant="other")
    rule = RetentionPeriods(tenants={"acme": 86_400 * SECOND})
    far = NOON + 2 * 86_400 * SECOND
    ended = expire_all(store.index, rule, now=far, limit=1)
    assert [item.tenant for item in ended] == ["acme"]
    assert len(expire_all(store.index, rule, now=far)) == 1
    assert expire_all(store.index, rule, now=far) == ()
    assert [block.tenant for block in store.live().blocks] == ["other"]
    assert _exists(store, block_id(1)), "queries that began before read on"
    assert sweep(store.objects, store.index, now=far + GRACE, grace=GRACE).blocks == 2
    assert not _exists(store, block_id(1))


def test_what_ended_is_forgotten_after_a_week(block_store: BlockStore) -> None:
    store = block_store
    fill(store, [1, 2])
    compact(store, [block_id(1), block_id(2)], now=NOON)
    assert housekeeping(store.index, now=NOON + 10 * REMEMBERED)[:2] == (0, 1)
    sweep(store.objects, store.index, now=NOON, grace=0)
    assert housekeeping(store.index, now=NOON + REMEMBERED) == (0, 0, 0)
    assert housekeeping(store.index, now=NOON + REMEMBERED + 1) == (2, 0, 0)
    assert store.inspect(block_id(1)) is None


def _path(store: BlockStore, block: str) -> str:
    known = inspect(store.index, block)
    assert known is not None
    return known.block.path


def test_sources_stay_while_what_was_made_of_them_is_missing(block_store: BlockStore) -> None:
    """A bucket restored to the day before: the sources are there again, their output is not."""
    store = block_store
    fill(store, [1, 2, 3])
    (output,) = compact(store, [block_id(1), block_id(2)], now=NOON)
    path = _path(store, output)
    kept = store.objects.get(path)
    store.objects.delete([path])
    done = sweep(store.objects, store.index, now=NOON + GRACE, grace=GRACE)
    assert done.blocks == 0
    assert set(done.failed) == {block_id(1), block_id(2)}
    assert all(output in said and "not in the store" in said for said in done.failed.values())
    store.objects.put(path, kept[:-1])
    later = NOON + GRACE + FIRST_PAUSE
    torn = sweep(store.objects, store.index, now=later, grace=GRACE)
    assert "bytes instead of" in torn.failed[block_id(1)]
    assert [_exists(store, block_id(number)) for number in (1, 2, 3)] == [True, True, True]
    store.objects.put(path, kept)
    assert sweep(store.objects, store.index, now=later + 4 * FIRST_PAUSE, grace=GRACE).blocks == 2


@pytest.mark.parametrize("why", ["the folder became a table", "the output is missing"])
def test_a_batch_that_is_kept_does_not_end_the_sweep(
    block_store: BlockStore, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(cleaning, "BATCH", 2)
    fill(block_store, [1, 2])
    fill(block_store, [3, 4], tenant="other")
    (output,) = compact(block_store, [block_id(1), block_id(2)], now=NOON)
    compact(block_store, [block_id(3), block_id(4)], now=NOON + 1)
    if why == "the output is missing":
        block_store.objects.delete([_path(block_store, output)])
    else:
        block_store.objects.put("acme/_delta_log/0.json", b"{}")
    done = sweep(block_store.objects, block_store.index, now=NOON + 1, grace=0)
    assert (done.blocks, set(done.failed)) == (2, {block_id(1), block_id(2)})
    assert [_exists(block_store, block_id(number)) for number in (1, 2, 3, 4)] == [True, True, False, False]


def test_a_missing_block_that_was_replaced_in_turn_holds_nothing_up(block_store: BlockStore) -> None:
    store = block_store
    fill(store, [1, 2])
    (middle,) = compact(store, [block_id(1), block_id(2)], now=NOON)
    (last,) = compact(store, [middle], now=NOON)
    store.objects.delete([_path(store, middle)])
    rows = content(store)
    assert sweep(store.objects, store.index, now=NOON + GRACE, grace=GRACE).blocks == 3
    assert content(store) == rows
    assert _exists(store, last)


def test_sources_stay_when_the_last_of_a_line_is_missing(block_store: BlockStore) -> None:
    store = block_store
    fill(store, [1, 2])
    (middle,) = compact(store, [block_id(1), block_id(2)], now=NOON)
    (last,) = compact(store, [middle], now=NOON)
    store.objects.delete([_path(store, middle), _path(store, last)])
    done = sweep(store.objects, store.index, now=NOON + GRACE, grace=GRACE)
    assert done.blocks == 0
    assert [_exists(store, block_id(number)) for number in (1, 2)] == [True, True]
