"""The new tree of a branch, written by tasks: touched ranges in parts, all others by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Final

from compaction.errors import CompactionError
from compaction.staging.compaction import (
    BranchWork,
    ChangesSpool,
    base_view,
    decode_changes,
    shown_over,
    staged_changes,
)
from compaction.staging.errors import (
    CorruptRangeError,
    MissingRangeError,
    RewriteProofError,
    StagingStoreError,
    UnexpectedRangeError,
    WorkerShortageError,
)
from compaction.staging.flows.area import Area
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.ranges import BreakRule, RangeInfo, TableKind
from compaction.staging.tree.aligning import fingerprint
from compaction.staging.tree.applying import (
    PART_BYTES,
    ChangeCounts,
    Part,
    PartResult,
    plan_parts,
    read_back,
    write_part,
)
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.errors import StorageError
from compaction.storage.pace import Pace, SharedBucket
from compaction.unexpected import defect
from compaction.worker.ports import Engine, HeldLease, JobProgress
from compaction.worker.tasks import ObjectsPlace, Shares, Teller, run_tasks

# One part of a branch: its ranges are written, read back, and compared with what the branch shows there.
#
# Runs in a Spark task. What goes wrong with data or storage is a part of the result: an exception would be tried
# again by Spark, and would lose which object it is about.


@dataclass(frozen=True, slots=True)
class PartTask:
    """The input of a task. `base`: the metarange that lists the part's ranges, for messages. `budget`: the bucket that
    reads and writes ask; `tell` gets the bytes of each.
    """

    place: ObjectsPlace
    rule: BreakRule
    base: str
    branch: str
    part: Part
    changes: bytes
    budget: SharedBucket | None = None
    tell: Teller | None = None


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part that was written and proved, or the error that ended it. `shown`, `content`: what the branch shows, and
    what was read back, as `<records>:<digest>`.
    """

    result: PartResult | None
    shown: str = ""
    content: str = ""
    error: CompactionError | None = None


def write_proved(task: PartTask) -> WrittenPart:
    """Write a part, and prove that its ranges hold what the changes show over the base."""
    part = task.part
    try:
        pace = Pace(shared=task.budget, moved=task.tell)
        storage = RangeStorage(task.place.open(), rule=task.rule, pace=pace)
        result = write_part(storage, part, decode_changes(task.changes), keep_equal=False)
        over = (storage.range_records(info, part.start, part.stop, metarange=task.base) for info in part.ranges)
        shown = fingerprint(shown_over(decode_changes(task.changes), chain.from_iterable(over)))
        found = _read_back(storage, result.ranges)
    except (StagingStoreError, StorageError) as error:
        return WrittenPart(None, error=error)
    except (OSError, MemoryError) as error:  # of the temporary files; those of objects are errors of ours by now
        return WrittenPart(None, error=WorkerShortageError(task.branch, error))
    except CompactionError:
        raise
    except Exception as error:  # noqa: BLE001 - a defect of ours is this part's failure, and no loss of the engine
        return WrittenPart(None, error=UnexpectedRangeError(f"branch {task.branch}: {defect(error, task.branch)}"))
    if not shown == found == result.content:
        return WrittenPart(None, error=RewriteProofError(task.branch, shown, found))
    return WrittenPart(result, shown, found)


def _read_back(storage: RangeStorage, ranges: Iterable[RangeInfo]) -> str:
    """The fingerprint of what was written, or in words what is wrong with it: no source is to blame for that."""
    try:
        return read_back(storage, ranges)
    except (CorruptRangeError, MissingRangeError) as error:
        return str(error)


# The new tree of a branch, written by tasks: stretches of touched ranges in parts, all others by their ids.

PLANNING_SHARE: Final = 10
"""Percent of a job's progress that reading the changes is."""


