"""Merges the sources of one job, again without those at fault, until something can be committed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from compaction.api.enums import JobReason
from compaction.blocks.errors import BlockStoreError
from compaction.blocks.fingerprint.proof import read_back
from compaction.blocks.model import Block
from compaction.blocks.rewriting.merging import BlockMerge, Source, merge_blocks, plan_merge
from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.rewriting.task import (
    Culprit,
    MergedPart,
    MergeFailure,
    SourceFault,
    broken,
    failure_of,
    foreign,
    of_culprit,
    opener,
    read_source_footer,
)
from compaction.errors import CompactionError
from compaction.storage.errors import StorageError
from compaction.storage.objects.store import ObjectStorage
from compaction.storage.pace import Pace, SharedBucket
from compaction.unexpected import lack_of
from compaction.worker.ports import Engine, HeldLease, JobProgress
from compaction.worker.tasks import ObjectsPlace, run_tasks

# The search for the sources at fault when a merge has failed: each is read to its end by itself, as a task.
#
# A merge says which source it stumbled over, if it knows: of a sound file with other rows than were registered, only
# the sum is wrong in the end. And it stops at the first. Reading each once tells all of them, so a merge is not
# repeated for each.


@dataclass(frozen=True, slots=True)
class ExamineTask:
    """One source to read. `budget`: what reads ask."""

    store: ObjectsPlace
    source: Block
    budget: SharedBucket | None = None


@dataclass(frozen=True, slots=True)
class Sound:
    """The source is what was registered."""


Examined = Sound | MergeFailure


def run_examination(task: ExamineTask) -> Examined:
    """Read a source to its end. A failure without a culprit is of the store as a whole."""
    pace = Pace(shared=task.budget)
    source = task.source
    try:
        objects = task.store.open()
        # Before the library sees it: some contradictions in a footer end the process.
        footer = read_source_footer(objects, source)
        if isinstance(footer, Culprit):
            return of_culprit(footer)
        found = read_back(source.path, opener(objects, source.path, pace))
    except (BlockStoreError, StorageError) as error:
        return failure_of(error, "")
    except CompactionError:
        raise
    except Exception as error:  # noqa: BLE001 - one source must not keep its siblings from being merged
        lack = lack_of(error, source.path)
        return of_culprit(broken(source, error)) if lack is None else failure_of(lack, "")
    if found != source.fingerprint:
        return of_culprit(foreign(source, f"its rows are {found}, not {source.fingerprint} (rows:content)"))
    return Sound()


def examine(
    sources: Sequence[Block],
    engine: Engine,
    lease: HeldLease,
    *,
    store: ObjectsPlace,
    tag: str,
    budget: SharedBucket | None = None,
) -> tuple[MergeFailure, ...]:
    """Return the failure of each source that is not sound, in their order. Raises LeaseLostError."""
    tasks = [ExamineTask(store, source, budget) for source in sources]
    found: dict[int, MergeFailure] = {}
    with closing(run_tasks(run_examination, tasks, engine=engine, lease=lease, tag=tag)) as running:
        for arrived in running:
            found.update((number, item) for number, item in arrived if isinstance(item, MergeFailure))
    return tuple(found[number] for number in sorted(found))


# Merges the sources of one job, again without those that cannot be merged, until something can be committed.
#
# First all footers are read: what is missing, cut off or another object is known before anything is merged. When a
# merge fails all the same, every source is read by itself (`block_examine`), so that all culprits are known after one
# failure. A source that a merge names although it reads well by itself gets a second chance, and is believed to be at
# fault when it is named again.
#
# Invariant: `uploads` are all paths that may have been written, whatever happens.

log = structlog.get_logger(__name__)

MOST_MERGES: Final = 8
FOOTERS_AT_ONCE: Final = 8
_STEPS: Final = 1000
"""Parts of the progress of a merge."""


@dataclass(frozen=True, slots=True)
class MergedSources:
    """A merge that succeeded: `parts` may take the place of `work.sources`."""

    work: BlockMerge
    parts: tuple[MergedPart, ...]


@dataclass(slots=True, kw_only=True)
class RewriteRounds:
    """`attempt` names the outputs, and the tasks in the engine. `culprits` by id of the block; `failures`: why there is
    no result.
    """

    job: BlockJob
    attempt: str
    token: int
    place: ObjectsPlace
    objects: ObjectStorage
    engine: Engine
    lease: HeldLease
    budget: SharedBucket | None = None
    culprits: dict[str, Culprit] = field(default_factory=dict)
    uploads: set[str] = field(default_factory=set)
    failures: tuple[MergeFailure, ...] = ()
    _suspects: set[str] = field(default_factory=set)

    def run(self, blocks: Sequence[Block]) -> MergedSources | None:
        """The merge of those that can be merged; None: `failures` say why there is none.

        Raises BlockStoreError for what is about the store as a whole, LeaseLostError and the like.
        """
        sources = self._look(blocks)
        for number in range(MOST_MERGES):
            if not sources:
                self.failures = tuple(of_culprit(culprit) for culprit in self.culprits.values())
                return None
            work = self._plan(sources)
            tag = f"{self.attempt}/{number}"
            progress = JobProgress(_STEPS, self.lease.set_progress)
            outcome = merge_blocks(
                work,
                self.engine,
                self.lease,
                tag=tag,
                done=lambda share, to=progress: to.add(_STEPS * share),  # type: ignore[misc]
            )
            if outcome.succeeded:
                return MergedSources(work, outcome.parts)
            self.failures = outcome.failures
            if not self._may_go_on(sources, work, tag):
                return None
            # Anew, also at those that are kept: an object that was put back meanwhile is another version.
            sources = self._look([source.block for source in sources if source.block.id not in self.culprits])
        return None

    def _look(self, blocks: Sequence[Block]) -> list[Source]:
        """The sources whose objects exist and, by their footers, are what was registered."""
        self.lease.ensure_held()
        with ThreadPoolExecutor(max(1, min(FOOTERS_AT_ONCE, len(blocks)))) as pool:
            found = list(pool.map(lambda block: read_source_footer(self.objects, block), blocks))
        sources = []
        for block, footer in zip(blocks, found, strict=True):
            if isinstance(footer, Culprit):
                self._accuse(block, footer)
            else:
                sources.append(Source(block, footer))
        return sources

    def _plan(self, sources: Sequence[Source]) -> BlockMerge:
        work = plan_merge(
            self.job,
            sources,
            place=self.place,
            attempt=self.attempt,
            token=self.token,
            budget=self.budget,
        )
        self.uploads.update(work.outputs)
        return work

    def _may_go_on(self, sources: Sequence[Source], work: BlockMerge, tag: str) -> bool:
        """Return whether another merge may succeed: culprits were found, or a source gets its second chance."""
        named = {failure.culprit.path: failure.culprit for failure in self.failures if failure.culprit}
        reasons = {failure.reason for failure in self.failures}
        unproved = JobReason.VERIFICATION_FAILED in reasons
        if not named and not unproved and JobReason.INTERNAL_ERROR not in reasons:
            return False
        found = examine(
            [source.block for source in sources],
            self.engine,
            self.lease,
            store=self.place,
            tag=f"{tag}/look",
            budget=self.budget,
        )
        # Before any source is accused: a failure of the store says nothing about sources.
        if of_the_store := tuple(failure for failure in found if failure.culprit is None):
            self.failures = of_the_store
            return False
        guilty = {path: item for path, item in named.items() if path in self._suspects or item.fault in _CERTAIN}
        guilty |= {failure.culprit.path: failure.culprit for failure in found if failure.culprit}
        for source in sources:
            if source.block.path in guilty:
                self._accuse(source.block, guilty[source.block.path])
        self._suspects |= named.keys()
        if unproved and not guilty and not named:
            self._keep_evidence(work)
        return bool(guilty or named)

    def _accuse(self, block: Block, culprit: Culprit) -> None:
        log.warning("source cannot be merged", block=block.id, fault=culprit.fault.value, error=culprit.message)
        self.culprits[block.id] = culprit

    def _keep_evidence(self, work: BlockMerge) -> None:
        """An output that does not read back correctly is kept for inspection."""
        self.uploads.difference_update(work.outputs)
        kept = f"what was written stays until orphans are collected: {', '.join(work.outputs)}"
        self.failures = tuple(replace(failure, message=f"{failure.message}; {kept}") for failure in self.failures)


_CERTAIN: Final = frozenset({SourceFault.TOO_LARGE})
"""Faults that reading a source by itself does not show."""
