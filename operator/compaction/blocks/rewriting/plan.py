"""From the sources of a job to the merge that is to be run: sort order, number of outputs, names. Nothing is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from compaction.api.text.formatting import plural
from compaction.api.text.safe import cut, printable
from compaction.blocks.errors import SortKeyError
from compaction.blocks.format.footer import BlockFooter
from compaction.blocks.format.metadata import BlockMetadata, ancestry, decode
from compaction.blocks.format.times import registered_time_column
from compaction.blocks.merge.settings import MergeSettings
from compaction.blocks.model import Block
from compaction.blocks.paths import block_path
from compaction.blocks.planning.ids import output_id
from compaction.blocks.rewriting.job import BlockJob
from compaction.blocks.rewriting.merging import BlockMerge
from compaction.storage.pace import SharedBucket
from compaction.worker.place import ObjectsPlace

MOST_PARTS: Final = 64
_LONGEST_NAME: Final = 40


@dataclass(frozen=True, slots=True)
class Source:
    """A block and what its footer says."""

    block: Block
    footer: BlockFooter


def plan_merge(
    job: BlockJob,
    sources: Sequence[Source],
    *,
    place: ObjectsPlace,
    attempt: str,
    token: int,
    budget: SharedBucket | None = None,
) -> BlockMerge:
    """The merge of these sources of the job, at least one, by this attempt. Raises SortKeyError."""
    blocks = tuple(source.block for source in sources)
    ids = tuple(block.id for block in blocks)
    parts = min(MOST_PARTS, max(1, -(-sum(block.bytes for block in blocks) // job.part_bytes)))
    outputs = tuple(
        output_id(ids, tenant=job.tenant, shard=job.shard, level=job.level, part=part, attempt=attempt)
        for part in range(parts)
    )
    column = time_column(sources)
    key = sort_key(blocks, wanted=job.sort_key, deduplicate_by=job.deduplicate_by, time_column=column)
    return BlockMerge(
        name=job.name,
        store=place,
        sources=blocks,
        outputs=tuple(block_path(job.tenant, job.shard, output) for output in outputs),
        settings=MergeSettings(sort_key=key, memory_bytes=job.memory_bytes, deduplicate=bool(job.deduplicate_by)),
        said=BlockMetadata(
            tenant=job.tenant,
            shard=job.shard,
            level=job.level,
            time_column=column,
            job=job.name,
            token=token,
            sources=ids,
            ancestors=ancestry(_said(source.footer.metadata) for source in sources),
        ),
        objects={source.block.path: source.footer.info for source in sources},
        budget=budget,
    )


def sort_key(
    blocks: Sequence[Block],
    *,
    wanted: Sequence[str] = (),
    deduplicate_by: Sequence[str] = (),
    time_column: str | None = None,
) -> tuple[str, ...]:
    """By what the output is sorted: as the policy wants; else as most of the bytes are already, so that the least must
    be sorted first; by time when no source is sorted. To deduplicate, the output is sorted by what makes rows the same,
    in an order that suits that if there is one.

    Raises SortKeyError when no source is sorted and none says which column is the time.
    """
    weights: dict[tuple[str, ...], int] = {}
    for block in blocks:
        if block.sort_key:
            weights[block.sort_key] = weights.get(block.sort_key, 0) + block.bytes
    most = tuple(wanted) or max(weights, key=lambda key: (weights[key], len(key), key), default=())
    if deduplicate_by:
        start = most[: len(deduplicate_by)]
        return start if set(start) == set(deduplicate_by) else tuple(deduplicate_by)
    if not most and time_column is None:
        raise SortKeyError("no source is sorted, and none says which column is its time: nothing tells the order")
    return most or (str(time_column),)


def order_in_words(blocks: Sequence[Block], key: tuple[str, ...], *, job: BlockJob) -> str:
    """Which order was chosen and why, when a source loses its own by it; empty when none does."""
    lost = {block.sort_key for block in blocks if block.sort_key and block.sort_key[: len(key)] != key}
    if not lost:
        return ""
    if job.deduplicate_by:
        why = "as deduplicate needs it"
    elif job.sort_key:
        why = "as sortKey says"
    else:
        why = "as most of its bytes were"
    count = sum(block.sort_key in lost for block in blocks)
    named = ", ".join(printable(cut(name, _LONGEST_NAME)) for name in key)
    return f"sorted by {named}, {why} ({plural(count, 'block')} had another order)"


def time_column(sources: Sequence[Source]) -> str | None:
    """The column with the times of the sources' rows; empty ones say the least."""
    ordered = sorted(sources, key=lambda source: source.block.rows == 0)
    found = (
        registered_time_column(source.block, source.footer, _said(source.footer.metadata).time_column or "")
        for source in ordered
    )
    return next((column for column in found if column is not None), None)


def _said(metadata: Mapping[str, str]) -> BlockMetadata:
    try:
        return decode(metadata)
    except ValueError:
        return BlockMetadata()
