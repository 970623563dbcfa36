"""The steps of a commit: every system call that makes verified outputs part of a log, in the one safe order.

A group `a-b-c` (research/ra.md §3.7, made safe; every step is durable before the next begins):

1. the intent (with the receipt to be) is recorded in the fence; the partial file is renamed to `a-b-c.compacting`;
2. `a.segment` becomes a hard link to it, through `a.link` and rename: THE COMMIT POINT;
3. `b.segment`, then `c.segment` become relative symlinks to `a.segment`, in ascending order, and so do dead segments
   that lie between them;
4. the receipt is recorded, the replaced names get tombstones;
5. the name `a-b-c.compacting` is removed.

(A group of one is `a-a.compacting`, because `a.compacting` is a name of Ra's.)

Several groups take each step together and share its syncs: six for all of them. Invariant: no step of any group begins
before the step before it is durable for that group. What lies between is per group: its own intent, its own commit
point, its own evidence. So a crash leaves each group in one of the states of a commit of its own, whatever state its
neighbours are in, and `recovery` settles each by itself, on positive evidence: `a-b-c.compacting` and `a.segment` are
the same inode.

The lock is verified before each step that could destroy another's work, in case a person deletes its file while this
process sleeps; right before each commit point the fence must still be, byte for byte, the one with these intents.
The order of step 3 matters to a reader between two steps: an untouched higher source hides the output from its own
first index on (research/ra.md §1.8) and still holds everything from there on. For the same reason nothing between the
lowest and the highest source may stay a regular file: it would hide the output behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from compaction.exceptions import LockLostError
from compaction.stores.segments import fence, fs, lock, recovery
from compaction.stores.segments.names import compacting_name
from compaction.stores.segments.records import FenceRecord, PendingCommit

_TOMBSTONE_BYTES: Final = 512


def publish(
    directory: Path,
    record: FenceRecord,
    intents: tuple[PendingCommit, ...],
    *,
    held: lock.HeldLock,
    now: float | None,
) -> None:
    """Steps 1 to 5 for `intents`, which are accepted, ascending and disjoint. OSError passes through.

    Raises:
        UnwritableFenceError: nothing was changed.
        LockLostError, StaleTokenError: somebody else has the lock, and settles what was begun.
    """
    # What is written after the commit points must fit as well.
    spare = fence.SPARE_BYTES + _TOMBSTONE_BYTES * sum(len(intent.receipt.linked) for intent in intents)
    intended = fence.with_intents(record, intents)
    written = fence.write(directory, intended, sync_directory=False, held=held, spare=spare)
    for intent in intents:
        fs.rename(directory / intent.partial, directory / compacting_name(intent.group))
    fs.sync_directory(directory)
    for intent in intents:
        _still_ours(directory, written, intent, held)
        recovery.put_link(directory, intent.receipt.output, directory / compacting_name(intent.group))
    fs.sync_directory(directory)
    for intent in intents:
        for name in intent.receipt.linked:
            held.verify()
            recovery.put_symlink(directory, name, intent.receipt.output)
    fs.sync_directory(directory)
    linked_at = held.now() if now is None else now
    done = intended
    for intent in intents:
        done = fence.promoted(done, intent, linked_at=linked_at)
    # One sync for both: should only the removal reach the disk, the intent still names the output's inode.
    fence.write(directory, done, sync_directory=False, held=held, spare=0)
    for intent in intents:
        fs.unlink(directory / compacting_name(intent.group))
    fs.sync_directory(directory)


def _still_ours(directory: Path, written: bytes, intent: PendingCommit, held: lock.HeldLock) -> None:
    """The last look before a commit point: a lock that was lost and came back leaves its traces in the fence."""
    held.verify()
    if not fence.stands(directory, written):
        fence.check_token(fence.read(directory), directory, job=intent.receipt.job, token=intent.receipt.token)
        raise LockLostError(str(held.path), "", 0.0)
