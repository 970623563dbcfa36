"""What runs inside a Spark task for blocks: merge one range of keys, upload the output, prove it, answer plain data.

Nothing but values crosses the boundary between the task and the driver. An error of the data or of the store is a
`MergeFailure`, never an exception: Spark would turn that into text, retry it, and abort the siblings. A defect of ours
is a failure too (`InternalError`): whichever source causes it is found by reading each by itself (`examine`).

An upload under the output's id is not visible to anybody: the index knows it only when the driver commits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from compaction.api.enums import JobReason
from compaction.blocks.errors import (
    BlockNotSortedError,
    BlockStoreError,
    BlockVerificationError,
    LogicalTypeLostError,
    SchemaConflictError,
    SortKeyError,
    UnreadableBlockError,
)
from compaction.blocks.fingerprint.verify import read_back, verify
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.merge.kernel import merge
from compaction.blocks.merge.ranges import WHOLE, KeyRange
from compaction.blocks.merge.settings import MergeInput, MergeResult, MergeSettings, OpenFile, nobody
from compaction.blocks.model import Block
from compaction.blocks.reasons import BlockJobReason
from compaction.blocks.rewriting.culprits import Culprit, SourceFault, culprit_of
from compaction.blocks.rewriting.pace import PacedFile
from compaction.errors import CompactionError
from compaction.storage.errors import (
    DatabaseUnavailableError,
    LackOfResourcesError,
    ObjectStoreUnavailableError,
    StorageError,
)
from compaction.storage.objects.store import ObjectInfo, ObjectStorage
from compaction.storage.pace import UNLIMITED, Pace, SharedBucket, limited
from compaction.unexpected import defect
from compaction.worker.place import ObjectsPlace
from compaction.worker.shares import Teller


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One output: the rows of the sources, in their order (a later one wins a duplicate), within a range of keys.

    `objects`: the objects that were read, by path; another version of a source is not merged. `output`: path of the
    object to write. `said`: what it says of itself, but for the fingerprint. `unsorted`: sources that turned out not to
    be sorted as they say. `budget`: what reads and writes ask. `tell` gets each row as it is
    read, merged and proved.
    """

    store: ObjectsPlace
    sources: tuple[Block, ...]
    output: str
    settings: MergeSettings
    keys: KeyRange = WHOLE
    unsorted: frozenset[str] = frozenset()
    said: BlockMetadata = field(default_factory=BlockMetadata)
    objects: Mapping[str, ObjectInfo] = field(default_factory=dict)
    budget: SharedBucket | None = None
    tell: Teller | None = None


@dataclass(frozen=True, slots=True)
class MergedPart:
    """An output that was uploaded and proved; `bytes` 0: there was not a single row, and nothing was uploaded.

    `seconds`: wall time, `verify_seconds` of it for the proof.
    """

    output: str
    bytes: int
    result: MergeResult
    seconds: float
    verify_seconds: float


@dataclass(frozen=True, slots=True)
class MergeFailure:
    """Why there is no output; `culprit`: the source at fault, if it is one. `passing`: a server was away."""

    output: str
    reason: str
    message: str
    culprit: Culprit | None = None
    passing: bool = False

    @property
    def source(self) -> str | None:
        """Path of the source at fault."""
        return self.culprit.path if self.culprit else None


TaskResult = MergedPart | MergeFailure

_REASONS: Final = {
    SchemaConflictError: BlockJobReason.SOURCES_DIFFER,
    SortKeyError: JobReason.INVALID_JOB,
    BlockVerificationError: JobReason.VERIFICATION_FAILED,
    LogicalTypeLostError: JobReason.VERIFICATION_FAILED,
}
_PASSING: Final = (DatabaseUnavailableError, ObjectStoreUnavailableError)


