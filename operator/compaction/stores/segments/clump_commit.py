"""How re-written entries become part of the log, and the old ones die: one commit per new segment, under the lock.

Segment `n` follows the newest one; every step is durable before the next begins:

1. the partial file is renamed to `n.clump`: whoever finds it knows that a commit was begun;
2. the map is written as `<first new index>.moves`, with the digest of the output's index: not in force yet;
3. `n.segment` becomes a hard link to `n.clump`, which fails if the name is taken: THE COMMIT POINT. Entries and map are
   in the log with one system call;
4. the snapshot's `indexes` file is replaced by one without the old indexes;
5. the name `n.clump` is removed.

A crash before 3 leaves a log without any change that counts (`clump_recovery` discards), one after it is finished.
Between 3 and 4 an entry is live under both indexes, never under none. The newest segment, its owner's, is not even
opened for writing; that it did not grow since the plan is checked under the lock, before step 1 and before step 3.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from compaction.exceptions import LockLostError, SourcesChangedError, StaleTokenError
from compaction.stores.segments import clump_recovery, fence, fs, lock, recovery
from compaction.stores.segments.clump_copy import CopiedClump, discard
from compaction.stores.segments.clump_moves import ClumpReceipt, Moves, is_in_place, load_moves, write_moves
from compaction.stores.segments.faults import storage_error, storage_errors
from compaction.stores.segments.listing import highest_segment, regular_identity
from compaction.stores.segments.model import segment_number
from compaction.stores.segments.names import clump_name, moves_name
from compaction.stores.segments.seq import LiveSet
from compaction.stores.segments.snapshot import find_snapshots


def commit_clump(
    directory: Path,
    *,
    job: str,
    token: int,
    clump: CopiedClump,
    holder: str,
    now: float | None = None,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> ClumpReceipt:
    """Make re-written entries part of the log, exactly once: repeated, it returns the receipt of the first time.

    Raises:
        StaleTokenError: `token` is not the one claimed last; this attempt's partial file is removed, nothing else.
        SourcesChangedError: the log was appended to, a snapshot was taken, or an entry died; the partial is removed.
        LockLostError: the lock's file was deleted meanwhile; whoever holds the lock now settles what was begun.
        NotALogDirectoryError, LockHeldError: nothing was committed.
        LogNotReadableError, LogNotWritableError, StoreIOError: the message says whether something was committed.
    """
    recovery.require_log(directory)
    with storage_errors(directory), lock.hold(directory, holder=holder, job=job, timeout=timeout) as held:
        committed_at = held.now() if now is None else now
        recovery.recover_locked(directory, now=committed_at, held=held)
        try:
            fence.check_token(fence.read(directory), directory, job=job, token=token)
            if receipt := _committed(directory, clump, job=job):
                discard(directory, [clump])
                return receipt
            live = _check(directory, clump)
            held.verify()
        except (StaleTokenError, SourcesChangedError, LockLostError):
            discard(directory, [clump])
            raise
        receipt = _receipt(clump, live, job=job, token=token, holder=holder, now=committed_at)
        try:
            _publish(directory, clump, Moves.contiguous(receipt, clump.old), held=held)
        except OSError as error:
            _settle(directory, clump, error, job=job, now=committed_at, held=held)
        return receipt


def _committed(directory: Path, clump: CopiedClump, *, job: str) -> ClumpReceipt | None:
    """The receipt of the same entries, committed by this job before."""
    try:
        receipt = load_moves(directory / moves_name(clump.first)).receipt
    except FileNotFoundError:
        return None
    same = receipt.job == job and receipt.index_digest == clump.index_digest
    return receipt if same else None


def _check(directory: Path, clump: CopiedClump) -> LiveSet:
    """The live set in force. SourcesChangedError unless the log is what the copies were made of, and for."""
    follows = directory / clump.follows
    if regular_identity(follows) != clump.follows_identity:
        raise SourcesChangedError(f"{follows}: entries were appended since it was read: is the log's owner running?")
    if highest_segment(directory) + 1 != segment_number(clump.output):
        raise SourcesChangedError(f"{directory}: {clump.output} would not be its newest segment any more")
    if regular_identity(directory / clump.partial) != clump.identity:
        raise SourcesChangedError(f"{directory / clump.partial}: not the file that was verified")
    newest = find_snapshots(directory).newest
    if newest is None or (newest.index, newest.term) != (clump.snapshot_index, clump.snapshot_term):
        raise SourcesChangedError(f"{directory}: its snapshot is no longer the one at index {clump.snapshot_index}")
    if newest.live is None or clump.old.without(newest.live):
        raise SourcesChangedError(f"{directory}: an entry that was re-written is not live any more")
    return newest.live


def _receipt(clump: CopiedClump, live: LiveSet, *, job: str, token: int, holder: str, now: float) -> ClumpReceipt:
    copies = LiveSet.from_ranges([*live.without(clump.old).ranges, (clump.first, clump.last)])
    return ClumpReceipt(
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
        ranges_after=copies.bounds[0].size,
        fingerprint=clump.fingerprint,
        seconds=clump.seconds,
        committed_at=now,
        output=clump.output,
        output_bytes=clump.identity.size,
        index_digest=clump.index_digest,
    )


def _publish(directory: Path, clump: CopiedClump, moves: Moves, *, held: lock.HeldLock) -> None:
    """Steps 1 to 5."""
    marker, output = directory / clump_name(clump.output), directory / clump.output
    fs.rename(directory / clump.partial, marker)
    fs.sync_directory(directory)
    write_moves(directory, moves, held=held, access=directory / clump.follows)
    try:
        _still_ours(directory, clump, marker, moves, held)
        _link(marker, output)
    except (StaleTokenError, SourcesChangedError):
        clump_recovery.discard_clump(directory, marker.name)
        raise
    fs.sync_directory(directory)
    clump_recovery.publish_live(directory, moves, held=held)
    fs.unlink(marker)
    fs.sync_directory(directory)


def _still_ours(directory: Path, clump: CopiedClump, marker: Path, moves: Moves, held: lock.HeldLock) -> None:
    """The last look before the commit point: a lock that was lost and came back leaves its traces, an owner too."""
    held.verify()
    receipt = moves.receipt
    fence.check_token(fence.read(directory), directory, job=receipt.job, token=receipt.token)
    if regular_identity(marker) != clump.identity:
        raise LockLostError(str(held.path), "", 0.0)
    if regular_identity(directory / clump.follows) != clump.follows_identity:
        raise SourcesChangedError(f"{directory}: its owner began to append: nothing was re-written")


def _link(marker: Path, output: Path) -> None:
    """The commit point."""
    try:
        fs.link(marker, output)
    except FileExistsError as error:
        raise SourcesChangedError(f"{output}: its owner has made this segment meanwhile") from error


def _settle(directory: Path, clump: CopiedClump, error: OSError, *, job: str, now: float, held: lock.HeldLock) -> None:
    """After a failed system call: return if it is past its commit point and was finished, else leave nothing behind.

    When the disk refuses this as well, the directory stays as after a crash, for the next recovery.
    """
    held.verify()
    try:
        recovery.recover_locked(directory, now=now, held=held)
        discard(directory, [clump])
        committed = _committed(directory, clump, job=job) is not None
    except OSError:
        raise storage_error(error, directory, outcome=_outcome(directory, clump)) from error
    if not committed:
        raise storage_error(error, directory, outcome="nothing was committed") from error


def _outcome(directory: Path, clump: CopiedClump) -> str:
    """What became of a commit that can neither go on nor be undone now."""
    with suppress(OSError):
        if is_in_place(directory, load_moves(directory / moves_name(clump.first))):
            return "the entries are past their commit point, the next recovery finishes it"
        return "nothing was committed"
    return "whether the entries were committed is settled by the next recovery"