@dataclass(frozen=True, slots=True)
class WrittenTree:
    """A tree whose metarange was written, and what was done for it. Bytes are estimates. `changes`: of all tokens,
    `tombstones` among them. `touched`: ranges of the base that were read for it.
    """

    tree: str
    counts: ChangeCounts
    changes: int
    tombstones: int
    written: tuple[RangeInfo, ...]
    touched: int
    reused: int
    shown: tuple[str, ...]
    contents: tuple[str, ...]
    staged_bytes: int
    bytes_read: int

    @property
    def objects(self) -> tuple[str, ...]:
        """The ids of all that was written."""
        return (*(info.id for info in self.written), self.tree)

    @property
    def bytes_written(self) -> int:
        return sum(info.estimated_size for info in self.written)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeWriter:
    """Writes one tree. `part_bytes`: wanted size of a part. `budget`: what reads and writes ask."""

    area: Area
    place: ObjectsPlace
    engine: Engine
    lease: HeldLease
    tag: str
    part_bytes: int = PART_BYTES
    budget: SharedBucket | None = None

    def write(self, work: BranchWork) -> WrittenTree:
        """The tree that the tokens of the work make of its base.

        Tokens are read once, in order, into a file of the driver; parts of it go to tasks, a few at a time.

        Raises StagingStoreError, StorageError, LeaseLostError, JobStoppedError, EngineLostError, TaskFailedError.
        """
        try:
            return self._write(work)
        except (OSError, MemoryError) as error:  # of the file of changes; those of objects are errors of ours by now
            raise WorkerShortageError(f"{work.repository}/{work.branch}", error) from error

    def _write(self, work: BranchWork) -> WrittenTree:
        base = base_view(self.area, work).metarange_id
        with ChangesSpool() as spool:
            changes = self._held(spool.through(staged_changes(self.area, work)))
            planned = list(
                plan_parts(self.area.ranges.ranges(base), changes, self.area.ranges.rule, part_bytes=self.part_bytes)
            )
            parts = [item for item in planned if isinstance(item, Part)]
            self.lease.set_progress(PLANNING_SHARE)
            done = self._run(work, base, spool, parts)
            return self._assembled(work, planned, done, spool)

    def _held(self, batches: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
        pace = Pace(shared=self.budget)
        for batch in batches:
            self.lease.ensure_held()
            pace(batch.nbytes)
            yield batch

    def _run(self, work: BranchWork, base: str, spool: ChangesSpool, parts: list[Part]) -> list[WrittenPart]:
        """Each part's result, in order. Raises the error of the first that failed."""
        branch = f"{work.repository}/{work.branch}"
        total = sum(part.nbytes for part in parts)
        progress = JobProgress(total * 100 // (100 - PLANNING_SHARE), self.lease.set_progress)
        progress.add(total * PLANNING_SHARE / (100 - PLANNING_SHARE))
        done: dict[int, WrittenPart] = {}
        with Shares(self.engine.address, [part.nbytes for part in parts], progress.add) as shares:
            # A part is read, written and read back.
            tasks = (
                PartTask(
                    self.place,
                    self.area.ranges.rule,
                    base,
                    branch,
                    part,
                    changes,
                    self.budget,
                    shares.teller(number, 3 * part.nbytes),
                )
                for number, (part, changes) in enumerate(spool.parts(parts))
            )
            running = run_tasks(write_proved, tasks, engine=self.engine, lease=self.lease, tag=self.tag)
            with closing(running):
                for arrived in running:
                    for number, result in arrived:
                        if result.error is not None:
                            raise result.error
                        done[number] = result
                        shares.finish(number)
        return [done[number] for number in range(len(parts))]

    def _assembled(
        self, work: BranchWork, planned: list[RangeInfo | Part], done: list[WrittenPart], spool: ChangesSpool
    ) -> WrittenTree:
        every: list[RangeInfo] = []
        written: list[RangeInfo] = []
        counts = ChangeCounts()
        # `planned` has ranges that are reused between its parts; the parts are in the order of `done`.
        results = iter(done)
        for item in planned:
            if isinstance(item, RangeInfo):
                every.append(item)
                continue
            result = next(results).result
            assert result is not None, "parts with errors end the job"
            every += result.ranges
            written += result.ranges
            counts += result.counts
        tree = self.area.ranges.write_metarange(every)
        found = self._read_back(tree, every)
        if found != tree:
            raise RewriteProofError(f"{work.repository}/{work.branch}", tree, found)
        read = spool.nbytes + sum(item.nbytes for item in planned if isinstance(item, Part))
        return WrittenTree(
            tree=tree,
            counts=counts,
            changes=spool.changes,
            tombstones=spool.tombstones,
            written=tuple(written),
            touched=len({info.id for item in planned if isinstance(item, Part) for info in item.ranges}),
            reused=len(every) - len(written),
            shown=tuple(item.shown for item in done),
            contents=tuple(item.content for item in done),
            staged_bytes=spool.nbytes,
            bytes_read=read,
        )

    def _read_back(self, tree: str, every: list[RangeInfo]) -> str:
        """The id of the metarange as it lies there now, or in words what is wrong with it: no source is to blame."""
        try:
            self.area.ranges.forget(tree)
            found = self.area.ranges.content_id(tree, TableKind.METARANGES)
            same = tuple(self.area.ranges.ranges(tree)) == tuple(every)
        except (CorruptRangeError, MissingRangeError) as error:
            return str(error)
        return found if same else f"another list of ranges ({found})"
