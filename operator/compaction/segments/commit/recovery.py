"""Settles what a crash left half-done: ours, the design note's, and that of Ra's own compaction.

Rule: only positive evidence about every single file finishes a commit, or removes anything; between the crash and now
the log's owner, another compactor or a restore may have acted. What is evidence, `evidence` says: of each name that it
would replace, and of each file that it would remove. Idempotent, and itself safe against a crash at any step.

* A commit whose output is in place is finished up to the first name that is no longer the file it read; that one and
  everything above it stay. Its receipt then names what was replaced, and the fence's intent becomes that receipt.
* Otherwise the intent is void, and `a-b-c.compacting` is removed unless it alone holds something live: then it stays,
  and the log is reported until a user has repaired it.
* The commit point is made durable before the first source behind it is replaced.
* Ra's marker `a.compaction_group`: see below. Markers go first: to Ra, a marker without `.compacting` means
  "committed", which loses data (docs/design/segment-commit.md#windows-of-the-reference, W1).
* Every `.link` is removed: only renamed ones ever mattered, and what it is a name of has another one.
* `n.clump`: see `clump/clump_recovery.py`.

Partial files are not touched unless the caller says so: their attempts may be alive; the sweeper knows which are not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.clump import clump_recovery as clump_recovery
from compaction.segments.clump import moves
from compaction.segments.commit import evidence, fence, records
from compaction.segments.commit.evidence import (
    CommitVerdict,
    SegmentReplacement,
    StayingName,
    Stays,
    judge,
    why_partial_needed,
)
from compaction.segments.commit.records import FenceRecord, PendingCommit, SegmentTombstone, TombstoneKind
from compaction.segments.directory import fs, lock
from compaction.segments.directory.fs import links_of, status, storage_errors
from compaction.segments.directory.owner import require_stopped
from compaction.segments.errors import NotALogDirectoryError, RecoveryBlockedError, SegmentLogError, TermFormatError
from compaction.segments.format import etf, names
from compaction.segments.format.segment_file import pread_up_to
from compaction.segments.model import SEGMENT_NAME
from compaction.segments.reading.view import is_log_directory, open_log

# Half-done work of Ra's own major compaction: `L.compaction_group` markers.
#
# Its steps: docs/design/segment-commit.md#the-protocol-of-ra.
#
# Ra infers "the compacted file was renamed over L" from the absence of `L.compacting`, which is wrong when it died
# before creating it (B1), and cannot start with two markers (B4). Here the leader's CONTENT decides: the other
# members become symlinks only if the leader holds every live entry of each of them. Without that proof they stay
# regular files, which is always safe: a reader takes from the leader what lies below the next member's first index,
# and the rest from the members. A member that alone holds an entry which newer files hide stays as well, whatever the
# leader holds. The leader is durable before a member goes. The marker is always removed, first, because it is what Ra
# draws the wrong conclusion from.

_MAX_MARKER_BYTES = 1 << 20


class RaOutcome(StrEnum):
    """The outcome of a half-done compaction of Ra."""

    ABORTED = "Aborted"
    """`.compacting` was still there: the members are untouched."""
    FINISHED = "Finished"
    """The leader holds every live entry of the other members: they are symlinks to it now."""
    UNPROVEN = "Unproven"
    """The leader does not, or it is unknown: the members stay files of their own."""
    CLEANED = "Cleaned"
    """A group of one, or a marker that says nothing: only the marker had to go."""


@dataclass(frozen=True, slots=True)
class RaRecovery:
    """One marker: the leading segment, the group's members in the readable part of the marker, and what was done."""

    leader: str
    members: tuple[str, ...]
    outcome: RaOutcome


def settle_marker(directory: Path, marker: str) -> RaRecovery:
    """Settle one marker; the log's lock must be held. OSError passes through.

    The `.compacting` file of an aborted one is left to `recovery`, which removes it if nothing in it is needed.
    """
    leader = names.parse_ra_marker(marker)
    if leader is None:
        raise ValueError(f"{marker!r} is not a marker's name")
    members = _read_marker(directory / marker, leader)
    compacting = directory / names.ra_compacting_name(leader)
    aborted = status(compacting) is not None
    # `.compacting` still there proves that the rename did not happen; its absence proves nothing, so content decides.
    proven = () if aborted or len(members) < 2 else _covered(directory, leader, members)
    if proven:
        # Ra syncs neither its rename nor, always, what it renamed; and the members are the only other copy.
        fs.sync_file(directory / leader)
        fs.sync_directory(directory)
    for item in proven:
        if not records.put_symlink(directory, item.segment, leader, expected=item.identity):
            break
    if proven:
        fs.sync_directory(directory)
    fs.unlink_if_present(directory / marker)
    # Durable before `.compacting` goes: the marker alone would tell Ra that the group was committed.
    fs.sync_directory(directory)
    return RaRecovery(leader=leader, members=members, outcome=_outcome(directory, leader, members, aborted=aborted))


