"""The code that runs inside a Spark task: rewrite one group, answer with plain data.

Nothing but values crosses the boundary between the task and the driver. An error of the data or of the store is a
`GroupFailure`, never an exception: Spark would turn that into text, retry it, and abort the siblings. Only a defect of
ours leaves this module as an exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compaction.api.enums import JobReason
from compaction.errors import CompactionError, StaleTokenError
from compaction.segments.commit import fence
from compaction.segments.commit.records import RewrittenGroup
from compaction.segments.directory.fs import storage_error
from compaction.segments.errors import (
    ClumpRefusedError,
    CorruptEntryError,
    CorruptIndexesError,
    CorruptSegmentError,
    GroupEmptyError,
    GroupTooLargeError,
    InvalidGroupError,
    LiveSetUnknownError,
    LockHeldError,
    LogChangedError,
    MissingLiveIndexError,
    MissingSegmentHeaderError,
    OwnerRunningError,
    SegmentLogError,
    SourcesChangedError,
    VerificationFailedError,
)
from compaction.segments.planning.plan import GroupRanges
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reasons import SegmentReason
from compaction.segments.rewriting.kernel import rewrite_group
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.storage.errors import RewriteStoppedError
from compaction.storage.pace import Pace, SharedBucket
from compaction.unexpected import defect
from compaction.worker.tasks import Teller

FENCE_LOOK_SECONDS = 1.0
"""How often a running task looks whether its attempt has been replaced."""


@dataclass(frozen=True, slots=True)
class GroupTask:
    """One group to rewrite. `ranges` say what is read from each source (group_check.GroupCheck), so that a task need
    not open the whole log; `live` is cut to them, so that it carries no more than it needs. `budget`: what its reads
    and writes ask; `tell` gets the bytes of each.
    """

    directory: str
    job: str
    token: int
    sources: tuple[str, ...]
    ranges: GroupRanges
    live: LiveSet
    limits: SegmentLimits
    budget: SharedBucket | None = None
    tell: Teller | None = None


@dataclass(frozen=True, slots=True)
class GroupFailure:
    """The reason why a group was not rewritten, and the place of the damage, if any (base name, index, byte offset)."""

    sources: tuple[str, ...]
    reason: str
    message: str
    segment: str | None = None
    index: int | None = None
    offset: int | None = None


GroupResult = RewrittenGroup | GroupFailure


def run_group(task: GroupTask) -> GroupResult:
    """Rewrite and verify one group; the partial file stays for the driver to commit."""
    directory = Path(task.directory)
    try:
        return rewrite_group(
            directory,
            sources=task.sources,
            ranges=task.ranges,
            live=task.live,
            limits=task.limits,
            job=task.job,
            token=task.token,
            pace=pace_of(directory, job=task.job, token=task.token, budget=task.budget, tell=task.tell),
        )
    except CompactionError as error:
        return failure_of(error, task.sources)
    except OSError as error:
        return failure_of(storage_error(error, directory), task.sources)
    except MemoryError:  # of this machine, not of the group
        return GroupFailure(task.sources, JobReason.STORE_UNREADABLE, f"{directory}: {task.sources[0]}: out of memory")
    except Exception as error:  # noqa: BLE001 - of one group: the others are rewritten all the same
        message = f"{directory}: {task.sources[0]}: {defect(error, task.directory)}"
        return GroupFailure(task.sources, JobReason.INTERNAL_ERROR, message)


def failure_of(error: CompactionError, sources: tuple[str, ...]) -> GroupFailure:
    """The failure of some sources for one of the errors that data and storage can cause; any other is raised again."""
    message = str(error)
    match error:
        case CorruptEntryError():
            place = Path(error.file).name, error.index, error.offset
            return GroupFailure(sources, JobReason.SOURCE_CORRUPT, message, *place)
        case MissingLiveIndexError():
            return GroupFailure(sources, JobReason.SOURCE_CORRUPT, message, Path(error.file).name, error.index)
        case MissingSegmentHeaderError() if Path(error.file).name > max(sources, default=""):
            # Not a source, and possibly only just created by the log's owner: the next plan looks at it again.
            return GroupFailure(sources, JobReason.SOURCES_CHANGED, message)
        case CorruptSegmentError():
            return GroupFailure(sources, JobReason.SOURCE_CORRUPT, message, Path(error.file).name)
        case SourcesChangedError() | LogChangedError() | GroupTooLargeError() | GroupEmptyError():
            return GroupFailure(sources, JobReason.SOURCES_CHANGED, message)
        case InvalidGroupError():
            return GroupFailure(sources, JobReason.INVALID_JOB, message)
        case ClumpRefusedError():
            return GroupFailure(sources, SegmentReason.LOG_NOT_APPENDABLE, message)
        case VerificationFailedError():
            return GroupFailure(sources, JobReason.VERIFICATION_FAILED, message)
        case RewriteStoppedError() | StaleTokenError():
            return GroupFailure(sources, JobReason.STALE_TOKEN, message)
        case OwnerRunningError():
            return GroupFailure(sources, SegmentReason.OWNER_RUNNING, message)
        case LockHeldError():
            return GroupFailure(sources, SegmentReason.STORE_LOCKED, message)
        case LiveSetUnknownError() | CorruptIndexesError():
            return GroupFailure(sources, SegmentReason.LIVE_SET_UNKNOWN, message)
        case SegmentLogError():
            # Not writable, no space, no such directory, an unreadable fence: all of it is about the log as a whole.
            return GroupFailure(sources, JobReason.STORE_UNREADABLE, message)
    raise error


def pace_of(
    directory: Path, *, job: str, token: int, budget: SharedBucket | None, tell: Callable[[int], None] | None = None
) -> Pace:
    """The pace of one task: at most its share, and to its end once the attempt has been replaced."""
    return Pace(
        should_stop=until_replaced(directory, job=job, token=token),
        shared=budget,
        moved=tell,
        what=f"{directory}: the rewrite",
    )


def until_replaced(directory: Path, *, job: str, token: int) -> Callable[[], bool]:
    """True once the store has accepted another token for the job: a cheap way for a zombie's task to end by itself.

    Only an early exit. What keeps a zombie from committing is the check under the fence's lock.
    """
    next_look = time.monotonic() + FENCE_LOOK_SECONDS

    def look() -> bool:
        nonlocal next_look
        if time.monotonic() < next_look:
            return False
        next_look = time.monotonic() + FENCE_LOOK_SECONDS
        return fence.read(directory).claimed(job) != token

    return look
