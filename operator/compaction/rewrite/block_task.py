"""What runs inside a Spark task for blocks: merge one range of keys, upload the output, prove it, answer plain data.

Nothing but values crosses the boundary between the task and the driver. An error of the data or of the store is a
`MergeFailure`, never an exception: Spark would turn that into text, retry it, and abort the siblings. Only a defect of
ours leaves this module as an exception.

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
from compaction.exceptions import (
    BlockNotSortedError,
    BlockStoreError,
    BlockVerificationError,
    SchemaConflictError,
    SortKeyError,
    UnreadableBlockError,
)
from compaction.stores.blocks.merge.kernel import merge
from compaction.stores.blocks.merge.ranges import WHOLE, KeyRange
from compaction.stores.blocks.merge.settings import MergeInput, MergeResult, MergeSettings, OpenFile
from compaction.stores.blocks.model import Block
from compaction.stores.blocks.objects import Objects, open_objects
from compaction.stores.blocks.verify import read_back, verify


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One output: the rows of the sources, in their order (a later one wins a duplicate), within a range of keys.

    `store`: URL of the objects; `options`: its credentials, which never show. `output`: path of the object to write.
    `unsorted`: sources that turned out not to be sorted as they say.
    """

    store: str
    sources: tuple[Block, ...]
    output: str
    settings: MergeSettings
    keys: KeyRange = WHOLE
    unsorted: frozenset[str] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class MergedPart:
    """An output that was uploaded and proved. `seconds`: wall time, `verify_seconds` of it for the proof."""

    output: str
    bytes: int
    result: MergeResult
    seconds: float
    verify_seconds: float


@dataclass(frozen=True, slots=True)
class MergeFailure:
    """Why there is no output; `source`: path of the one at fault, if it is one."""

    output: str
    reason: JobReason
    message: str
    source: str | None = None


TaskResult = MergedPart | MergeFailure

_REASONS: Final = {
    UnreadableBlockError: JobReason.SOURCE_CORRUPT,
    SchemaConflictError: JobReason.INVALID_JOB,
    SortKeyError: JobReason.INVALID_JOB,
    BlockVerificationError: JobReason.VERIFICATION_FAILED,
}


def run_merge(task: MergeTask) -> TaskResult:
    """Merge, upload, prove. A source that is not sorted as it says is sorted first, in a second attempt."""
    try:
        return _merge(task, open_objects(task.store, options=task.options))
    except BlockNotSortedError as error:
        return run_merge(replace(task, unsorted=task.unsorted | {error.block}))
    except BlockStoreError as error:
        return failure_of(error, task.output)


def failure_of(error: BlockStoreError, output: str) -> MergeFailure:
    """The failure for an error that data and storage can cause; anything else is of the store as a whole."""
    reason = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), JobReason.STORE_UNREADABLE)
    return MergeFailure(output, reason, str(error), error.block if isinstance(error, UnreadableBlockError) else None)


def _merge(task: MergeTask, objects: Objects) -> MergedPart:
    began = time.monotonic()
    with TemporaryDirectory(prefix="block-", dir=task.settings.scratch) as scratch:
        path = Path(scratch) / "output.parquet"
        settings = replace(task.settings, scratch=Path(scratch))
        result = merge([_input(task, source, objects) for source in task.sources], str(path), settings)
        size = path.stat().st_size
        objects.put(task.output, path)
    merged = time.monotonic()
    found = read_back(task.output, opener(objects, task.output))
    verify(task.output, [found], expected=result.written)
    now = time.monotonic()
    return MergedPart(task.output, size, result, now - began, now - merged)


def _input(task: MergeTask, source: Block, objects: Objects) -> MergeInput:
    return MergeInput(
        name=source.path,
        open=opener(objects, source.path),
        sort_key=() if source.path in task.unsorted else source.sort_key,
        fingerprint=source.fingerprint,
        first=task.keys.first,
        last=task.keys.last,
    )


def opener(objects: Objects, path: str) -> OpenFile:
    """Gives an object as a file."""
    return lambda: objects.reader(path)
