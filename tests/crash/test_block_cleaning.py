"""The process that cleans a block store dies at every call of the object store and of the index.

After each death nothing that is referenced is gone; and when the next process does the same again, objects and index
end as if nobody had died: nothing stays for ever.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.index.tables import BlockState
from compaction.blocks.index.tombstones import RetentionPeriods
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.store import BlockStore
from compaction.blocks.sweep.cleaning import REMEMBERED, expire_all, housekeeping, sweep
from compaction.blocks.sweep.orphan_collector import collect_orphans
from compaction.storage.errors import ObjectMissingError
from support.depth import one_of_each
from support.faults.aged import DAY, Aging, DyingStore, deaths, root_of
from support.faults.index_faults import Death, Interrupted, interruptions
from support.stores.block_histories import attempt, compact
from support.stores.block_index import NOON, SECOND, SavedIndex, block_id, check, tables
from support.stores.block_stores import fill, upload

RETENTION = RetentionPeriods(tenants={"brief": DAY * SECOND})
LATER = NOON + 2 * DAY * SECOND
MUCH_LATER = LATER + REMEMBERED + 1


def _history(store: BlockStore, age: Aging) -> None:
    """Two generations that were replaced, one that expires, one that lives, an attempt under way, three orphans."""
    fill(store, [1, 2, 3, 4, 5])
    fill(store, [6], tenant="brief")
    (one,) = compact(store, [block_id(1), block_id(2)], now=NOON)
    compact(store, [one], now=NOON)
    dead = attempt(store, [block_id(3), block_id(4)], now=NOON, job="job", parts=2)
    dead.upload(1)
    attempt(store, [block_id(3), block_id(4)], now=NOON, job="job").upload()
    upload(store, 7)
    upload(store, 8)
    for info in list(store.objects.list()):
        age(store.objects, info.path, 2 * DAY)


def _clean(store: BlockStore) -> None:
    expire_all(store.index, RETENTION, now=LATER)
    sweep(store.objects, store.index, now=LATER, grace=0)
    collect_orphans(store.objects, store.index, now=LATER)
    housekeeping(store.index, now=MUCH_LATER)


def _state(store: BlockStore) -> tuple[set[str], dict[str, Any]]:
    return {info.path for info in store.objects.list()}, tables(store.index)


def _nothing_referenced_is_gone(store: BlockStore) -> None:
    check(store.index)
    for row in tables(store.index)["blocks"]:
        if row["state"] == BlockState.LIVE:
            try:
                store.objects.head(row["path"])
            except ObjectMissingError:
                raise AssertionError(f"{row['path']} is live, and deleted") from None
    (mine,) = (job for job in store.open_jobs() if job.job == "job")
    assert mine.token == 2


@pytest.mark.parametrize("what", ["objects", "index"])
def test_death_at_every_call(
    what: str, block_store: BlockStore, age: Aging, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = replace(block_store, clock=lambda: NOON / SECOND)
    age(store.objects, IDENTITY_PATH, 30 * DAY)
    _history(store, age)
    index_before, folder, copy = SavedIndex.of(store.index), root_of(request, store.objects), tmp_path / "copy"
    shutil.copytree(folder, copy)

    def again() -> None:
        """The history once more, without living through it: with the times of the objects."""
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        index_before.restore(store.index)

    with DyingStore() as objects, Interrupted(store.index) as index:
        _clean(store)
    expected = _state(store)
    live = {block.path for block in store.live().blocks}
    assert len(live) == 4
    left = {path for path in expected[0] if path.endswith(".parquet")} - live
    assert len(left) == 1, "that of the open claim"
    assert len(objects.calls) > 15
    assert len(index.calls) > 90
    each = one_of_each(interruptions(index.calls), lambda place: place[1:])
    places = deaths(objects.calls) if what == "objects" else [(number, when) for number, when, _ in each]
    for number, when in places:
        again()
        dying: Callable[[], Any] = (
            (lambda n=number, w=when: DyingStore(n, w))
            if what == "objects"
            else (lambda n=number, w=when: Interrupted(store.index, at=n, when=w))
        )
        with dying(), pytest.raises(Death):
            _clean(store)
        _nothing_referenced_is_gone(store)
        _clean(store)
        assert _state(store) == expected, f"{what}, {when.value} call {number}"
