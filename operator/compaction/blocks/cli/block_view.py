"""`compactor blocks inspect ID`: all that is known about one block."""

from __future__ import annotations

from typing import Any, Final

import click

from compaction.api.text.printing import cut, format_age, format_bytes, plural
from compaction.blocks.cli.open_jobs import OpenJobs
from compaction.blocks.cli.options import StorePlace, time_text
from compaction.blocks.cli.shapes import record_object
from compaction.blocks.errors import BlockFormatError, UnknownBlockError
from compaction.blocks.format.footer import BlockFooter, read_footer
from compaction.blocks.index.live_blocks import BlockRecord
from compaction.blocks.index.tables import BlockState
from compaction.blocks.model import SECOND
from compaction.blocks.planning.batches import BlockRules
from compaction.blocks.planning.queue import BlockWait, WaitingBlock, waiting_of
from compaction.blocks.schema.book import SchemaBook
from compaction.blocks.store import BlockStore
from compaction.blocks.waiting import WaitingBlocks
from compaction.cli.lazy import EXIT_DATA_ERROR, report
from compaction.cli.output import OutputFormat, emit, print_pairs
from compaction.local.processes.process import this_process
from compaction.storage.errors import ObjectError
from compaction.storage.objects.store import ObjectStorage

_SHOWN_COLUMNS = 40
_SHOWN_TEXT = 120


def show_block(
    context: click.Context, place: StorePlace, block: str, *, rules: BlockRules, output: OutputFormat
) -> None:
    """Print what the index knows about a block, why `rules` do not merge it now, and what its object says; end the
    command with exit code 1 when that is missing or damaged.
    """
    with place.open() as store:
        record = store.inspect(block)
        if record is None:
            raise UnknownBlockError(block, "unknown: it was never registered, or is forgotten since its deletion")
        found, problem = _object(store.objects, record)
        why = why_not_merged(store, record, rules)
    data = record_object(record) | {"notMerged": why, "object": found}
    if output is OutputFormat.TABLE:
        _print(data)
    else:
        emit(data, output)
    if problem is not None:
        report(problem)
        context.exit(EXIT_DATA_ERROR)


def _object(
    objects: ObjectStorage, record: BlockRecord
) -> tuple[dict[str, Any] | None, BlockFormatError | ObjectError | None]:
    """Return the footer at the block's path, or the error of reading it. No error is returned for a tombstoned block:
    its object may be gone.
    """
    try:
        return _footer(read_footer(objects, record.block.path)), None
    except (BlockFormatError, ObjectError) as error:
        return None, error if record.state is BlockState.LIVE else None


def _footer(footer: BlockFooter) -> dict[str, Any]:
    return {
        "bytes": footer.info.size,
        "modified": time_text(int(footer.info.modified.timestamp() * SECOND)),
        "etag": footer.info.etag,
        "rows": footer.rows,
        "rowGroups": len(footer.row_groups),
        "schema": footer.schema_id,
        "columns": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in footer.schema
        ],
        "metadata": dict(sorted(footer.metadata.items())),
    }


def _print(data: dict[str, Any]) -> None:
    found, quarantine, why = data.pop("object"), data.pop("quarantine"), data.pop("notMerged")
    data["sortKey"] = ", ".join(data["sortKey"]) or None
    pairs = [(name, "-" if value is None else str(value)) for name, value in data.items()]
    if quarantine is not None:
        pairs.append(("quarantine", f"{quarantine['reason']}: {quarantine['message']}"))
    if why is not None:
        pairs.append(("notMerged", f"{why['reason']}: {why['message']}"))
    if found is None:
        print_pairs([*pairs, ("object", "not readable")])
        return
    pairs += [("object", f"{format_bytes(found['bytes'])}, {plural(found['rowGroups'], 'row group')}")]
    shown = [f"{item['name']} {item['type']}" for item in found["columns"][:_SHOWN_COLUMNS]]
    more = len(found["columns"]) - len(shown)
    pairs.append(("columns", ", ".join(shown) + (f" and {more} more" if more else "")))
    pairs += [(name, cut(value, _SHOWN_TEXT)) for name, value in found["metadata"].items()]
    print_pairs(pairs)