def run_merge(task: MergeTask) -> TaskResult:
    """Merge, upload, prove. A source that is not sorted as it says is sorted first, in a second attempt."""
    pace = limited(task.budget)
    try:
        return _merge(task, task.store.open(), pace)
    except BlockNotSortedError as error:
        return run_merge(replace(task, unsorted=task.unsorted | {error.block}))
    except (BlockStoreError, StorageError) as error:
        return failure_of(error, task.output)
    except MemoryError:
        message = f"{task.output}: out of memory: give the worker more, or the job less at once"
        return MergeFailure(task.output, JobReason.STORE_UNREADABLE, message)
    except OSError as error:
        # Of the scratch directory; those of objects and of what is read are errors of ours by now.
        why = error.strerror or type(error).__name__
        return MergeFailure(task.output, JobReason.STORE_UNREADABLE, f"{task.output}: scratch space: {why}")
    except CompactionError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        return MergeFailure(task.output, JobReason.INTERNAL_ERROR, f"{task.output}: {defect(error, task.output)}")


def failure_of(error: BlockStoreError | StorageError, output: str) -> MergeFailure:
    """The failure for an error that data and storage can cause; anything else is of the store as a whole."""
    culprit = culprit_of(error)
    if culprit is not None and culprit.path == output:
        if isinstance(error, UnreadableBlockError):
            return MergeFailure(output, JobReason.VERIFICATION_FAILED, str(error))
    elif culprit is not None:
        return of_culprit(culprit, output)
    reason = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), JobReason.STORE_UNREADABLE)
    # A job that takes more than its worker has is not tried for ever.
    passing = isinstance(error, _PASSING) and not isinstance(error, LackOfResourcesError)
    return MergeFailure(output, reason, str(error), passing=passing)


def of_culprit(culprit: Culprit, output: str = "") -> MergeFailure:
    """The failure that a source is at fault for."""
    large = culprit.fault is SourceFault.TOO_LARGE
    return MergeFailure(
        output, BlockJobReason.MEMORY_TOO_SMALL if large else JobReason.SOURCE_CORRUPT, culprit.message, culprit
    )


def _merge(task: MergeTask, objects: ObjectStorage, pace: Pace) -> MergedPart:
    began = time.monotonic()
    moved = task.tell or nobody
    with TemporaryDirectory(prefix="block-", dir=task.settings.scratch) as scratch:
        path = Path(scratch) / "output.parquet"
        settings = replace(task.settings, scratch=Path(scratch))
        inputs = [_input(task, source, objects, pace) for source in task.sources]
        result = merge(inputs, str(path), settings, describe=lambda merged: _said(task, merged), moved=moved)
        if result.written.rows == 0 and task.said.parts == 1:
            return MergedPart(task.output, 0, result, time.monotonic() - began, 0.0)
        size = path.stat().st_size
        if pace is UNLIMITED:
            objects.put(task.output, path)
        else:
            with PacedFile(path, pace) as data:
                objects.put(task.output, data)
    merged = time.monotonic()
    found = read_back(task.output, opener(objects, task.output, pace), moved=moved)
    verify(task.output, [found], expected=result.written)
    now = time.monotonic()
    return MergedPart(task.output, size, result, now - began, now - merged)


def _said(task: MergeTask, merged: MergeResult) -> dict[str, str]:
    said = replace(task.said, fingerprint=merged.written, sort_key=task.settings.sort_key)
    return {key.decode(): value.decode() for key, value in said.encode().items()}


def _input(task: MergeTask, source: Block, objects: ObjectStorage, pace: Pace) -> MergeInput:
    return MergeInput(
        name=source.path,
        open=opener(objects, source.path, pace, task.objects.get(source.path)),
        sort_key=() if source.path in task.unsorted else source.sort_key,
        fingerprint=source.fingerprint,
        first=task.keys.first,
        last=task.keys.last,
    )


def opener(objects: ObjectStorage, path: str, pace: Pace = UNLIMITED, info: ObjectInfo | None = None) -> OpenFile:
    """Gives an object as a file; `info`: the version that it must be, and one request less."""
    return lambda: objects.reader(path, info=info, before=pace)
