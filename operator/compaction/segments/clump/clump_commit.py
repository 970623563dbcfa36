"""Sparse live entries become new segments at the head of their log, and the old ones die: copied first, then one
commit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compaction.segments.clump import clump_recovery as clump_recovery
from compaction.segments.clump.clump_plan import ClumpPlan, ClumpRound, LogHead, log_head
from compaction.segments.clump.moves import MoveReceipt, Moves, index_digest, is_in_place, load_moves, write_moves
from compaction.segments.commit import fence, recovery
from compaction.segments.directory import fs, lock
from compaction.segments.directory.fs import highest_segment, regular_identity, storage_error, storage_errors
from compaction.segments.errors import LockLostError, MissingLiveIndexError, SourcesChangedError
from compaction.segments.format.names import clump_name, moves_name, partial_name, stem
from compaction.segments.model import FileIdentity, RowArray, SegmentIndex, U64Array, segment_name, segment_number
from compaction.segments.reading.reader import Buffers, picked_batches
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.rewriting.kernel import Copied, full_head, partial_file, read_back
from compaction.segments.snapshot.directories import find_snapshots
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.storage.pace import UNLIMITED, Pace, SharedBucket

# Copies live entries into new segments for the head of the log, under attempt-unique names: nothing is visible yet.
#
# Every payload's CRC is checked while it is read, and each output is verified by reading it back. The copies have new
# indexes, one behind the other, and the term that the log ends with; length, payload and stored CRC stay. Like a
# compacted segment, an output is version 2 and exactly full, so no owner ever appends to it. Memory: what is read at
# once (4 MiB, or the largest payload) and its copy, beside what a reading of the log holds. Whatever goes wrong, all
# partial files are removed.


@dataclass(frozen=True, slots=True)
class ClumpTask:
    """The plain data of a copy. `head`: the end of the log when this was planned, with the newest segment's file.

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
            # At an interrupt as well: no commit takes these files, so they would only wait for the sweeper.
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
        # After the last write: the commit compares this identity with the file that it finds.
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


# The commit by which re-written entries become part of the log, and the old ones die: all new segments of a job
# under one lock.
#
# Each new segment `n` follows the one before; every step is durable before the next begins:
#
# 1. the partial files are renamed to `n.clump`: one that is found proves that a commit was begun;
# 2. the maps are written as `<first new index>.moves`, with the digest of the output's index: not in force yet;
# 3. `n.segment` becomes a hard link to `n.clump`, which fails if the name is taken: THE COMMIT POINT of this segment.
#   Entries and map are in the log with one system call. Then the next segment, so that no index is ever left out;
# 4. the snapshot's `indexes` file is replaced by one without the old indexes, once for all;
# 5. the names `n.clump` are removed.
#
# A crash before 3 leaves a log without any change that counts (`recovery` discards), one after it is finished.
# Between 3 and 4 an entry is live under both indexes, never under none. The newest segment, its owner's, is not even
# opened for writing; that it did not grow since the plan is checked under the lock, before step 1 and before each 3.


def commit_clumps(
    directory: Path,
    *,
    job: str,
    token: int,
    clumps: Sequence[CopiedClump],
    holder: str,
    now: float | None = None,
    timeout: float = lock.DEFAULT_TIMEOUT,
    before_each: Callable[[], None] = lambda: None,
) -> tuple[MoveReceipt, ...]:
    """Make re-written entries part of the log, in this order and exactly once: repeated, it returns the first receipts.

    `before_each` is called right before each commit point and may raise: what was committed until then stays, the rest
    is undone. However this ends, no partial file of `clumps` is left (but for a death: then the sweeper takes them).

    Raises:
        StaleTokenError: `token` is not the one claimed last.
        SourcesChangedError: the log was appended to, a snapshot was taken, or an entry died.
        LockLostError: the lock's file was deleted meanwhile; the current holder of the lock settles what was begun.
        NotALogDirectoryError, LockHeldError: nothing was committed.
        LogNotReadableError, LogNotWritableError, StoreIOError: the message says whether something was committed.
    """
    recovery.require_log(directory)
    try:
        with storage_errors(directory), lock.hold(directory, holder=holder, job=job, timeout=timeout) as held:
            recovery.recover_locked(directory, now=now, held=held)
            committed_at = held.now() if now is None else now
            fence.check_token(fence.read(directory), directory, job=job, token=token)
            done = [receipt for clump in clumps if (receipt := _committed(directory, clump, job=job))]
            todo = list(clumps)[len(done) :]
            if not todo:
                return tuple(done)
            live = _check(directory, todo)
            held.verify()
            moves = _maps(todo, live, job=job, token=token, holder=holder, now=committed_at)
            try:
                _publish(directory, todo, moves, before_each, held=held)
            except OSError as error:
                _settle(directory, todo, error, job=job, now=now, held=held)
            except LockLostError:
                # The process that holds the lock now settles what was begun; this one must not change anything.
                raise
            except Exception:
                # Behind a commit point or before it: recovery tells, segment by segment.
                recovery.recover_locked(directory, now=now, held=held)
                raise
            return (*done, *(each.receipt for each in moves))
    finally:
        discard(directory, clumps)


def _committed(directory: Path, clump: CopiedClump, *, job: str) -> MoveReceipt | None:
    """The receipt of the same entries, committed by this job before."""
    try:
        receipt = load_moves(directory / moves_name(clump.first)).receipt
    except FileNotFoundError:
        return None
    same = receipt.job == job and receipt.index_digest == clump.index_digest
    return receipt if same else None


