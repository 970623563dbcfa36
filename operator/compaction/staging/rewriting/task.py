"""One part of a branch: its ranges are written, read back, and compared with what the branch shows there.

Runs in a Spark task. What goes wrong with data or storage is a part of the result: an exception would be tried again by
Spark, and would lose which object it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from compaction.errors import CompactionError
from compaction.staging.compaction.rewriting import shown_over
from compaction.staging.compaction.spool import decode_changes
from compaction.staging.errors import (
    CorruptRangeError,
    MissingRangeError,
    RewriteProofError,
    StagingStoreError,
    UnexpectedRangeError,
    WorkerShortageError,
)
from compaction.staging.format.breaks import BreakRule
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.ranges import RangeInfo
from compaction.staging.tree.applying import PartResult, read_back, write_part
from compaction.staging.tree.fingerprint import fingerprint
from compaction.staging.tree.storage import RangeStorage
from compaction.staging.tree.stretches import Part
from compaction.storage.errors import StorageError
from compaction.storage.pace import SharedBucket, limited
from compaction.unexpected import defect
from compaction.worker.place import ObjectsPlace
from compaction.worker.shares import Teller


@dataclass(frozen=True, slots=True)
class PartTask:
    """What a task is given. `base`: the metarange that lists the part's ranges, for messages. `budget`: what
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
    try:
        pace = limited(task.budget, task.tell)
        storage = RangeStorage(task.place.open(), rule=task.rule, pace=pace)
        result = write_part(storage, task.part, decode_changes(task.changes), keep_equal=False)
        shown = fingerprint(_shown(storage, task))
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


def _shown(storage: RangeStorage, task: PartTask) -> Iterator[RecordColumns]:
    """What a reader of the branch sees between the bounds of the part."""
    part = task.part
    ranges = (storage.range_records(info, part.start, part.stop, metarange=task.base) for info in part.ranges)
    return shown_over(decode_changes(task.changes), chain.from_iterable(ranges))
