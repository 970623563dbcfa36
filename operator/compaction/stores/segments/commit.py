"""Commits: how a verified output becomes part of the log, and how dead segments are given up. All under the log's lock.

A group `a-b-c` (research/ra.md §3.7, made safe; every step is durable before the next begins):

1. the intent (with the receipt to be) is recorded in the fence; the partial file is renamed to `a-b-c.compacting`;
2. `a.segment` becomes a hard link to it, through `a.link` and rename: THE COMMIT POINT;
3. `b.segment`, then `c.segment` become relative symlinks to `a.segment`, in ascending order, and so do dead segments
   that lie between them;
4. the receipt is recorded, the replaced names get tombstones;
5. the name `a-b-c.compacting` is removed.

(A group of one is `a-a.compacting`, because `a.compacting` is a name of Ra's.)

A crash anywhere is settled by `recovery` on positive evidence: `a-b-c.compacting` and `a.segment` are the same inode.
The lock is verified before each step that could destroy another's work, in case a person deletes its file while this
process sleeps; right before the commit point the fence must still hold this attempt's token and intent as well.
The order of step 3 matters to a reader between two steps: an untouched higher source hides the output from its own
first index on (research/ra.md §1.8) and still holds everything from there on. For the same reason nothing between the
lowest and the highest source may stay a regular file: it would hide the output behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from compaction.exceptions import LockLostError, SourcesChangedError, StaleTokenError, UnwritableFenceError
from compaction.stores.segments import fence, fs, lock, recovery
from compaction.stores.segments.faults import storage_error, storage_errors
from compaction.stores.segments.limits import IndexesMissing
from compaction.stores.segments.listing import regular_identity, regular_segments
from compaction.stores.segments.names import compacting_name, group_key, partial_name
from compaction.stores.segments.records import (
    FenceRecord,
    GroupReceipt,
    PendingCommit,
    RewrittenGroup,
    Tombstone,
    TombstoneKind,
)
from compaction.stores.segments.seq import LiveSet
from compaction.stores.segments.unreferenced import dead_segments

_TOMBSTONE_BYTES: Final = 512


def commit_group(
    directory: Path,
    *,
    job: str,
    token: int,
    group: RewrittenGroup,
    holder: str,
    now: float | None = None,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> GroupReceipt:
    """Make a rewritten group part of the log, exactly once per job: repeated, it returns the receipt of the first time.

    Raises:
        StaleTokenError: `token` is not the one claimed last; this attempt's partial file is removed, nothing else.
        SourcesChangedError: a source is not the file that was read, or a segment appeared between; the partial is
        removed.
        LockLostError: the lock's file was deleted meanwhile; whoever holds the lock now settles what was begun.
        NotALogDirectoryError, LockHeldError, UnwritableFenceError: nothing was committed.
        LogNotReadableError, LogNotWritableError, StoreIOError: the message says whether something was committed.
    """
    key = group_key(group.sources)
    partial = directory / partial_name(key, job=job, token=token)
    if partial.name != group.partial:
        raise SourcesChangedError(f"{directory}: {group.partial} is not the output of job {job}, token {token}")
    recovery.require_log(directory)
    with storage_errors(directory), lock.hold(directory, holder=holder, job=job, timeout=timeout) as held:
        committed_at = time.time() if now is None else now
        recovery.recover_locked(directory, now=committed_at, held=held)
        record = fence.read(directory)
        try:
            fence.check_token(record, directory, job=job, token=token)
            if receipt := record.receipt(job, key):
                fs.unlink_if_present(partial)
                return receipt
            _check_files(directory, group, partial)
            held.verify()
        except (StaleTokenError, SourcesChangedError, LockLostError):
            _discard(partial)
            raise
        receipt = _receipt(directory, group, key=key, job=job, token=token, holder=holder, now=committed_at)
        pending = PendingCommit(group=key, partial=partial.name, identity=group.identity, receipt=receipt)
        try:
            _publish(directory, record, pending, held=held, now=now)
        except UnwritableFenceError:
            _discard(partial)
            raise
        except OSError as error:
            settled = _settle(directory, partial, error, pending, held=held, now=now)
            if settled is None:
                raise storage_error(error, directory, outcome="nothing was committed") from error
            return settled
        return receipt


def _discard(partial: Path) -> None:
    """Attempt-unique name: nobody else's file. A failure to remove it leaves an orphan for the sweeper."""
    with suppress(OSError):
        fs.unlink_if_present(partial)


