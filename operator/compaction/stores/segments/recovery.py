"""Settles what a crash left half-done: ours, the design note's, and that of Ra's own compaction.

Rule: only positive evidence finishes a commit, everything else is discarded; both are safe, because the sources of a
group stay regular files until the evidence exists. Idempotent, and itself safe against a crash at any step.

* `a-b-c.compacting` and `a.segment` are the same inode: committed. The remaining links are made, the receipt that the
  fence holds as intent counts, the name is removed. (Not the link count: a hard-link backup has it too, research/ra.md
  §3.7.)
* otherwise `a-b-c.compacting` is discarded.
* An intent without `.compacting`: committed if `a.segment` is the inode that the intent names, else void.
* Ra's marker `a.compaction_group`: see `ra_recovery`. Markers go first: to Ra, a marker without `.compacting` means
  "committed", which loses data (research/ra.md §8, B1).
* Every `.link` is removed: only renamed ones ever mattered.

Partial files are not touched: their attempts may be alive; the sweeper knows which are not.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from compaction.stores.segments import fence, fs, lock, names
from compaction.stores.segments.faults import storage_errors
from compaction.stores.segments.listing import regular_inode
from compaction.stores.segments.ra_recovery import RaRecovery, settle_marker
from compaction.stores.segments.records import FenceRecord, PendingCommit, Tombstone, TombstoneKind


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery did. `finished` and `discarded` are group keys; `removed` are names of leftovers.

    `ra`: one entry per marker of Ra's own compaction.
    """

    finished: tuple[str, ...] = ()
    discarded: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    ra: tuple[RaRecovery, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.finished or self.discarded or self.removed or self.ra)


def is_needed(directory: Path) -> bool:
    """Whether `recover` would find something to do. False also while a commit of a living process is under way and done
    before the answer is read: ask again, or just recover."""
    with storage_errors(directory):
        return names.needs_recovery(os.listdir(directory)) or fence.read(directory).pending is not None


def recover(
    directory: Path, *, holder: str = "recovery", now: float | None = None, timeout: float = lock.DEFAULT_TIMEOUT
) -> RecoveryReport:
    """Settle everything half-done in a log directory. Repeating is harmless.

    Raises:
        LockHeldError, LogNotWritableError, StoreIOError, CorruptFenceError
        SegmentLogError: a marker of Ra's own compaction was found, and the log's segments or snapshot cannot be read.
    """
    with storage_errors(directory), lock.hold(directory, holder=holder, timeout=timeout):
        return recover_locked(directory, now=time.time() if now is None else now)


def recover_locked(directory: Path, *, now: float) -> RecoveryReport:
    """As `recover`, for a caller that holds the lock. OSError passes through."""
    found = sorted(os.listdir(directory))
    pending = fence.read(directory).pending
    if not names.needs_recovery(found) and pending is None:
        # Only a temporary of an interrupted fence write can be left: the record itself is whole.
        removed = _remove(directory, [n for n in found if n == fence.TEMPORARY_FILE])
        return RecoveryReport(removed=removed)
    ra = tuple(settle_marker(directory, name) for name in found if names.parse_ra_marker(name))
    finished: list[str] = []
    discarded: list[str] = []
    groups = [group for name in found if (group := names.parse_compacting(name))]
    if pending is not None and pending.group not in groups:
        groups.append(pending.group)
    for group in groups:
        (finished if _settle_group(directory, group, now=now) else discarded).append(group)
    leftovers = [n for n in found if names.parse_link(n) or n == fence.TEMPORARY_FILE]
    removed = _remove(directory, leftovers)
    return RecoveryReport(finished=tuple(finished), discarded=tuple(discarded), removed=removed, ra=ra)


def _settle_group(directory: Path, group: str, *, now: float) -> bool:
    """Finish (True) or discard (False) one group."""
    compacting = directory / names.compacting_name(group)
    lowest, *others = names.group_sources(group)
    record = fence.read(directory)
    pending = record.pending if record.pending and record.pending.group == group else None
    if pending is not None:
        # The intent also knows the dead segments between the sources.
        others = list(pending.receipt.linked)
    committed = _committed(compacting, directory / lowest, pending)
    if committed:
        for name in others:
            # A missing name was swept already; a symlink was made already, or is the owner's.
            if regular_inode(directory / name):
                put_symlink(directory, name, lowest)
        fs.sync_directory(directory)
    settled = _with_outcome(record, pending, committed=committed, others=others, directory=directory, now=now)
    if settled != record:
        fence.write(directory, settled)
    if fs.unlink_if_present(compacting):
        fs.sync_directory(directory)
    return committed


def _committed(compacting: Path, lowest: Path, pending: PendingCommit | None) -> bool:
    """Positive evidence that the group's output is in place."""
    output = regular_inode(lowest)
    if output is None:
        return False
    candidate = regular_inode(compacting)
    if candidate is not None:
        return candidate == output
    return pending is not None and output == (pending.identity.device, pending.identity.inode)


def _with_outcome(
    record: FenceRecord,
    pending: PendingCommit | None,
    *,
    committed: bool,
    others: list[str],
    directory: Path,
    now: float,
) -> FenceRecord:
    """The fence after a group is settled: the intent becomes a receipt, or is void; links wait for their deletion."""
    if pending is not None:
        return fence.promoted(record) if committed else fence.with_pending(record, None)
    if not committed:
        return record
    links = [
        Tombstone(name=name, kind=TombstoneKind.LINKED, since=now) for name in others if (directory / name).is_symlink()
    ]
    return fence.with_tombstones(record, links)


def put_link(directory: Path, name: str, source: Path) -> None:
    """Replace the segment `name` by a hard link to `source`, atomically."""
    temporary = directory / names.link_name(name)
    fs.unlink_if_present(temporary)
    fs.link(source, temporary)
    fs.rename(temporary, directory / name)
    # rename() between two names of one file does nothing and leaves both.
    fs.unlink_if_present(temporary)


def put_symlink(directory: Path, name: str, target: str) -> None:
    """Replace the segment `name` by a relative symlink to its sibling `target`, atomically."""
    temporary = directory / names.link_name(name)
    fs.unlink_if_present(temporary)
    fs.symlink(target, temporary)
    fs.rename(temporary, directory / name)


def _remove(directory: Path, leftovers: list[str]) -> tuple[str, ...]:
    removed = tuple(name for name in leftovers if fs.unlink_if_present(directory / name))
    if removed:
        fs.sync_directory(directory)
    return removed
