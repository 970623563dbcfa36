"""What ended is deleted after the grace, and nothing else; what cannot be deleted is told and tried again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction.blocks.errors import BlockConflictError, IndexMismatchError, ReplaceRefusedError
from compaction.blocks.index.claims import retire
from compaction.blocks.index.live_blocks import inspect
from compaction.blocks.index.tables import BlockState, IndexDatabase
from compaction.blocks.index.tombstones import FIRST_PAUSE, RetentionPeriods, condemn, summary
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep import cleaning
from compaction.blocks.sweep.cleaning import REMEMBERED, expire_all, housekeeping, sweep
from compaction.blocks.sweep.orphan_collector import CLOCK_PATH, SAFETY_AGE, collect_orphans, find_orphans
from compaction.storage.errors import ObjectMissingError
from support.blocks.block_histories import attempt, compact
from support.blocks.block_stores import NOON, SECOND, block_id, check, content, fill, upload
from support.faults.proxies import Fault, FaultProxy
from support.faults.store_faults import DAY, Aging
from support.object_stores import QUICK, S3

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
    ended = expire_all(store.index, rule, clock=lambda: far, limit=1)
    assert [item.tenant for item in ended] == ["acme"]
    assert len(expire_all(store.index, rule, clock=lambda: far)) == 1
    assert expire_all(store.index, rule, clock=lambda: far) == ()
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


# Objects that nobody refers to are deleted, and only those: not what is being uploaded, not what is foreign.

WEEKS = 30 * DAY
FOREIGN = (
    "acme/0/notes.txt", "acme/0/day=1/01JD0000000000000000000000.parquet", "acme/x/01JD0000000000000000000000.parquet",
    "acme/0/01jd0000000000000000000000.parquet", "top.parquet", "_compaction/other",
)  # fmt: skip


@pytest.fixture
def store(block_store: BlockStore, age: Aging) -> BlockStore:
    """One that is weeks old."""
    age(block_store.objects, IDENTITY_PATH, WEEKS)
    return block_store


def _paths(store: BlockStore) -> set[str]:
    return {info.path for info in store.objects.list()} - {IDENTITY_PATH, CLOCK_PATH}


def test_what_nobody_registered_is_found_and_collected(store: BlockStore, age: Aging) -> None:
    fill(store, [1, 2, 3])
    old, young = upload(store, 8), upload(store, 9)
    compact(store, [block_id(1), block_id(2)])
    for path in _paths(store) - {young}:
        age(store.objects, path, DAY + 60)
    found = find_orphans(store.objects, store.index)
    assert [orphan.path for orphan in found.orphans] == [old], "tombstoned ones and live ones are known"
    assert (found.protected, found.waiting, found.more) == (0, 0, False)
    (one,) = found.orphans
    assert one.bytes == store.objects.head(old).size
    assert SAFETY_AGE + 50_000_000 < one.age < 2 * SAFETY_AGE
    before = _paths(store)
    done = collect_orphans(store.objects, store.index, now=NOON)
    assert (done.objects, done.bytes, dict(done.failed), done.more) == (1, one.bytes, {}, False)
    assert _paths(store) == before - {old}
    with pytest.raises(BlockConflictError, match="upload it under a new id"):
        store.register([upload(store, 8)], tenant="acme", shard=0)
    check(store.index)


def test_foreign_objects_are_never_touched(store: BlockStore, age: Aging) -> None:
    for path in FOREIGN:
        store.objects.put(path, b"mine")
        age(store.objects, path, WEEKS)
    assert find_orphans(store.objects, store.index).orphans == ()
    assert collect_orphans(store.objects, store.index, now=NOON).objects == 0
    assert _paths(store) == set(FOREIGN)


def test_a_job_that_uploads_for_hours_loses_nothing(store: BlockStore, age: Aging) -> None:
    """S3 dates an object by when its upload began, and the first part of a long job is old when the last is done."""
    fill(store, [1, 2])
    rows = content(store)
    one = attempt(store, [block_id(1), block_id(2)], now=NOON, parts=2)
    (first,) = one.upload(0)
    age(store.objects, first, WEEKS)
    assert find_orphans(store.objects, store.index).protected == 1
    assert collect_orphans(store.objects, store.index, now=NOON).objects == 0
    (second,) = one.upload(1)
    age(store.objects, second, WEEKS)
    assert collect_orphans(store.objects, store.index, now=NOON).objects == 0
    one.commit(now=NOON)
    assert find_orphans(store.objects, store.index).protected == 0, "they are blocks now"
    assert content(store) == rows


def test_what_a_dead_attempt_left_is_collected_while_its_successor_works(store: BlockStore, age: Aging) -> None:
    fill(store, [1, 2])
    rows = content(store)
    dead = attempt(store, [block_id(1), block_id(2)], now=NOON, job="job")
    left = dead.upload()
    alive = attempt(store, [block_id(1), block_id(2)], now=NOON, job="job")
    own = alive.upload()
    for path in (*left, *own):
        age(store.objects, path, WEEKS)
    assert [orphan.path for orphan in find_orphans(store.objects, store.index).orphans] == left
    assert collect_orphans(store.objects, store.index, now=NOON).objects == 1
    alive.commit(now=NOON)
    assert content(store) == rows
    assert set(left).isdisjoint(_paths(store))


def test_a_job_that_was_given_up_leaves_nothing(store: BlockStore, age: Aging) -> None:
    fill(store, [1, 2])
    one = attempt(store, [block_id(1), block_id(2)], now=NOON, parts=2)
    for path in one.upload():
        age(store.objects, path, WEEKS)
    retire(store.index, one.job, now=NOON)
    assert collect_orphans(store.objects, store.index, now=NOON).objects == 2
    one.upload()
    with pytest.raises(ReplaceRefusedError):
        one.commit(now=NOON)


def test_an_object_that_says_nothing_is_judged_by_its_age(store: BlockStore, age: Aging) -> None:
    path = upload(store, 1)
    store.objects.put(path, b"half of a block")
    assert find_orphans(store.objects, store.index).orphans == ()
    age(store.objects, path, WEEKS)
    assert collect_orphans(store.objects, store.index, now=NOON).objects == 1


def test_a_deletion_that_a_crash_interrupted_is_finished(store: BlockStore) -> None:
    path = upload(store, 1)
    condemn(store.index, [path], now=NOON)
    assert collect_orphans(store.objects, store.index, now=NOON).objects == 1
    assert _paths(store) == set()
    assert collect_orphans(store.objects, store.index, now=NOON).objects == 0


def test_what_was_there_before_the_index_waits_a_week(block_store: BlockStore, age: Aging) -> None:
    """An index that was made anew may be wrong about it."""
    path = upload(block_store, 1)
    age(block_store.objects, path, WEEKS)
    found = find_orphans(block_store.objects, block_store.index)
    assert (found.orphans, found.waiting) == ((), 1)
    age(block_store.objects, IDENTITY_PATH, 6 * DAY)
    assert collect_orphans(block_store.objects, block_store.index, now=NOON).objects == 0
    age(block_store.objects, IDENTITY_PATH, DAY + 60)
    assert collect_orphans(block_store.objects, block_store.index, now=NOON).objects == 1


def test_the_index_of_another_store_collects_nothing(store: BlockStore, age: Aging, tmp_path: Path) -> None:
    fill(store, [1])
    path = store.live().blocks[0].path
    age(store.objects, path, WEEKS)
    other = BlockStore.open(BlockStoreConnection(f"{tmp_path}/other", f"sqlite:///{tmp_path}/other.db"))
    new = IndexDatabase.open(f"sqlite:///{tmp_path}/new.db")
    for index in (other.index, new):
        with pytest.raises(IndexMismatchError):
            find_orphans(store.objects, index, older_than=0)
        with pytest.raises(IndexMismatchError):
            collect_orphans(store.objects, index, now=NOON, older_than=0)
        index.close()
    assert path in _paths(store)


def test_writes_to_a_folder_that_never_ended(tmp_path: Path) -> None:
    """No listing shows them."""
    store = BlockStore.open(BlockStoreConnection(f"{tmp_path}/objects", f"sqlite:///{tmp_path}/index.db"))
    path = fill(store, [1]) and store.live().blocks[0].path
    files = [tmp_path / "objects" / name for name in (f"{path}#1", f"{path}#27", "acme/0/other#1", f"{path}#young")]
    for file in files:
        file.write_bytes(b"half")
        os.utime(file, (1, 1))
    young = tmp_path / "objects" / f"{path}#3"
    young.write_bytes(b"half")
    assert sorted(orphan.path for orphan in find_orphans(store.objects, store.index).orphans) == [
        f"{path}#1",
        f"{path}#27",
    ]
    done = collect_orphans(store.objects, store.index, now=NOON)
    assert (done.objects, done.bytes) == (2, 8)
    assert [file.exists() for file in (*files, young)] == [False, False, True, True, True]
    assert len(content(store)) == 100
    store.close()


def test_a_limit_ends_a_search(store: BlockStore, age: Aging) -> None:
    for number in range(5):
        age(store.objects, upload(store, number), WEEKS)
    found = find_orphans(store.objects, store.index, limit=3)
    assert (len(found.orphans), found.more) == (3, True)
    assert collect_orphans(store.objects, store.index, now=NOON, limit=3).more
    assert collect_orphans(store.objects, store.index, now=NOON).objects == 2
    with pytest.raises(ValueError, match="negative"):
        find_orphans(store.objects, store.index, older_than=-1)
