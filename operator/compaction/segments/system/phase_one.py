"""Phase 1 of a log's compaction, by its owner: segments with nothing live are deleted (docs/design/segment-owner.md).

Under the log's lock, so no commit and no sweep is under way; each step is durable before the next begins:

1. what is dead, by the same rule as everywhere (`planning.unreferenced`), is marked in the fence;
2. the log drops its references and reports the segments as obsolete: no reader begins with them from here on;
3. the files go, old before new, and then their marks.

A crash in between leaves marked files, which the next phase 1 deletes, or a sweep after its grace: both check each file
again. A reader in this process that began before step 2 finds a file gone, and reads the list again; in another process
as well. Only marks of an owner are carried out here: what a job of the operator has marked waits for that grace.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from compaction.api.policy.segment_logs import Ownership
from compaction.segments import sweep
from compaction.segments.commit import fence, recovery
from compaction.segments.directory import lock
from compaction.segments.directory.faults import storage_errors
from compaction.segments.planning.unreferenced import DeadSegment, find_dead
from compaction.segments.snapshot.seq import LiveSet
from compaction.segments.system.row import LogRow
from compaction.segments.system.segment_list import SegmentList
from compaction.segments.system.segments import SegmentView

OWNER: Final = "owner"
"""Signs the lock, and the marks in the fence."""


def settle(directory: Path, *, timeout: float) -> None:
    """Settle what a crash left half-done of a compaction, before the log is read: of names that were being replaced, a
    power failure may have kept later ones and lost earlier ones, and then live entries are hidden. What recovery keeps
    for a user's decision stays.

    LockHeldError: another process has had the log's lock for `timeout` seconds. CorruptFenceError, StoreIOError, ...
    """
    if recovery.is_needed(directory):
        recovery.recover(directory, holder=OWNER, ownership=Ownership.STOPPED, timeout=timeout)


def dead_in(view: SegmentView, row: LogRow, waiting: LiveSet) -> dict[str, DeadSegment]:
    """What is dead in one reading of a log; nothing while it is unknown what is live. `waiting`: what its mem tables
    held before that reading.

    LiveEntriesMissingError: live entries are in neither, so nothing is known to be dead.
    """
    if row.live is None or not view.segments:
        return {}
    state = view.state(row, waiting)
    if state.missing:
        raise state.entries_missing()
    return find_dead(state, row.live)


def delete_dead(
    segments: SegmentList, row: LogRow, *, waiting: Callable[[], LiveSet], timeout: float
) -> tuple[str, ...]:
    """Delete the dead segments of a log at the snapshot of `row`; returns their names. Repeating is harmless.

    `waiting`: what the log's mem tables hold when it is asked, before the segments are read: entries only ever go from
    there to here.

    Raises:
        LiveEntriesMissingError: live entries are lost; nothing was done.
        LockHeldError: another process has had the log's lock for `timeout` seconds; nothing was done.
        RecoveryBlockedError: a half-done compaction cannot be settled without a user's decision; nothing was done.
        SegmentLogError: the log, or its fence, cannot be read or written; what was marked is deleted another time.
    """
    # By what is in memory: most snapshots leave no segment dead, and take no lock.
    held_in_memory = waiting()
    if not dead_in(segments.view, row, held_in_memory):
        return ()
    directory = segments.view.directory
    with storage_errors(directory), lock.hold(directory, holder=OWNER, timeout=timeout) as held:
        recovery.recover_locked(directory, now=None, held=held).require_settled(directory)
        held_in_memory = waiting()
        dead = dead_in(segments.refresh(), row, held_in_memory)
        record = fence.read(directory)
        marked = {tombstone.name for tombstone in record.tombstones}
        now = held.now()
        new = [one.tombstone(since=now, job=OWNER) for one in dead.values() if one.name not in marked]
        if new:
            record = fence.with_tombstones(record, new)
            fence.write(directory, record, held=held, spare=fence.MAX_FENCE_BYTES // 2)
        mine = [tombstone for tombstone in record.tombstones if tombstone.job == OWNER]
        verdicts = sweep.judge(directory, mine, dead)
        segments.drop({item.name: dead[item.name].identity for item in verdicts.delete})
        deleted = sweep.delete(directory, verdicts.delete, held=held)
        sweep.settle(directory, record, verdicts, held=held)
        segments.refresh()
    return tuple(item.name for item in deleted)
