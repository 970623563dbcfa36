"""The process that cleans a block store dies at every call of the object store and of the index.

After each death nothing that is referenced is gone; and when the next process does the same again, objects and index
end as if nobody had died: nothing stays for ever.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.index.claims import claim, forget_jobs, high_water, retire
from compaction.blocks.index.queued import Fault as BlockFault
from compaction.blocks.index.queued import drop, quarantine, release
from compaction.blocks.index.registering import BlockReplacement, register
from compaction.blocks.index.registering import replace as block_index_replace
from compaction.blocks.index.tables import BlockState, IndexDatabase
from compaction.blocks.index.tombstones import (
    RetentionPeriods,
    condemn,
    confirm,
    confirm_gone,
    due,
    expire,
    failed,
    forget_blocks,
    forget_gone,
)
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.store import BlockStore
from compaction.blocks.sweep.cleaning import REMEMBERED, expire_all, housekeeping, sweep
from compaction.blocks.sweep.orphan_collector import collect_orphans
from compaction.storage.errors import ObjectMissingError
from support.blocks.block_histories import attempt, compact
from support.blocks.block_stores import (
    NOON,
    SECOND,
    SavedIndex,
    block_id,
    blocks_of,
    check,
    fill,
    output_of,
    tables,
    upload,
)
from support.faults.store_faults import (
    DAY,
    Aging,
    Death,
    DyingStore,
    Fault,
    Interrupted,
    When,
    deaths,
    interruptions,
    root_of,
)
from support.timing import one_of_each

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
    expire_all(store.index, RETENTION, clock=lambda: LATER)
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
        dying = DyingStore(number, when) if what == "objects" else Interrupted(store.index, at=number, when=when)
        with dying, pytest.raises(Death):
            _clean(store)
        _nothing_referenced_is_gone(store)
        _clean(store)
        assert _state(store) == expected, f"{what}, {when.value} call {number}"


# Death of the process and loss of the connection at every statement and commit of every change of the index.
#
# After a death the index is as before the call or as after it, never between; the call repeated by the next process
# ends as if nothing had happened. A lost connection, also between a commit and its answer, is not even noticed by the
# caller.

BLOCKS = blocks_of(*range(6))
IDS = tuple(block.id for block in BLOCKS)
SOURCES, REST = IDS[:3], IDS[3:]
BAD = {IDS[2]: BlockFault("Corrupt", "bad"), REST[0]: BlockFault("Missing", "404")}
RESULT = BlockReplacement("job", 5, SOURCES[:2], (output_of(100, BLOCKS[:2]),), "{}", skipped={SOURCES[2]: BAD[IDS[2]]})
AFTER = NOON + SECOND
FAR = NOON + 800 * 86_400 * SECOND


def _filled(index: IndexDatabase) -> None:
    register(index, BLOCKS, now=NOON)


def _claimed(index: IndexDatabase) -> None:
    _filled(index)
    claim(index, job="job", token=5, sources=SOURCES, now=NOON)


def _quarantined(index: IndexDatabase) -> None:
    _claimed(index)
    quarantine(index, BAD, now=NOON)


def _committed(index: IndexDatabase) -> None:
    _claimed(index)
    block_index_replace(index, RESULT, clock=lambda: NOON)


def _swept(index: IndexDatabase) -> None:
    _committed(index)
    confirm(index, [item.block for item in due(index, now=NOON, grace=0)], now=NOON)


def _condemned(index: IndexDatabase) -> None:
    _claimed(index)
    condemn(index, ["stray", "other"], now=NOON)


def _gone(index: IndexDatabase) -> None:
    _condemned(index)
    confirm_gone(index, ["stray", "other"], now=NOON)
    retire(index, "job", now=NOON)


@dataclass(frozen=True)
class Operation:
    """One change: what must be there before, and the call."""

    name: str
    prepare: Callable[[IndexDatabase], None]
    run: Callable[[IndexDatabase], Any]


OPERATIONS = (
    Operation("register", _filled, lambda i: register(i, blocks_of(4, 5, 6, 7), now=AFTER)),
    Operation("claim", _filled, lambda i: claim(i, job="job", token=5, sources=SOURCES, now=AFTER)),
    Operation("claim again", _claimed, lambda i: claim(i, job="job", token=7, sources=SOURCES[:2], now=AFTER)),
    Operation("retire", _claimed, lambda i: retire(i, "job", now=AFTER)),
    Operation("replace", _claimed, lambda i: block_index_replace(i, RESULT, clock=lambda: AFTER)),
    Operation("quarantine", _claimed, lambda i: quarantine(i, BAD, now=AFTER)),
    Operation("release", _quarantined, lambda i: release(i, REST[0], now=AFTER)),
    Operation("drop", _quarantined, lambda i: drop(i, REST[0], clock=lambda: AFTER)),
    Operation("expire", _quarantined, lambda i: expire(i, RetentionPeriods(default=SECOND), clock=lambda: FAR)),
    Operation("confirm", _committed, lambda i: confirm(i, SOURCES, now=AFTER)),
    Operation("failed", _committed, lambda i: failed(i, {SOURCES[0]: "503"}, now=AFTER)),
    Operation("forget blocks", _swept, lambda i: forget_blocks(i, before=AFTER)),
    Operation("forget jobs", _committed, lambda i: forget_jobs(i, before=AFTER)),
    Operation("condemn", _claimed, lambda i: condemn(i, [BLOCKS[0].path, "stray"], now=AFTER)),
    Operation("confirm gone", _condemned, lambda i: confirm_gone(i, ["stray"], now=AFTER)),
    Operation("forget gone", _gone, lambda i: forget_gone(i, before=AFTER)),
)
NEVER_TWICE = {"claim", "claim again"}
"""A claim that died after its commit is not repeated but followed by one with the next token."""
COUNTS_UP = {"failed"}
"""Said twice, it counts two failures: a pause that is too long by half a minute."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_interruption(operation: Operation, index: IndexDatabase) -> None:
    operation.prepare(index)
    saved, before = SavedIndex.of(index), tables(index)
    with Interrupted(index) as undisturbed:
        answer = operation.run(index)
    after = tables(index)
    check(index)
    assert after != before
    assert undisturbed.calls[-1] == "COMMIT"
    for number, when, name in interruptions(undisturbed.calls):
        where = f"{operation.name}: {when.value} call {number}, {name}"
        saved.restore(index)
        with Interrupted(index, at=number, when=when), pytest.raises(Death):
            operation.run(index)
        found = tables(index)
        committed = (number, when) == (len(undisturbed.calls) - 1, When.AFTER)
        assert found == (after if committed else before), where
        check(index)
        if operation.name in NEVER_TWICE:
            assert high_water(index, "job") == (high_of(after) if committed else high_of(before)), where
            claim(index, job="job", token=high_water(index, "job") + 1, sources=SOURCES[:2], now=AFTER)
        elif not (committed and operation.name in COUNTS_UP):
            operation.run(index)
            assert tables(index) == after, f"{where}, then repeated"
        check(index)

        saved.restore(index)
        with Interrupted(index, at=number, when=when, fault=Fault.LOST):
            again = operation.run(index)
        if committed and operation.name in COUNTS_UP:
            continue
        assert tables(index) == after, f"connection lost, {where}"
        if not committed:
            assert without_version(again) == without_version(answer), f"connection lost, {where}"
        check(index)


def high_of(content: dict[str, list[dict[str, Any]]]) -> int:
    highest: int = max([content["block_index"][0]["token_floor"], *(row["token"] for row in content["jobs"])])
    return highest


def without_version(answer: Any) -> Any:
    """An answer without the number of its change, which counts the attempts."""
    return (answer.receipt, answer.repeated) if hasattr(answer, "repeated") else answer
