"""Runs one merge of blocks: cuts it into ranges of keys, has each merged as a task, and proves that nothing is missing.

The driver reads footers only; the rows go through the tasks. What comes out is uploaded but in no index: who commits
replaces the sources by it in one transaction, and only if this says that all of it is proved.

Invariants:

* The parts read exactly the rows of the sources: the fingerprints of what they read add up to the registered ones.
* Any failure of a part is a failure of the merge; uploaded outputs are named, so that they can be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from compaction.blocks.errors import BlockStoreError, BlockVerificationError
from compaction.blocks.fingerprint.verify import verify
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.merge.footers import read_footer
from compaction.blocks.merge.ranges import WHOLE, KeyRange, key_ranges
from compaction.blocks.merge.settings import MergeInput, MergeSettings
from compaction.blocks.model import Block, RowFingerprint
from compaction.blocks.paths import parse_block_path
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
from compaction.worker.engine import Engine
from compaction.worker.place import ObjectsPlace
from compaction.worker.ports import HeldLease
from compaction.worker.shares import Shares
from compaction.worker.tasks import run_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMerge:
    """What to merge. `outputs`: paths, in the order of the keys, at least one; as many ranges are made at most, so some
    may stay unused. `said`: what outputs say of themselves, but for what distinguishes them. `objects`: what was read
    at, by path of the source. `budget`: what reads and writes ask.
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
        """Whether the outputs may take the place of the sources."""
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
        telling = [replace(task, tell=shares.teller(number, _moves(task))) for number, task in enumerate(tasks)]
        with closing(run_tasks(run_merge, telling, engine=engine, lease=lease, tag=tag)) as running:
            for arrived in running:
                for number, result in arrived:
                    results[number] = result
                    shares.finish(number)
                if any(isinstance(result, MergeFailure) for _, result in arrived):
                    break
    return [results[number] for number in sorted(results)]


def _moves(task: MergeTask) -> int:
    """How many rows a task tells, about: each of its part of the sources' is read, merged and proved."""
    return 3 * sum(source.rows for source in task.sources) // task.said.parts


def _check_sources(work: BlockMerge, parts: Sequence[MergedPart]) -> None:
    """What the parts have read is what was registered: no range is missing, and no source has changed since."""
    expected = sum((source.fingerprint for source in work.sources), RowFingerprint())
    verify(work.name, [part.result.read for part in parts], expected=expected)