def _outcome(directory: Path, leader: str, members: tuple[str, ...], *, aborted: bool) -> RaOutcome:
    if aborted:
        return RaOutcome.ABORTED
    if len(members) < 2:
        return RaOutcome.CLEANED
    linked = all((directory / name).is_symlink() for name in members if name != leader)
    return RaOutcome.FINISHED if linked else RaOutcome.UNPROVEN


def _read_marker(path: Path, leader: str) -> tuple[str, ...]:
    """The members a marker lists, ascending; empty when it is torn, foreign, or lists what it cannot."""
    try:
        term = etf.decode(_marker_bytes(path))
    except TermFormatError:
        return ()
    if not isinstance(term, list) or not all(isinstance(item, bytes) for item in term):
        return ()
    members = [os.fsdecode(item) for item in term if isinstance(item, bytes)]
    if any(SEGMENT_NAME.fullmatch(name) is None for name in members) or leader != min(members, default=""):
        return ()
    return tuple(sorted(set(members)))


def _marker_bytes(path: Path) -> bytes:
    """The content of a marker; nothing of what is no file, or larger than any marker. Never waits for a FIFO."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        # A marker is a file of its own: a link is refused by O_NOFOLLOW and says nothing.
        if path.is_symlink():
            return b""
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_MARKER_BYTES:
            return b""
        return pread_up_to(fd, found.st_size, 0)
    finally:
        os.close(fd)


def _covered(directory: Path, leader: str, members: tuple[str, ...]) -> tuple[SegmentReplacement, ...]:
    """The members that can become symlinks: all that are still regular files, if the leader covers them; else none.

    All or nothing, and nothing when the live set is unknown.
    """
    try:
        log = open_log(directory)
    except SegmentLogError:
        # A log that cannot be read proves nothing, so the members stay files of their own.
        return ()
    if log.live is None:
        return ()
    regular = [name for name in members if name != leader and name not in log.links and (directory / name).exists()]
    present = {segment.name for segment in log.segments}
    between = [name for name in present if leader < name <= members[-1] and name not in members]
    if between or not all(evidence.covers(log, leader, name) for name in regular):
        return ()
    return tuple(SegmentReplacement(name, log.segment(name).identity) for name in regular)


TEMPORARIES: Final = frozenset(
    {fence.TEMPORARY_FILE, lock.TEMPORARY_FILE, moves.TEMPORARY_FILE, clump_recovery.INDEXES_TEMPORARY}
)
"""What an interrupted replacement of a small file leaves."""


@dataclass(frozen=True, slots=True)
class Stayed:
    """A segment that a commit was to replace by a link, and that stays a file of its own. `commit`: its group's key."""

    commit: str
    segment: str
    reason: Stays


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of a half-done compaction that recovery must not remove, and why: a user has to check it."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The actions of a recovery.

    `finished` and `discarded`: group keys and `.clump` names; `removed`: names of leftovers.

    `ra`: one entry per marker of Ra's own compaction. `stayed`: segments that finished commits left alone. `kept`: what
    could not be settled; the log needs recovery still.
    """

    finished: tuple[str, ...] = ()
    discarded: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    ra: tuple[RaRecovery, ...] = ()
    stayed: tuple[Stayed, ...] = ()
    kept: tuple[Kept, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.finished or self.discarded or self.removed or self.ra)

    def require_settled(self, directory: Path) -> None:
        """RecoveryBlockedError if something could not be settled: then the log is not compacted further."""
        for item in self.kept:
            raise RecoveryBlockedError(str(directory / item.name), item.reason)


def is_needed(directory: Path) -> bool:
    """Return whether `recover` would find something to do.

    False also while a commit of a living process is under way and done before the answer is read: ask again, or just
    recover.
    """
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
    discard_partials: bool = False,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> RecoveryReport:
    """Settle everything half-done in a log directory. Repeating is harmless.

    `discard_partials`: outputs of attempts go too, but for one that alone holds something live. An attempt that still
    runs then fails, and may be repeated.

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
        done = recover_locked(directory, now=now, held=held)
        return _without_partials(directory, done) if discard_partials else done


