"""Which sources are at fault when a merge has failed: each is read to its end by itself, as a task.

A merge says which source it stumbled over, if it knows: of a sound file with other rows than were registered, only the
sum is wrong in the end. And it stops at the first. Reading each once tells all of them, so a merge is not repeated for
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from compaction.blocks.errors import BlockStoreError
from compaction.blocks.fingerprint.verify import read_back
from compaction.blocks.model import Block
from compaction.blocks.rewriting.culprits import Culprit, broken, foreign, read_source_footer
from compaction.blocks.rewriting.task import MergeFailure, failure_of, of_culprit, opener
from compaction.errors import CompactionError
from compaction.storage.errors import StorageError
from compaction.storage.pace import SharedBucket, limited
from compaction.unexpected import lack_of
from compaction.worker.engine import Engine
from compaction.worker.place import ObjectsPlace
from compaction.worker.ports import HeldLease
from compaction.worker.tasks import run_tasks


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
    pace = limited(task.budget)
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
    """What is wrong with each source that is not sound, in their order. Raises LeaseLostError."""
    tasks = [ExamineTask(store, source, budget) for source in sources]
    found: dict[int, MergeFailure] = {}
    with closing(run_tasks(run_examination, tasks, engine=engine, lease=lease, tag=tag)) as running:
        for arrived in running:
            found.update((number, one) for number, one in arrived if isinstance(one, MergeFailure))
    return tuple(found[number] for number in sorted(found))
