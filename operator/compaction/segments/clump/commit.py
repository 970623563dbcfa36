"""How re-written entries become part of the log, and the old ones die: all new segments of a job under one lock.

Each new segment `n` follows the one before; every step is durable before the next begins:

1. the partial files are renamed to `n.clump`: one that is found proves that a commit was begun;
2. the maps are written as `<first new index>.moves`, with the digest of the output's index: not in force yet;
3. `n.segment` becomes a hard link to `n.clump`, which fails if the name is taken: THE COMMIT POINT of this segment.
   Entries and map are in the log with one system call. Then the next segment, so that no index is ever left out;
4. the snapshot's `indexes` file is replaced by one without the old indexes, once for all;
5. the names `n.clump` are removed.

A crash before 3 leaves a log without any change that counts (`recovery` discards), one after it is finished.
Between 3 and 4 an entry is live under both indexes, never under none. The newest segment, its owner's, is not even
opened for writing; that it did not grow since the plan is checked under the lock, before step 1 and before each 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from compaction.segments.clump import recovery as clump_recovery
from compaction.segments.clump.copy import CopiedClump, discard
from compaction.segments.clump.moves import MoveReceipt, Moves, is_in_place, load_moves, write_moves
from compaction.segments.commit import fence, recovery
from compaction.segments.directory import fs, lock
from compaction.segments.directory.faults import storage_error, storage_errors
from compaction.segments.directory.listing import highest_segment, regular_identity
from compaction.segments.errors import LockLostError, SourcesChangedError
from compaction.segments.format.names import clump_name, moves_name
from compaction.segments.model import segment_number
from compaction.segments.snapshot.directories import find_snapshots
from compaction.segments.snapshot.seq import LiveSet


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
    """What became of a commit that can neither go on nor be undone now."""
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