def _check(directory: Path, clumps: list[CopiedClump]) -> LiveSet:
    """The live set in force. SourcesChangedError unless the log is what the copies were made of, and for."""
    first = clumps[0]
    follows = directory / first.follows
    if regular_identity(follows) != first.follows_identity:
        raise SourcesChangedError(f"{follows}: entries were appended since it was read: is the log's owner running?")
    numbers = [segment_number(clump.output) for clump in clumps]
    next_one = highest_segment(directory) + 1
    if numbers != list(range(next_one, next_one + len(clumps))):
        raise SourcesChangedError(f"{directory}: {first.output} would not be its newest segment any more")
    for clump in clumps:
        if regular_identity(directory / clump.partial) != clump.identity:
            raise SourcesChangedError(f"{directory / clump.partial}: not the file that was verified")
    newest = find_snapshots(directory).newest
    if newest is None or (newest.index, newest.term) != (first.snapshot_index, first.snapshot_term):
        raise SourcesChangedError(f"{directory}: its snapshot is no longer the one at index {first.snapshot_index}")
    if newest.live is None or _old(clumps).without(newest.live):
        raise SourcesChangedError(f"{directory}: an entry that was re-written is not live any more")
    return newest.live


def _old(clumps: list[CopiedClump]) -> LiveSet:
    bounds = [clump.old.bounds for clump in clumps]
    return LiveSet(np.concatenate([low for low, _ in bounds]), np.concatenate([high for _, high in bounds]))


def _maps(clumps: list[CopiedClump], live: LiveSet, *, job: str, token: int, holder: str, now: float) -> list[Moves]:
    """One map per segment; the ranges in their receipts are those before and after the whole commit."""
    low, high = live.without(_old(clumps)).bounds
    # The copies of all rounds are neighbours: one range behind the end of the log.
    copies = np.array([[clumps[0].first, clumps[-1].last]], dtype=np.uint64)
    after = LiveSet(np.append(low, copies[:, 0]), np.append(high, copies[:, 1])).bounds[0].size
    return [
        Moves.contiguous(
            MoveReceipt(
                job=job,
                token=token,
                holder=holder,
                snapshot_index=clump.snapshot_index,
                snapshot_term=clump.snapshot_term,
                first=clump.first,
                last=clump.last,
                term=clump.term,
                entries=len(clump.old),
                payload_bytes=clump.payload_bytes,
                ranges_before=live.bounds[0].size,
                ranges_after=after,
                fingerprint=clump.fingerprint,
                seconds=clump.seconds,
                committed_at=now,
                output=clump.output,
                output_bytes=clump.identity.size,
                index_digest=clump.index_digest,
            ),
            clump.old,
        )
        for clump in clumps
    ]


def _publish(
    directory: Path,
    clumps: list[CopiedClump],
    maps: list[Moves],
    before_each: Callable[[], None],
    *,
    held: lock.HeldLock,
) -> None:
    """Steps 1 to 5."""
    markers = [directory / clump_name(clump.output) for clump in clumps]
    for clump, marker in zip(clumps, markers, strict=True):
        fs.rename(directory / clump.partial, marker)
    fs.sync_directory(directory)
    for moves in maps:
        write_moves(directory, moves, held=held, access=directory / clumps[0].follows)
    fs.sync_directory(directory)
    for clump, marker, moves in zip(clumps, markers, maps, strict=True):
        before_each()
        _still_ours(directory, clump, marker, moves, held)
        _link(marker, directory / clump.output)
        fs.sync_directory(directory)
    clump_recovery.publish_live(directory, maps, held=held)
    for marker in markers:
        fs.unlink(marker)
    fs.sync_directory(directory)


def _still_ours(directory: Path, clump: CopiedClump, marker: Path, moves: Moves, held: lock.HeldLock) -> None:
    """The last check before the commit point: a lock that was lost and came back leaves its traces, an owner too."""
    held.verify()
    receipt = moves.receipt
    fence.check_token(fence.read(directory), directory, job=receipt.job, token=receipt.token)
    if regular_identity(marker) != clump.identity:
        raise LockLostError(str(held.path), "", 0.0)
    if regular_identity(directory / clump.follows) != clump.follows_identity:
        raise SourcesChangedError(f"{directory}: its owner began to append: {clump.output} was not made")


def _link(marker: Path, output: Path) -> None:
    """The commit point."""
    try:
        # A link, not a rename, which would replace a segment that the owner made meanwhile.
        fs.link(marker, output)
    except FileExistsError as error:
        raise SourcesChangedError(f"{output}: its owner has made this segment meanwhile") from error


def _settle(
    directory: Path, clumps: list[CopiedClump], error: OSError, *, job: str, now: float | None, held: lock.HeldLock
) -> None:
    """After a failed system call: return if all is past its commit point and was finished, else undo what is not.

    When the disk refuses this as well, the directory stays as after a crash, for the next recovery.
    """
    held.verify()
    try:
        recovery.recover_locked(directory, now=now, held=held)
        committed = sum(_committed(directory, clump, job=job) is not None for clump in clumps)
    except OSError:
        raise storage_error(error, directory, outcome=_outcome(directory, clumps)) from error
    if committed < len(clumps):
        outcome = f"{committed} of {len(clumps)} segments were committed" if committed else "nothing was committed"
        raise storage_error(error, directory, outcome=outcome) from error


def _outcome(directory: Path, clumps: list[CopiedClump]) -> str:
    """Describe the outcome of a commit that can neither go on nor be undone now."""
    with suppress(OSError):
        placed = sum(_in_place(directory, clump) for clump in clumps)
        if not placed:
            return "nothing was committed"
        return f"{placed} of {len(clumps)} segments are past their commit point, the next recovery finishes them"
    return "whether the entries were committed is settled by the next recovery"


def _in_place(directory: Path, clump: CopiedClump) -> bool:
    with suppress(FileNotFoundError):
        return is_in_place(directory, load_moves(directory / moves_name(clump.first)))
    return False