def _publish(
    directory: Path, record: FenceRecord, pending: PendingCommit, *, held: lock.HeldLock, now: float | None
) -> None:
    """Steps 1 to 5."""
    lowest = pending.receipt.output
    compacting = directory / compacting_name(pending.group)
    # What is written after the commit point must fit as well.
    spare = fence.SPARE_BYTES + _TOMBSTONE_BYTES * len(pending.receipt.linked)
    intended = fence.with_pending(record, pending)
    fence.write(directory, intended, sync_directory=False, held=held, spare=spare)
    fs.rename(directory / pending.partial, compacting)
    fs.sync_directory(directory)
    _still_ours(directory, pending, held)
    recovery.put_link(directory, lowest, compacting)
    fs.sync_directory(directory)
    for name in pending.receipt.linked:
        held.verify()
        recovery.put_symlink(directory, name, lowest)
    fs.sync_directory(directory)
    linked_at = time.time() if now is None else now
    # One sync for both: should only the removal reach the disk, the intent still names the output's inode.
    fence.write(directory, fence.promoted(intended, linked_at=linked_at), sync_directory=False, held=held, spare=0)
    fs.unlink(compacting)
    fs.sync_directory(directory)


def _still_ours(directory: Path, pending: PendingCommit, held: lock.HeldLock) -> None:
    """The last look before the commit point: a lock that was lost and came back leaves its traces in the fence."""
    held.verify()
    record, receipt = fence.read(directory), pending.receipt
    fence.check_token(record, directory, job=receipt.job, token=receipt.token)
    if record.pending != pending:
        raise LockLostError(str(held.path), "", 0.0)


def _settle(
    directory: Path,
    partial: Path,
    error: OSError,
    pending: PendingCommit,
    *,
    held: lock.HeldLock,
    now: float | None,
) -> GroupReceipt | None:
    """After a failed system call: finish what passed the commit point, else leave nothing behind. None: not committed.

    When the disk refuses this as well, the directory stays as after a crash: readable, and settled by the next
    recovery. The error says which of the two it will be, if that can be seen.
    """
    held.verify()
    try:
        recovery.recover_locked(directory, now=time.time() if now is None else now, held=held)
        if receipt := fence.read(directory).receipt(pending.receipt.job, pending.group):
            return receipt
        fs.unlink_if_present(partial)
    except OSError:
        outcome = _outcome(directory, pending)
        raise storage_error(error, directory, outcome=outcome) from error
    return None


def _outcome(directory: Path, pending: PendingCommit) -> str:
    """What became of a commit that can neither go on nor be undone now: its output is in place, or it is not."""
    try:
        output = regular_identity(directory / pending.receipt.output)
    except OSError:
        return "whether the group was committed is settled by the next recovery"
    if output == pending.identity:
        return "the group is past its commit point, the next recovery finishes it"
    return "nothing was committed"


def _check_files(directory: Path, group: RewrittenGroup, partial: Path) -> None:
    """SourcesChangedError unless the sources are the files that were read and the output is the file that was
    verified.
    """
    for name, identity in zip(group.sources, group.identities, strict=True):
        if regular_identity(directory / name) != identity:
            raise SourcesChangedError(f"{directory / name}: no longer the file that was read for {group.partial}")
    if regular_identity(partial) != group.identity:
        raise SourcesChangedError(f"{partial}: not the file that was verified")
    names = regular_segments(directory)
    lowest, highest = group.sources[0], group.sources[-1]
    if highest >= names[-1]:
        raise SourcesChangedError(f"{directory / highest}: the newest segment is its owner's, and never compacted")
    carried = dict(zip(group.carried, group.carried_identities, strict=True))
    for name in names:
        between = lowest < name < highest and name not in group.sources
        if between and regular_identity(directory / name) != carried.get(name):
            raise SourcesChangedError(f"{directory / name}: lies between the sources of {group.partial}")


