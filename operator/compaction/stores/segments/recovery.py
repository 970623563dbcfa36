"""Settles what a crash left half-done: ours, the design note's, and that of Ra's own compaction.

Rule: only positive evidence finishes a commit, everything else is discarded; both are safe, because the sources of a
group stay regular files until the evidence exists. Idempotent, and itself safe against a crash at any step.

* `a-b-c.compacting` and `a.segment` are the same inode, and the file that the intent names if there is one: committed.
  The remaining links are made, the receipt that the fence holds as intent counts, the name is removed. (Not the link
  count: a hard-link backup has it too, research/ra.md §3.7.)
* otherwise `a-b-c.compacting` is discarded.
* An intent without `.compacting`: committed if `a.segment` is the very file that the intent names (device, inode, size,
  modification time: a restored directory hands out inode numbers anew), else void.
* The commit point is made durable before the first source behind it is replaced.
* Without an intent nobody knows which dead segments were to go with the group. One that is still a file of its own
  hides the output from its first index on: the sources above it stay files as well.
* Ra's marker `a.compaction_group`: see `ra_recovery`. Markers go first: to Ra, a marker without `.compacting` means
  "committed", which loses data (research/ra.md §8, B1).
* Every `.link` is removed: only renamed ones ever mattered.
* `n.clump`: see `clump_recovery`.

Partial files are not touched: their attempts may be alive; the sweeper knows which are not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.api.enums import Ownership
from compaction.exceptions import NotALogDirectoryError
from compaction.stores.segments import clump_moves, clump_recovery, fence, fs, lock, names
from compaction.stores.segments.faults import storage_errors
from compaction.stores.segments.listing import regular_identity, regular_segments, status
from compaction.stores.segments.owner import require_stopped
from compaction.stores.segments.ra_recovery import RaRecovery, settle_marker
from compaction.stores.segments.records import FenceRecord, PendingCommit, Tombstone, TombstoneKind
from compaction.stores.segments.view import is_log_directory

TEMPORARIES: Final = frozenset(
    {fence.TEMPORARY_FILE, lock.TEMPORARY_FILE, clump_moves.TEMPORARY_FILE, clump_recovery.INDEXES_TEMPORARY}
)
"""What an interrupted replacement of a small file leaves."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery did. `finished` and `discarded`: group keys and `.clump` names; `removed`: names of leftovers.

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
        if not is_log_directory(directory):
            return False
        return names.needs_recovery(os.listdir(directory)) or bool(fence.read(directory).intents)


