"""Death of the process and loss of the connection at every statement and commit of every change of the index.

After a death the index is as before the call or as after it, never between; the call repeated by the next process ends
as if nothing had happened. A lost connection, also between a commit and its answer, is not even noticed by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from compaction.blocks.index.claims import claim, forget_jobs, high_water, retire
from compaction.blocks.index.queued import Fault as BlockFault
from compaction.blocks.index.queued import drop, quarantine, release
from compaction.blocks.index.registering import BlockReplacement, register, replace
from compaction.blocks.index.tables import IndexDatabase
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
from support.faults.index_faults import Death, Fault, Interrupted, When, interruptions
from support.stores.block_index import NOON, SECOND, SavedIndex, blocks_of, check, output_of, tables

BLOCKS = blocks_of(*range(6))
IDS = tuple(block.id for block in BLOCKS)
SOURCES, REST = IDS[:3], IDS[3:]
BAD = {IDS[2]: BlockFault("Corrupt", "bad"), REST[0]: BlockFault("Missing", "404")}
RESULT = BlockReplacement("job", 5, SOURCES[:2], (output_of(100, BLOCKS[:2]),), "{}", skipped={SOURCES[2]: BAD[IDS[2]]})
LATER = NOON + SECOND
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
    replace(index, RESULT, now=NOON)


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
    Operation("register", _filled, lambda i: register(i, blocks_of(4, 5, 6, 7), now=LATER)),
    Operation("claim", _filled, lambda i: claim(i, job="job", token=5, sources=SOURCES, now=LATER)),
    Operation("claim again", _claimed, lambda i: claim(i, job="job", token=7, sources=SOURCES[:2], now=LATER)),
    Operation("retire", _claimed, lambda i: retire(i, "job", now=LATER)),
    Operation("replace", _claimed, lambda i: replace(i, RESULT, now=LATER)),
    Operation("quarantine", _claimed, lambda i: quarantine(i, BAD, now=LATER)),
    Operation("release", _quarantined, lambda i: release(i, REST[0], now=LATER)),
    Operation("drop", _quarantined, lambda i: drop(i, REST[0], now=LATER)),
    Operation("expire", _quarantined, lambda i: expire(i, RetentionPeriods(default=SECOND), now=FAR)),
    Operation("confirm", _committed, lambda i: confirm(i, SOURCES, now=LATER)),
    Operation("failed", _committed, lambda i: failed(i, {SOURCES[0]: "503"}, now=LATER)),
    Operation("forget blocks", _swept, lambda i: forget_blocks(i, before=LATER)),
    Operation("forget jobs", _committed, lambda i: forget_jobs(i, before=LATER)),
    Operation("condemn", _claimed, lambda i: condemn(i, [BLOCKS[0].path, "stray"], now=LATER)),
    Operation("confirm gone", _condemned, lambda i: confirm_gone(i, ["stray"], now=LATER)),
    Operation("forget gone", _gone, lambda i: forget_gone(i, before=LATER)),
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
            claim(index, job="job", token=high_water(index, "job") + 1, sources=SOURCES[:2], now=LATER)
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
    return max([content["block_index"][0]["token_floor"], *(row["token"] for row in content["jobs"])])


def without_version(answer: Any) -> Any:
    """An answer without the number of its change, which counts the attempts."""
    return (answer.receipt, answer.repeated) if hasattr(answer, "repeated") else answer