def _without_partials(directory: Path, done: RecoveryReport) -> RecoveryReport:
    partials = sorted(filter(names.parse_partial, os.listdir(directory)))
    kept = {name: reason for name in partials if (reason := why_partial_needed(directory, name))}
    removed = _remove(directory, [name for name in partials if name not in kept])
    still = tuple(Kept(name, reason) for name, reason in kept.items())
    return replace(done, removed=(*done.removed, *removed), kept=(*done.kept, *still))


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
    settling = _Settling(directory, now, held)
    ra = tuple(settle_marker(directory, name) for name in found if names.parse_ra_marker(name))
    for name in _files(directory, found, intents):
        settling.group(name)
    for name in found:
        if names.parse_clump(name):
            settling.clump(name)
    leftovers = [n for n in found if names.parse_link(n) or n in TEMPORARIES]
    return RecoveryReport(
        finished=tuple(name for name, committed in settling.outcomes.items() if committed),
        discarded=tuple(name for name, committed in settling.outcomes.items() if not committed),
        removed=_remove(directory, leftovers),
        ra=ra,
        stayed=tuple(settling.stayed),
        kept=tuple(settling.kept),
    )


def _files(directory: Path, found: Sequence[str], intents: Sequence[PendingCommit]) -> list[str]:
    """The `.compacting` names to settle, those that only an intent speaks of behind those that are there.

    By file, not by group: one group of one segment may have left our name and that of Ra or of the design note.
    """
    files = [name for name in found if names.parse_compacting(name) and status(directory / name) is not None]
    return files + sorted({names.compacting_name(intent.group) for intent in intents}.difference(files))


@dataclass(slots=True)
class _Settling:
    """One recovery under way. `outcomes`: True for what was finished, False for what was discarded."""

    directory: Path
    now: float | None
    held: lock.HeldLock
    outcomes: dict[str, bool] = field(default_factory=dict)
    stayed: list[Stayed] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)

    def group(self, name: str) -> None:
        """Finish or discard one group, by its `.compacting` file, which may be gone."""
        self.held.verify()
        group = names.parse_compacting(name)
        assert group is not None
        record = fence.read(self.directory)
        intent = _intent_of(record, name)
        verdict = judge(self.directory, name, intent)
        # Kept, not discarded: the file alone holds something live. A committed one is linked all the same, which loses
        # nothing.
        if verdict.needed:
            self.kept.append(Kept(name, verdict.needed))
            if not verdict.committed:
                return
        if verdict.committed:
            verdict = _finish_links(self.directory, names.group_sources(group)[0], verdict)
            self.stayed += [Stayed(group, stay.segment, stay.reason) for stay in verdict.stays]
        linked_at = self.held.now() if self.now is None else self.now
        settled = _with_outcome(self.directory, record, intent, verdict, now=linked_at)
        if settled != record:
            # What was begun can always be recorded: commits leave this room.
            fence.write(self.directory, settled, held=self.held, spare=0)
        if not verdict.needed and fs.unlink_if_present(self.directory / name):
            fs.sync_directory(self.directory)
        self.outcomes[group] = verdict.committed or self.outcomes.get(group, False)

    def clump(self, name: str) -> None:
        """Finish or discard the commit of one segment of re-written entries."""
        settled = clump_recovery.settle_clump(self.directory, name, held=self.held)
        if isinstance(settled, str):
            self.kept.append(Kept(name, settled))
        else:
            self.outcomes[name] = settled


def _intent_of(record: FenceRecord, compacting: str) -> PendingCommit | None:
    """By file name: a group of one has another name of Ra's as well, and the intent is of ours."""
    return next((i for i in record.intents if names.compacting_name(i.group) == compacting), None)


def outlook(directory: Path) -> tuple[RecoveryReport, ...]:
    """Return what `recover` would find out about each half-done group commit, without a change: one report per commit.

    Raises:
        LogNotReadableError, StoreIOError, CorruptFenceError
    """
    with storage_errors(directory):
        record, found = fence.read(directory), sorted(os.listdir(directory))
        reports = []
        for name in _files(directory, found, record.intents):
            group = names.parse_compacting(name)
            assert group is not None
            verdict = judge(directory, name, _intent_of(record, name))
            kept = (Kept(name, verdict.needed),) if verdict.needed else ()
            stayed = tuple(Stayed(group, stay.segment, stay.reason) for stay in verdict.stays)
            if verdict.committed:
                reports.append(RecoveryReport(finished=(group,), stayed=stayed, kept=kept))
            else:
                reports.append(RecoveryReport(discarded=() if kept else (group,), kept=kept))
        return tuple(reports)


