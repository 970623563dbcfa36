"""Copies live entries into new segments for the head of the log, under attempt-unique names: nothing is visible yet.

Every payload's CRC is checked while it is read, and each output is verified by reading it back. The copies have new
indexes, one behind the other, and the term that the log ends with; length, payload and stored CRC stay. Like a
compacted segment, an output is version 2 and exactly full, so no owner ever appends to it. Memory: what is read at once
(4 MiB, or the largest payload) and its copy, beside what a reading of the log holds. Whatever goes wrong, all partial
files are removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compaction.segments.clump.moves import index_digest
from compaction.segments.clump.plan import ClumpPlan, ClumpRound, LogHead, log_head
from compaction.segments.directory import fs
from compaction.segments.directory.faults import storage_errors
from compaction.segments.directory.listing import highest_segment
from compaction.segments.errors import MissingLiveIndexError, SourcesChangedError
from compaction.segments.format.names import partial_name, stem
from compaction.segments.model import FileIdentity, RowArray, SegmentIndex, U64Array, segment_name
from compaction.segments.reading.buffers import Buffers
from compaction.segments.reading.reader import picked_batches
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.rewriting.outputs import Copied, full_head, partial_file, read_back
from compaction.segments.snapshot.seq import LiveSet
from compaction.storage.pace import UNLIMITED, Pace, SharedBucket


@dataclass(frozen=True, slots=True)
class ClumpTask:
    """What to copy: plain data. `head`: where the log ended when this was planned, with the newest segment's file.

    `budget`: what its reads and writes ask where others share a limit with it; `moved` gets the bytes of each.
    """

    directory: str
    job: str
    token: int
    snapshot_index: int
    snapshot_term: int
    head: LogHead
    head_identity: FileIdentity
    rounds: tuple[ClumpRound, ...]
    budget: SharedBucket | None = None
    moved: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class CopiedClump:
    """One output, written, synced and read back. It may only follow the very file `follows`, the log's newest one."""

    partial: str
    identity: FileIdentity
    output: str
    follows: str
    follows_identity: FileIdentity
    old: LiveSet
    first: int
    term: int
    snapshot_index: int
    snapshot_term: int
    payload_bytes: int
    fingerprint: str
    index_digest: str
    seconds: float

    @property
    def last(self) -> int:
        return self.first + len(self.old) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    segment: SegmentIndex
    rows: RowArray


def task_of(log: LogState, plan: ClumpPlan, *, job: str, token: int) -> ClumpTask:
    """The task of a plan that was created from this reading of the log."""
    return ClumpTask(
        directory=str(log.directory),
        job=job,
        token=token,
        snapshot_index=plan.snapshot_index,
        snapshot_term=plan.snapshot_term,
        head=plan.head,
        head_identity=log.segment(plan.head.newest).identity,
        rounds=plan.rounds,
    )


def copy_clumps(task: ClumpTask, *, pace: Pace = UNLIMITED) -> tuple[CopiedClump, ...]:
    """Copy all rounds, each into a partial file of its own, to be committed one after the other.

    Raises:
        CorruptEntryError, CorruptSegmentError: a source is damaged (names file, index, offset).
        MissingLiveIndexError: an entry to be copied is not readable.
        SourcesChangedError, LogChangedError: the log is no longer what was planned on.
        VerificationFailedError, RewriteStoppedError, LogNotWritableError, StoreIOError
    """
    directory = Path(task.directory)
    done: list[CopiedClump] = []
    with storage_errors(directory):
        log = open_log(directory)
        if log_head(log) != task.head or log.segment(log.newest).identity != task.head_identity:
            raise SourcesChangedError(
                f"{directory}: entries were appended since the plan was made: is its owner running?"
            )
        number = highest_segment(directory) + 1
        follows, identity = task.head.newest, task.head_identity
        try:
            for part in task.rounds:
                copied = _copy(log, task, part, segment_name(number), (follows, identity), pace)
                done.append(copied)
                number, follows, identity = number + 1, copied.output, copied.identity
        except BaseException:
            discard(directory, done)
            raise
    return tuple(done)


def discard(directory: Path, clumps: Sequence[CopiedClump]) -> None:
    """Remove partial files: attempt-unique names. What cannot be removed is left to the sweeper."""
    for clump in clumps:
        with suppress(OSError):
            fs.unlink_if_present(directory / clump.partial)


def _copy(
    log: LogState, task: ClumpTask, part: ClumpRound, output: str, follows: tuple[str, FileIdentity], pace: Pace
) -> CopiedClump:
    started = time.monotonic()
    sources = _sources(log, part.old)
    path = log.directory / partial_name(stem(output), job=task.job, token=task.token)
    with partial_file(path, like=log.directory / task.head.newest) as fd:
        copied, buffers = Copied(fd, pace), Buffers()
        copied.head(_head(sources, first=part.first, term=task.head.term))
        for batch in picked_batches(((source.segment, source.rows) for source in sources), pace, buffers):
            idx, term = _as_copied(batch.rows.size, first=part.first + copied.content.entries, term=task.head.term)
            copied.batch(batch, idx=idx, term=term)
        fs.sync(fd)
        identity = FileIdentity.of(os.fstat(fd))
        written, _ = read_back(path, copied, identity, buffers)
        digest = index_digest(written)
    return CopiedClump(
        partial=path.name,
        identity=identity,
        output=output,
        follows=follows[0],
        follows_identity=follows[1],
        old=part.old,
        first=part.first,
        term=task.head.term,
        snapshot_index=task.snapshot_index,
        snapshot_term=task.snapshot_term,
        payload_bytes=copied.content.payload_bytes,
        fingerprint=copied.content.hexdigest(),
        index_digest=digest,
        seconds=time.monotonic() - started,
    )


def _sources(log: LogState, old: LiveSet) -> list[_Source]:
    """The records of the old indexes, ascending."""
    found: list[_Source] = []
    for ref in log.refs:
        if not old.count_in(ref.first, ref.last):
            continue
        segment, rows = log.segment(ref.name), log.readable(ref)
        rows = rows[old.mask(segment.idx[rows])]
        if rows.size != old.count_in(ref.first, ref.last):
            have = LiveSet.from_indexes(segment.idx[rows])
            missing = old.clip(ref.first, ref.last).without(have)
            raise MissingLiveIndexError(str(segment.path), missing.smallest)
        found.append(_Source(segment, rows))
    if sum(source.rows.size for source in found) != len(old):
        raise SourcesChangedError(f"{log.directory}: not every entry that was planned on is readable any more")
    return found


def _head(sources: list[_Source], *, first: int, term: int) -> list[bytes]:
    """Header and index area of the output: new indexes, one term, the lengths and CRCs that were stored."""
    length = np.concatenate([source.segment.length[source.rows] for source in sources])
    indexes, terms = _as_copied(length.size, first=first, term=term)
    return full_head(
        idx=indexes,
        term=terms,
        length=length,
        crc=np.concatenate([source.segment.crc[source.rows] for source in sources]),
    )


def _as_copied(count: int, *, first: int, term: int) -> tuple[U64Array, U64Array]:
    """The indexes and terms of copies."""
    return np.arange(count, dtype=np.uint64) + np.uint64(first), np.full(count, term, dtype=np.uint64)
