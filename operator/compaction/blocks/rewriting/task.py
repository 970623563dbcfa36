"""One Spark task on blocks: merges a range of keys, uploads the output, proves it, and names sources at fault."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from compaction.api.enums import JobReason
from compaction.blocks.errors import (
    BlockFormatError,
    BlockNotSortedError,
    BlockStoreError,
    BlockVerificationError,
    LogicalTypeLostError,
    MergeMemoryError,
    SchemaConflictError,
    SortKeyError,
    UnreadableBlockError,
)
from compaction.blocks.fingerprint.proof import read_back, verify
from compaction.blocks.format.footer import BlockFooter, read_footer
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.merge.footers import MergeInput, MergeResult, MergeSettings, OpenFile, nobody
from compaction.blocks.merge.kernel import WHOLE, KeyRange, merge
from compaction.blocks.model import Block
from compaction.blocks.reasons import BlockJobReason
from compaction.errors import CompactionError
from compaction.storage.errors import (
    DatabaseUnavailableError,
    LackOfResourcesError,
    ObjectChangedError,
    ObjectMissingError,
    ObjectStoreUnavailableError,
    ObjectTruncatedError,
    StorageError,
)
from compaction.storage.objects.store import ObjectInfo, ObjectStorage
from compaction.storage.pace import UNLIMITED, Pace, SharedBucket
from compaction.unexpected import defect, lack_of
from compaction.worker.tasks import ObjectsPlace, Teller

# A file that is uploaded no faster than a job may write.


class PacedFile(io.FileIO):
    """A file to read from, each read paid for before it is made."""

    def __init__(self, path: Path, pace: Pace) -> None:
        super().__init__(path)
        self._pace = pace
        self._size = path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._size - self.tell())
        length = left if size is None or size < 0 else min(size, left)
        self._pace(length, written=True)  # what is read here goes to the store
        return super().read(length) or b""


# Sources that cannot be merged: which block an error is about, and what is wrong with it.
#
# A source may have been fine when it was registered and be gone, cut off, damaged or another object now. The job that
# compacts it quarantines it under the reason given here and goes on with its siblings. What is about the store as a
# whole (access, no answer) is about no source.


class SourceFault(StrEnum):
    """The reason for which a source is quarantined, as it stands in the quarantine."""

    MISSING = "SourceMissing"
    CORRUPT = "SourceCorrupt"
    """Cut off, damaged, or no Parquet file."""
    FOREIGN = "SourceForeign"
    """A sound file, and not the one that was registered."""
    TOO_LARGE = "SourceTooLarge"
    """One of its row groups alone takes more memory than a merge may use: raise the limit and release it."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A source (`path`) that cannot be merged."""

    path: str
    fault: SourceFault
    message: str


def culprit_of(error: BlockStoreError | StorageError) -> Culprit | None:
    """The object that an error is about, if it is about one as it lies there."""
    match error:
        case ObjectMissingError():
            return Culprit(error.path, SourceFault.MISSING, str(error))
        case ObjectChangedError():
            return Culprit(error.path, SourceFault.FOREIGN, str(error))
        case ObjectTruncatedError() | BlockFormatError():
            return Culprit(error.path, SourceFault.CORRUPT, str(error))
        case UnreadableBlockError():
            return Culprit(error.block, SourceFault.CORRUPT, str(error))
        case MergeMemoryError():
            return Culprit(error.block, SourceFault.TOO_LARGE, str(error))
    return None


def read_source_footer(objects: ObjectStorage, block: Block) -> BlockFooter | Culprit:
    """The footer of a source, when the object is, by its size and footer, the one that was registered.

    Raises ObjectError for what is about the store as a whole.
    """
    try:
        footer = read_footer(objects, block.path, look=False)
    except (BlockStoreError, StorageError) as error:
        culprit = culprit_of(error)
        if culprit is None:
            raise
        return culprit
    except Exception as error:
        # Libraries raise what they like for a damaged file; what this machine lacks must not accuse the file.
        if lack := lack_of(error, block.path):
            raise lack from error
        return broken(block, error)
    if (footer.info.size, footer.rows) != (block.bytes, block.rows):
        found = f"{footer.info.size} bytes and {footer.rows} rows"
        return foreign(block, f"it has {found}, not {block.bytes} bytes and {block.rows} rows")
    return footer


def broken(block: Block, error: Exception) -> Culprit:
    """For a source on which reading fails for a reason that no code expects."""
    return Culprit(block.path, SourceFault.CORRUPT, f"{block.path}: cannot be read: {defect(error, block.path)}")


def foreign(block: Block, detail: str) -> Culprit:
    """For a sound file that is not the one that was registered."""
    return Culprit(block.path, SourceFault.FOREIGN, f"{block.path}: not the object that was registered: {detail}")


# The work inside a Spark task for blocks: merge one range of keys, upload the output, prove it, answer plain data.
#
# Nothing but values crosses the boundary between the task and the driver. An error of the data or of the store is a
# `MergeFailure`, never an exception: Spark would turn that into text, retry it, and abort the siblings. A defect of
# ours is a failure too (`InternalError`): whichever source causes it is found by reading each by itself (`examine`).
#
# An upload under the output's id is not visible to anybody: the index knows it only when the driver commits.


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
    """The reason for which there is no output; `culprit`: the source at fault, if it is one. `passing`: a server was
    away.
    """

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
    pace = Pace(shared=task.budget)
    try:
        return _merge(task, task.store.open(), pace)
    except BlockNotSortedError as error:
        return run_merge(replace(task, unsorted=task.unsorted | {error.block}))
    except (BlockStoreError, StorageError) as error:
        return failure_of(error, task.output)
    except MemoryError:
        # Before the last clause: it is no defect of ours, and a worker with more memory may succeed.
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
        if task.budget is None:
            pace(size, written=True)
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