IN_JOB: Final = "InJob"
QUARANTINED: Final = "Quarantined"


def why_not_merged(store: BlockStore, record: BlockRecord, rules: BlockRules) -> dict[str, Any] | None:
    """`reason`, `message` and, for one that waits for its time, `due`; None for a block that is live no more. Raises
    DatabaseError, ObjectError.
    """
    if record.state is not BlockState.LIVE:
        return None
    if record.quarantined is not None:
        release = f"`quarantine {record.block.id} --release` when the cause is gone"
        return _answer(QUARANTINED, f"it is quarantined ({record.quarantined[0]}): {release}")
    if record.job is not None:
        held = [item for item in OpenJobs(store, this_process()).all() if item.record.job == record.job]
        return _answer(IN_JOB, held[0].text if held else f"job {record.job} has it")
    blocks = WaitingBlocks(store.index, rules, SchemaBook(store, keeps=False).look_up)
    blocks.refresh(())
    found = waiting_of(blocks.queue, record.block.id, now=store.now() / SECOND)
    # The levels of a policy bound what is read: what is above them is in no queue.
    waiting = found or WaitingBlock(BlockWait.HIGHEST_LEVEL)
    message = _MESSAGES[waiting.reason](waiting, record, rules, store.now())
    return _answer(waiting.reason.value, message) | {
        "due": None if waiting.due is None else time_text(int(waiting.due * SECOND))
    }


def _answer(reason: str, message: str) -> dict[str, Any]:
    return {"reason": reason, "message": message, "due": None}


def _due(waiting: WaitingBlock, _record: BlockRecord, _rules: BlockRules, _now: int) -> str:
    if waiting.obsolete:
        return "it has no rows: the next run drops it"
    return f"the next run merges it with {plural(waiting.others, 'other')} at level {waiting.level}"


def _more(waiting: WaitingBlock, _record: BlockRecord, _rules: BlockRules, now: int) -> str:
    due = waiting.due or 0.0
    when = f"{time_text(int(due * SECOND))}, in {format_age(due - now / SECOND)}"
    if waiting.obsolete:
        return f"it has no rows, and is dropped at {when}"
    missing = waiting.most - waiting.others - 1
    with_others = f"with {plural(waiting.others, 'other')}" if waiting.others else "alone"
    then = "is merged" if waiting.others else "goes on to the next level"
    return f"it waits {with_others} at level {waiting.level} for {missing} more, or {then} at {when}"


def _alone(waiting: WaitingBlock, record: BlockRecord, rules: BlockRules, _now: int) -> str:
    beside = f"of tenant {record.block.tenant}, shard {record.block.shard}"
    if not rules.span:
        return f"no other block {beside} with a schema that fits is at level {waiting.level}"
    start = rules.window_of(record.block.min_time) * rules.span
    window = f"{time_text(start)} to {time_text(start + rules.span)}"
    return f"no other block {beside} with a schema that fits begins in its window, {window}"


def _large(_waiting: WaitingBlock, record: BlockRecord, _rules: BlockRules, _now: int) -> str:
    return f"its {format_bytes(record.block.bytes)} are enough: readers gain nothing from a larger one"


def _highest(_waiting: WaitingBlock, record: BlockRecord, rules: BlockRules, _now: int) -> str:
    return f"it is of level {record.block.level} and has come through all {len(rules.levels)} that are merged"


_MESSAGES: Final = {
    BlockWait.DUE: _due,
    BlockWait.WAITING_FOR_MORE: _more,
    BlockWait.NOTHING_TO_MERGE_WITH: _alone,
    BlockWait.LARGE_ENOUGH: _large,
    BlockWait.HIGHEST_LEVEL: _highest,
}