def _receipt(
    directory: Path, group: RewrittenGroup, *, key: str, job: str, token: int, holder: str, now: float
) -> GroupReceipt:
    """The receipt to be. A carried segment that was swept since the rewrite is neither linked nor counted."""
    carried = dict(zip(group.carried, group.carried_identities, strict=True))
    swept = [name for name in carried if regular_identity(directory / name) is None]
    return GroupReceipt(
        job=job,
        token=token,
        holder=holder,
        group=key,
        sources=group.sources,
        output=group.sources[0],
        linked=tuple(sorted({*group.sources[1:], *carried} - {*swept})),
        entries=group.entries,
        live_bytes=group.live_bytes,
        bytes_before=group.bytes_before - sum(carried[name].size for name in swept),
        bytes_after=group.bytes_after,
        fingerprint_before=group.fingerprint_before,
        fingerprint_after=group.fingerprint_after,
        seconds=group.seconds,
        committed_at=now,
    )


def commit_unreferenced(
    directory: Path,
    *,
    job: str,
    token: int,
    names: Iterable[str],
    holder: str,
    now: float | None = None,
    snapshot_index: int | None = None,
    live: LiveSet | None = None,
    indexes_missing: IndexesMissing = IndexesMissing.REFUSE,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> tuple[Tombstone, ...]:
    """Mark segments without anything live for deletion after the grace. Nothing is deleted here.

    Each is checked again against the log as it is now. Repeated, it returns the tombstones of the first time, also when
    they have been carried out meanwhile.

    Raises:
        StaleTokenError: `token` is not the one claimed last.
        SourcesChangedError: a segment is gone, or (again) needed.
        LiveSetUnknownError: the snapshot does not say what is live.
        NotALogDirectoryError, LockHeldError, UnwritableFenceError, LogNotWritableError, StoreIOError: nothing was
        marked.
    """
    wanted = sorted(set(names))
    recovery.require_log(directory)
    with storage_errors(directory), lock.hold(directory, holder=holder, job=job, timeout=timeout) as held:
        now = time.time() if now is None else now
        recovery.recover_locked(directory, now=now, held=held)
        record = fence.read(directory)
        fence.check_token(record, directory, job=job, token=token)
        claim = record.jobs[job]
        done = {tombstone.name: tombstone for tombstone in claim.unreferenced}
        missing = [name for name in wanted if name not in done]
        if missing:
            dead = dead_segments(directory, snapshot_index=snapshot_index, live=live, indexes_missing=indexes_missing)
            for name in missing:
                if name not in dead:
                    raise SourcesChangedError(f"{directory / name}: gone, or something in it is needed (again)")
            marked = tuple(
                Tombstone(
                    name=name,
                    kind=TombstoneKind.UNREFERENCED,
                    since=now,
                    job=job,
                    token=token,
                    bytes=dead[name].identity.size,
                    reason=dead[name].reason,
                    identity=dead[name].identity,
                )
                for name in missing
            )
            jobs = record.jobs | {job: replace(claim, unreferenced=(*claim.unreferenced, *marked))}
            marks = fence.with_tombstones(replace(record, jobs=jobs), marked)
            # Half of the room at most: commits, claims and the sweep that shrinks it again need theirs.
            fence.write(directory, marks, held=held, spare=fence.MAX_FENCE_BYTES // 2)
            done |= {tombstone.name: tombstone for tombstone in marked}
        return tuple(done[name] for name in wanted)
