"""Runs one merge of blocks: cuts it into ranges of keys, has each merged as a task, and proves that nothing is missing.

The driver reads footers only; the rows go through the tasks. What comes out is uploaded but in no index: who commits
replaces the sources by it in one transaction, and only if this says that all of it is proved.

Invariants:

* The parts read exactly the rows of the sources: the fingerprints of what they read add up to the registered ones.
* Any failure of a part is a failure of the merge; uploaded outputs are named, so that they can be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from compaction.exceptions import BlockStoreError, BlockVerificationError
from compaction.rewrite.attempt import LOOK_SECONDS
from compaction.rewrite.block_task import MergedPart, MergeFailure, MergeTask, TaskResult, failure_of, opener, run_merge
from compaction.rewrite.engine import Engine
from compaction.rewrite.ports import HeldLease
from compaction.stores.blocks.merge.footers import read_footer
from compaction.stores.blocks.merge.ranges import key_ranges
from compaction.stores.blocks.merge.settings import MergeInput, MergeSettings
from compaction.stores.blocks.model import Block, Fingerprint
from compaction.stores.blocks.objects import open_objects
from compaction.stores.blocks.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMerge:
    """What to merge. `outputs`: paths, in the order of the keys, at least one; as many ranges are made at most, so some
    may stay unused. `options`: credentials of the store.
    """

    name: str
    store: str
    sources: tuple[Block, ...]
    outputs: tuple[str, ...]
    settings: MergeSettings
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """The parts in the order of the keys, and why any is missing; nothing may be committed with a failure."""

    parts: tuple[MergedPart, ...]
    failures: tuple[MergeFailure, ...]

    @property
    def succeeded(self) -> bool:
        """Whether the outputs may take the place of the sources."""
        return not self.failures


def merge_blocks(work: BlockMerge, engine: Engine, lease: HeldLease, *, tag: str) -> MergeOutcome:
    """Run the tasks, a few at a time, while the lease is held; stops at the first failure.

    Raises LeaseLostError when the lease is lost: then no task runs any more.
    """
    try:
        tasks = _tasks(work)
    except BlockStoreError as error:
        return MergeOutcome((), (failure_of(error, work.name),))
    results = _run(tasks, engine, lease, tag)
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
    task = MergeTask(work.store, work.sources, work.outputs[0], work.settings, options=work.options)
    if len(work.outputs) == 1:
        return [task]
    objects = open_objects(work.store, options=work.options)
    key = work.settings.sort_key
    footers = [
        read_footer(MergeInput(name=source.path, open=opener(objects, source.path)), key) for source in work.sources
    ]
    ranges = key_ranges(footers, key[0], parts=len(work.outputs))
    return [
        MergeTask(work.store, work.sources, output, work.settings, keys, options=work.options)
        for keys, output in zip(ranges, work.outputs, strict=False)
    ]


def _run(tasks: Sequence[MergeTask], engine: Engine, lease: HeldLease, tag: str) -> list[TaskResult]:
    waiting = list(enumerate(tasks))
    running: dict[Future[TaskResult], int] = {}
    done: dict[int, TaskResult] = {}
    try:
        while (waiting or running) and not any(isinstance(result, MergeFailure) for result in done.values()):
            lease.ensure_held()
            while waiting and len(running) < engine.parallelism:
                number, task = waiting.pop(0)
                running[engine.submit(run_merge, task, tag=tag)] = number
            ready, _ = wait(running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in ready:
                done[running.pop(future)] = future.result()
    finally:
        if running:
            engine.cancel(tag)
    return [done[number] for number in sorted(done)]


def _check_sources(work: BlockMerge, parts: Sequence[MergedPart]) -> None:
    """What the parts have read is what was registered: no range is missing, and no source has changed since."""
    expected = sum((source.fingerprint for source in work.sources), Fingerprint())
    verify(work.name, [part.result.read for part in parts], expected=expected)
