"""Objects that nobody refers to are deleted, and only those: not what is being uploaded, not what is foreign."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction.blocks.errors import BlockConflictError, IndexMismatchError, ReplaceRefusedError
from compaction.blocks.index.claims import retire
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.index.tombstones import condemn
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep.orphan_collector import CLOCK_PATH, SAFETY_AGE, collect_orphans, find_orphans
from support.faults.aged import DAY, Aging
from support.stores.block_histories import attempt, compact
from support.stores.block_index import NOON, block_id, check
from support.stores.block_stores import content, fill, upload

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