def recover(
    directory: Path,
    *,
    holder: str = "recovery",
    now: float | None = None,
    ownership: Ownership = Ownership.DETECT,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> RecoveryReport:
    """Settle everything half-done in a log directory. Repeating is harmless.

    Raises:
        NotALogDirectoryError: nothing here is a log's, whatever it is named; nothing was touched.
        OwnerRunningError: something is half-done, and the log's owner is not known to be stopped; nothing was touched.
        LockHeldError, LogNotReadableError, LogNotWritableError, StoreIOError, CorruptFenceError
        SegmentLogError: a marker of Ra's own compaction was found, and the log's segments or snapshot cannot be read.
    """
    require_log(directory)
    with storage_errors(directory), lock.hold(directory, holder=holder, timeout=timeout) as held:
        if is_needed(directory):
            require_stopped(directory, ownership)
        return recover_locked(directory, now=now, held=held)


def require_log(directory: Path) -> None:
    """NotALogDirectoryError before anything is locked or removed in a directory that is no log.

    Whatever a crash leaves, a log keeps segments that are files of their own.
    """
    with storage_errors(directory):
        if not is_log_directory(directory):
            reason = "it holds no segment file (NNNNNNNNNNNNNNNN.segment)" if directory.is_dir() else "it is none"
            raise NotALogDirectoryError(str(directory), reason)


def recover_locked(directory: Path, *, now: float | None, held: lock.HeldLock) -> RecoveryReport:
    """As `recover`, for a caller that holds the lock. OSError passes through.

    `held`: asked before each group is settled, and before the fence is replaced. `now`: epoch seconds; None: the file
    system's clock, asked when the names have been replaced, which may take long.
    """
    found = sorted(os.listdir(directory))
    intents = fence.read(directory).intents
    if not names.needs_recovery(found) and not intents:
        # Only temporaries of interrupted replacements can be left: the files themselves are whole.
        return RecoveryReport(removed=_remove(directory, [n for n in found if n in TEMPORARIES]))
    ra = tuple(settle_marker(directory, name) for name in found if names.parse_ra_marker(name))
    # By file, not by group: one group of one segment may have left our name and that of Ra or of the design note.
    files = [name for name in found if names.parse_compacting(name) and status(directory / name) is not None]
    files += sorted({names.compacting_name(intent.group) for intent in intents}.difference(files))
    outcomes: dict[str, bool] = {}
    for name in files:
        if group := names.parse_compacting(name):
            committed = _settle_group(directory, group, directory / name, now=now, held=held)
            outcomes[group] = committed or outcomes.get(group, False)
    for name in found:
        if names.parse_clump(name):
            outcomes[name] = clump_recovery.settle_clump(directory, name, held=held)
    leftovers = [n for n in found if names.parse_link(n) or n in TEMPORARIES]
    return RecoveryReport(
        finished=tuple(group for group, committed in outcomes.items() if committed),
        discarded=tuple(group for group, committed in outcomes.items() if not committed),
        removed=_remove(directory, leftovers),
        ra=ra,
    )


def _settle_group(directory: Path, group: str, compacting: Path, *, now: float | None, held: lock.HeldLock) -> bool:
    """Finish (True) or discard (False) one group, by its `.compacting` file, which may be gone."""
    held.verify()
    lowest, *others = names.group_sources(group)
    record = fence.read(directory)
    # By file name: a group of one has another name of Ra's as well, and the intent is of ours.
    intent = next((i for i in record.intents if names.compacting_name(i.group) == compacting.name), None)
    if intent is not None:
        # The intent also knows the dead segments between the sources.
        others = list(intent.receipt.linked)
    committed = _committed(compacting, directory / lowest, intent)
    made = _finish_links(directory, lowest, others) if committed else ()
    linked_at = held.now() if now is None else now
    settled = _with_outcome(
        record, intent, committed=committed, directory=directory, made=made, others=others, now=linked_at
    )
    if settled != record:
        # What was begun can always be recorded: commits leave this room.
        fence.write(directory, settled, held=held, spare=0)
    if fs.unlink_if_present(compacting):
        fs.sync_directory(directory)
    return committed


def _committed(compacting: Path, lowest: Path, intent: PendingCommit | None) -> bool:
    """Positive evidence that the group's output is in place."""
    output, candidate = regular_identity(lowest), regular_identity(compacting)
    if output is None:
        return False
    if candidate is None:
        return intent is not None and output == intent.identity
    if (candidate.device, candidate.inode) != (output.device, output.inode):
        return False
    # Not the device: some file systems get another number at each mount, and the two names agree on it already.
    return intent is None or (candidate.inode, candidate.size, candidate.mtime_ns) == (
        intent.identity.inode,
        intent.identity.size,
        intent.identity.mtime_ns,
    )


def _finish_links(directory: Path, lowest: str, others: list[str]) -> tuple[str, ...]:
    """Replace what is left of the higher names, in ascending order; the names that were replaced now.

    It ends below a segment that is none of the group's: that one hides the output, so what lies above must stay.
    """
    regular = [name for name in regular_segments(directory) if lowest < name]
    strange = next((name for name in regular if name not in others), None)
    # A missing name was swept already; a symlink was made already, or is the owner's.
    replaced = tuple(name for name in regular if name in others and (strange is None or name < strange))
    if replaced:
        # Durable first: after a power cut the lowest name must not be the old file again while these are links to it.
        fs.sync_file(directory / lowest)
        fs.sync_directory(directory)
    for name in replaced:
        put_symlink(directory, name, lowest)
    fs.sync_directory(directory)
    return replaced


def _with_outcome(
    record: FenceRecord,
    intent: PendingCommit | None,
    *,
    committed: bool,
    directory: Path,
    made: tuple[str, ...],
    others: list[str],
    now: float,
) -> FenceRecord:
    """The fence after a group is settled: the intent becomes a receipt, or is void; links wait for their deletion.

    Their grace begins now: until now they were files of their own to whoever reads the log.
    """
    if intent is not None:
        return (
            fence.promoted(record, intent, linked_at=now) if committed else fence.without_intent(record, intent.group)
        )
    if not committed:
        return record
    links = [
        Tombstone(name=name, kind=TombstoneKind.LINKED, since=now) for name in others if (directory / name).is_symlink()
    ]
    return fence.with_tombstones(fence.without_tombstones(record, made), links)


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
