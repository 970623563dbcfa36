"""The steps of a commit: every system call that makes verified outputs part of a log, in the one safe order.

A group `a-b-c` (docs/design/segment-commit.md#the-steps; every step is durable before the next begins):

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
process sleeps; right before each commit point the fence must still be, byte for byte, the one with these intents. Each
name is checked right before it is replaced: while this process slept, the log's owner may have started and compacted
the log itself. A group whose sources changed before its commit point is not committed; one whose higher names changed
behind it ends below the first that did, and its receipt says so.

The order of step 3 matters to a reader between two steps: an untouched higher source hides the output from its own
first index on (docs/design/segment-files.md#log-view) and still holds everything from there on. For the same reason
nothing between the lowest and the highest source may stay a regular file: it would hide the output behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from compaction.segments.commit import fence, replacing
from compaction.segments.commit.evidence import changed_names
from compaction.segments.commit.records import FenceRecord, GroupReceipt, PendingCommit
from compaction.segments.directory import fs, lock
from compaction.segments.directory.listing import links_of
from compaction.segments.errors import LockLostError, SourcesChangedError
from compaction.segments.format.names import compacting_name

_TOMBSTONE_BYTES: Final = 512


def publish(
    directory: Path,
    record: FenceRecord,
    intents: tuple[PendingCommit, ...],
    *,
    held: lock.HeldLock,
    now: float | None,
) -> dict[str, GroupReceipt | SourcesChangedError]:
    """Steps 1 to 5 for `intents`, which are accepted, ascending and disjoint. OSError passes through.

    Returns what became of each group, by its key: its receipt, or why nothing of it was committed.

    Raises:
        UnwritableFenceError: nothing was changed.
        LockLostError, StaleLogTokenError: another process has the lock, and settles what was begun.
    """
    # What is written after the commit points must fit as well.
    spare = fence.SPARE_BYTES + _TOMBSTONE_BYTES * sum(len(intent.receipt.linked) for intent in intents)
    intended = fence.with_intents(record, intents)
    written = fence.write(directory, intended, sync_directory=False, held=held, spare=spare)
    for intent in intents:
        fs.rename(directory / intent.partial, directory / compacting_name(intent.group))
    fs.sync_directory(directory)
    outcomes: dict[str, GroupReceipt | SourcesChangedError] = {}
    for intent in intents:
        # Every commit point is taken before the first symlink of any group: one sync then makes all of them durable.
        if changed := _place(directory, intent, written, held):
            outcomes[intent.group] = changed
    fs.sync_directory(directory)
    placed = [intent for intent in intents if intent.group not in outcomes]
    ended = [_link(directory, intent, held) for intent in placed]
    fs.sync_directory(directory)
    linked_at = held.now() if now is None else now
    done = intended
    for group in outcomes:
        done = fence.without_intent(done, group)
    for intent in ended:
        links = links_of(directory, intent.receipt.linked)
        done = fence.promoted(done, intent, linked_at=linked_at, links=links)
        outcomes[intent.group] = intent.receipt
    # One sync for both: should only the removal reach the disk, the intent still names the output's inode.
    fence.write(directory, done, sync_directory=False, held=held, spare=0)
    for intent in intents:
        # Last, and only now: until the receipt is written, this second name is the evidence that recovery needs.
        fs.unlink(directory / compacting_name(intent.group))
    fs.sync_directory(directory)
    return outcomes


def _place(directory: Path, intent: PendingCommit, written: bytes, held: lock.HeldLock) -> SourcesChangedError | None:
    """The commit point of one group; or why it was not taken."""
    _still_ours(directory, written, intent, held)
    source = directory / compacting_name(intent.group)
    changed = changed_names(directory, intent)
    lowest = intent.replaced[0]
    if not changed and replacing.put_link(directory, lowest.name, source, expected=lowest.identity):
        return None
    name = directory / (changed or [lowest.name])[0]
    return SourcesChangedError(f"{name}: no longer the file that was read for {intent.partial}")


def _link(directory: Path, intent: PendingCommit, held: lock.HeldLock) -> PendingCommit:
    """Step 3 of one group: the intent as it came true."""
    linked: list[str] = []
    for one in intent.replaced[1:]:
        held.verify()
        if not replacing.put_symlink(directory, one.name, intent.receipt.output, expected=one.identity):
            # The first name that is another file hides the output from here on, so links above it would hide live
            # entries.
            break
        linked.append(one.name)
    return intent.cut_short(linked)


def _still_ours(directory: Path, written: bytes, intent: PendingCommit, held: lock.HeldLock) -> None:
    """The last check before a commit point: a lock that was lost and came back leaves its traces in the fence."""
    held.verify()
    if not fence.stands(directory, written):
        fence.check_token(fence.read(directory), directory, job=intent.receipt.job, token=intent.receipt.token)
        raise LockLostError(str(held.path), "", 0.0)
