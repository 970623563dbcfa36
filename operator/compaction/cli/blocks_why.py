"""Why one block is not merged, in a sentence, for `compactor blocks inspect`."""

from __future__ import annotations

from typing import Any, Final

from compaction.api.formatting import format_age, format_bytes, plural
from compaction.api.policy import CompactionPolicy
from compaction.cli.blocks_rules import rules_of
from compaction.cli.blocks_times import time_text
from compaction.cli.open_jobs import OpenJobs
from compaction.local.this_process import this_process
from compaction.planning.block_rules import BlockRules
from compaction.planning.block_waits import BlockWait, Waiting, waiting_of
from compaction.stores.blocks.index.listing import BlockRecord
from compaction.stores.blocks.index.tables import BlockState
from compaction.stores.blocks.model import SECOND
from compaction.stores.blocks.schema_book import SchemaBook
from compaction.stores.blocks.store import BlockStore
from compaction.stores.blocks.waiting import WaitingBlocks

IN_JOB: Final = "InJob"
QUARANTINED: Final = "Quarantined"


def why_not_merged(store: BlockStore, record: BlockRecord, policy: CompactionPolicy | None) -> dict[str, Any] | None:
    """`reason`, `message` and, for one that waits for its time, `due`; None for a block that is live no more. Without a
    policy the default rules count. Raises BlockIndexError, ObjectError.
    """
    if record.state is not BlockState.LIVE:
        return None
    if record.quarantined is not None:
        retry = f"`quarantine retry {record.block.id}` when the cause is gone"
        return _answer(QUARANTINED, f"it is set aside ({record.quarantined[0]}): {retry}")
    if record.job is not None:
        held = [one for one in OpenJobs(store, this_process()).all() if one.record.job == record.job]
        return _answer(IN_JOB, held[0].text if held else f"job {record.job} has it")
    rules = rules_of(policy)
    blocks = WaitingBlocks(store.index, rules, SchemaBook(store, keeps=False).look_up)
    blocks.refresh(())
    found = waiting_of(blocks.queue, record.block.id, now=store.now() / SECOND)
    # The levels of a policy bound what is read: what is above them is in no queue.
    waiting = found or Waiting(BlockWait.HIGHEST_LEVEL)
    message = _MESSAGES[waiting.reason](waiting, record, rules, store.now())
    return _answer(waiting.reason.value, message) | {
        "due": None if waiting.due is None else time_text(int(waiting.due * SECOND))
    }


def _answer(reason: str, message: str) -> dict[str, Any]:
    return {"reason": reason, "message": message, "due": None}


def _due(waiting: Waiting, _record: BlockRecord, _rules: BlockRules, _now: int) -> str:
    if waiting.obsolete:
        return "it has no rows: the next run drops it"
    return f"the next run merges it with {plural(waiting.others, 'other')} at level {waiting.level}"


def _more(waiting: Waiting, _record: BlockRecord, _rules: BlockRules, now: int) -> str:
    due = waiting.due or 0.0
    when = f"{time_text(int(due * SECOND))}, in {format_age(due - now / SECOND)}"
    if waiting.obsolete:
        return f"it has no rows, and is dropped at {when}"
    missing = waiting.most - waiting.others - 1
    with_others = f"with {plural(waiting.others, 'other')}" if waiting.others else "alone"
    then = "is merged" if waiting.others else "goes on to the next level"
    return f"it waits {with_others} at level {waiting.level} for {missing} more, or {then} at {when}"


def _alone(waiting: Waiting, record: BlockRecord, rules: BlockRules, _now: int) -> str:
    beside = f"of tenant {record.block.tenant}, shard {record.block.shard}"
    if not rules.span:
        return f"no other block {beside} with a schema that fits is at level {waiting.level}"
    start = rules.window_of(record.block.min_time) * rules.span
    window = f"{time_text(start)} to {time_text(start + rules.span)}"
    return f"no other block {beside} with a schema that fits begins in its window, {window}"


def _large(_waiting: Waiting, record: BlockRecord, _rules: BlockRules, _now: int) -> str:
    return f"its {format_bytes(record.block.bytes)} are enough: readers gain nothing from a larger one"


def _highest(_waiting: Waiting, record: BlockRecord, rules: BlockRules, _now: int) -> str:
    return f"it is of level {record.block.level} and has come through all {len(rules.levels)} that are merged"


_MESSAGES: Final = {
    BlockWait.DUE: _due,
    BlockWait.WAITING_FOR_MORE: _more,
    BlockWait.NOTHING_TO_MERGE_WITH: _alone,
    BlockWait.LARGE_ENOUGH: _large,
    BlockWait.HIGHEST_LEVEL: _highest,
}
