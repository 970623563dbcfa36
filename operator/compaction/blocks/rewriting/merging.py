"""One merge of blocks: from the sources of a job to ranges of keys, each merged as a task, and the proof of the
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from compaction.api.text.printing import cut, plural, printable
from compaction.blocks.errors import BlockStoreError, BlockVerificationError, SortKeyError
from compaction.blocks.fingerprint.proof import verify
from compaction.blocks.format.footer import BlockFooter, registered_time_column
from compaction.blocks.format.metadata import BlockMetadata, ancestry, decode
from compaction.blocks.merge.footers import MergeInput, MergeSettings, read_footer
from compaction.blocks.merge.kernel import WHOLE, KeyRange, key_ranges
from compaction.blocks.model import Block, RowFingerprint, block_path, parse_block_path
from compaction.blocks.planning.offers import output_id
from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.rewriting.task import (
    MergedPart,
    MergeFailure,
    MergeTask,
    TaskResult,
    failure_of,
    opener,
    run_merge,
)
from compaction.storage.errors import StorageError
from compaction.storage.objects.store import ObjectInfo
from compaction.storage.pace import SharedBucket
from compaction.worker.ports import Engine, HeldLease
from compaction.worker.tasks import ObjectsPlace, Shares, run_tasks

# Runs one merge of blocks: cuts it into ranges of keys, has each merged as a task, and proves that nothing is
# missing.
#
# The driver reads footers only; the rows go through the tasks. What comes out is uploaded but in no index: who
# commits replaces the sources by it in one transaction, and only if this says that all of it is proved.
#
# Invariants:
#
# * The parts read exactly the rows of the sources: the fingerprints of what they read add up to the registered ones.
# * Any failure of a part is a failure of the merge; uploaded outputs are named, so that they can be deleted.


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMerge:
    """A merge of blocks. `outputs`: paths, in the order of the keys, at least one; as many ranges are cut at most, so
    some may stay unused. `said`: the statements of outputs about themselves, but for those that distinguish them.
    `objects`: the object of each source that was read, by path. `budget`: the bucket that reads and writes ask.
    """

    name: str
    store: ObjectsPlace
    sources: tuple[Block, ...]
    outputs: tuple[str, ...]
    settings: MergeSettings
    said: BlockMetadata = field(default_factory=BlockMetadata)
    objects: Mapping[str, ObjectInfo] = field(default_factory=dict)
    budget: SharedBucket | None = None


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """The parts in the order of the keys, and why any is missing; nothing may be committed with a failure."""

    parts: tuple[MergedPart, ...]
    failures: tuple[MergeFailure, ...]

    @property
    def succeeded(self) -> bool:
        """Return whether the outputs may take the place of the sources."""
        return not self.failures


def merge_blocks(
    work: BlockMerge,
    engine: Engine,
    lease: HeldLease,
    *,
    tag: str,
    done: Callable[[float], None] = lambda _: None,
) -> MergeOutcome:
    """Run the tasks, a few at a time, while the lease is held; stops at the first failure. `done` gets how much
    what is done of the whole has grown, 0 to 1 in all, from any thread.

    Raises LeaseLostError when the lease is lost: then no task runs any more.
    """
    try:
        tasks = _tasks(work)
    except (BlockStoreError, StorageError) as error:
        return MergeOutcome((), (failure_of(error, work.name),))
    results = _run(tasks, engine, lease, tag, done)
    parts = tuple(result for result in results if isinstance(result, MergedPart))
    failures = tuple(result for result in results if isinstance(result, MergeFailure))
    if not failures:
        try:
            _check_sources(work, parts)
        except BlockVerificationError as error:
            failures = (failure_of(error, work.name),)
    return MergeOutcome(parts, failures)


def _tasks(work: BlockMerge) -> list[MergeTask]:
    """One for each range of keys, cut from the statistics of the sources' row groups."""
    ranges = _ranges(work)
    outputs = work.outputs[: len(ranges)]
    ids = tuple(place.id for place in map(parse_block_path, outputs) if place)
    said = replace(work.said, parts=len(ranges), outputs=ids)
    task = MergeTask(work.store, work.sources, "", work.settings, said=said, objects=work.objects, budget=work.budget)
    return [
        replace(task, keys=keys, output=output, said=replace(said, id=ids[part] if ids else None, part=part))
        for part, (keys, output) in enumerate(zip(ranges, outputs, strict=True))
    ]


def _ranges(work: BlockMerge) -> tuple[KeyRange, ...]:
    if len(work.outputs) == 1:
        return (WHOLE,)
    objects = work.store.open()
    key = work.settings.sort_key
    footers = [
        read_footer(MergeInput(name=path, open=opener(objects, path, info=work.objects.get(path))), key)
        for path in (source.path for source in work.sources)
    ]
    return key_ranges(footers, key[0], parts=len(work.outputs))


def _run(
    tasks: Sequence[MergeTask], engine: Engine, lease: HeldLease, tag: str, done: Callable[[float], None]
) -> list[TaskResult]:
    results: dict[int, TaskResult] = {}
    with Shares(engine.address, [1 / len(tasks)] * len(tasks), done) as shares:
        # Each row of a task's part of the sources' is read, merged and proved, and told of each time.
        rows = [3 * sum(source.rows for source in task.sources) // task.said.parts for task in tasks]
        telling = [replace(task, tell=shares.teller(number, rows[number])) for number, task in enumerate(tasks)]
        with closing(run_tasks(run_merge, telling, engine=engine, lease=lease, tag=tag)) as running:
            for arrived in running:
                for number, result in arrived:
                    results[number] = result
                    shares.finish(number)
                if any(isinstance(result, MergeFailure) for _, result in arrived):
                    break
    return [results[number] for number in sorted(results)]


def _check_sources(work: BlockMerge, parts: Sequence[MergedPart]) -> None:
    """Check that the parts have read what was registered: no range is missing, and no source has changed since."""
    expected = sum((source.fingerprint for source in work.sources), RowFingerprint())
    verify(work.name, [part.result.read for part in parts], expected=expected)


# From the sources of a job to the merge that is to be run: sort order, number of outputs, names. Nothing is read.

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
    """Describe the order that was chosen and the reason, when a source loses its own by it; empty when none does."""
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
        # Only hints are read from it: a wrong one must not fail the merge of rows that are sound.
        return BlockMetadata()