def whole_outlook(directory: Path, *, discard_partials: bool = False) -> tuple[RecoveryReport, tuple[str, ...]]:
    """Return what `recover` would do, in one report, without a change; and the `.clump` files, whose end is known only
    when they are settled.

    Raises:
        NotALogDirectoryError, LogNotReadableError, StoreIOError, CorruptFenceError
    """
    require_log(directory)
    commits = outlook(directory)
    with storage_errors(directory):
        found = sorted(os.listdir(directory))
        partials = [name for name in found if discard_partials and names.parse_partial(name)]
        needed = {name: reason for name in partials if (reason := why_partial_needed(directory, name))}
        leftovers = [n for n in found if names.parse_link(n) or n in TEMPORARIES]
        report = RecoveryReport(
            finished=tuple(group for item in commits for group in item.finished),
            discarded=tuple(group for item in commits for group in item.discarded),
            removed=(*leftovers, *(name for name in partials if name not in needed)),
            ra=tuple(_marker_outlook(directory, name) for name in found if names.parse_ra_marker(name)),
            stayed=tuple(stay for item in commits for stay in item.stayed),
            kept=(
                *(kept for item in commits for kept in item.kept),
                *(Kept(name, reason) for name, reason in needed.items()),
            ),
        )
        return report, tuple(name for name in found if names.parse_clump(name))


def _marker_outlook(directory: Path, marker: str) -> RaRecovery:
    """As `settle_marker`, without a change."""
    leader = names.parse_ra_marker(marker)
    assert leader is not None
    members = _read_marker(directory / marker, leader)
    aborted = status(directory / names.ra_compacting_name(leader)) is not None
    covered = not aborted and len(members) > 1 and bool(_covered(directory, leader, members))
    outcome = RaOutcome.FINISHED if covered else _outcome(directory, leader, members, aborted=aborted)
    return RaRecovery(leader=leader, members=members, outcome=outcome)


def _finish_links(directory: Path, lowest: str, verdict: CommitVerdict) -> CommitVerdict:
    """Replace the names of the verdict, in ascending order; the verdict as it came true.

    It ends below the first name that changed since the verdict.
    """
    if verdict.replace:
        # Durable first: after a power cut the lowest name must not be the old file again while these are links to it.
        fs.sync_file(directory / lowest)
        fs.sync_directory(directory)
    for position, item in enumerate(verdict.replace):
        if not records.put_symlink(directory, item.segment, lowest, expected=item.identity):
            late = [StayingName(left.segment, Stays.CHANGED) for left in verdict.replace[position:]]
            gone = {left.segment for left in late}
            linked = tuple(name for name in verdict.linked if name not in gone)
            verdict = replace(verdict, linked=linked, stays=(*late, *verdict.stays))
            break
    fs.sync_directory(directory)
    return verdict


def _with_outcome(
    directory: Path, record: FenceRecord, intent: PendingCommit | None, verdict: CommitVerdict, *, now: float
) -> FenceRecord:
    """The fence after a group is settled: the intent becomes a receipt, or is void; links wait for their deletion.

    Their grace begins now: until now they were files of their own to readers of the log.
    """
    links = links_of(directory, verdict.linked)
    if intent is not None:
        if not verdict.committed:
            return fence.without_intent(record, intent.group)
        return fence.promoted(record, intent.cut_short(verdict.linked), linked_at=now, links=links)
    if not verdict.committed:
        return record
    made = [item.segment for item in verdict.replace if item.segment in verdict.linked]
    marks = [
        SegmentTombstone(name=name, kind=TombstoneKind.LINKED, since=now, identity=links.get(name))
        for name in verdict.linked
    ]
    return fence.with_tombstones(fence.without_tombstones(record, made), marks)


def _remove(directory: Path, leftovers: list[str]) -> tuple[str, ...]:
    removed = tuple(name for name in leftovers if fs.unlink_if_present(directory / name))
    if removed:
        fs.sync_directory(directory)
    return removed
