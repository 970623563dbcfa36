"""Deletes what was replaced, after the grace: old names, dead segments, outputs of attempts that never committed.

Invariants: a name is deleted only if its tombstone is older than the grace AND it still is what the tombstone says; a
dead segment is checked again against the log as it is now; never the newest segment; deletions go from old to new, so
that a file which hides an older one's dead records outlives it; a tombstone is dropped only after the deletion is
durable and confirmed; what a running attempt may still be writing stays. Idempotent.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Unpack

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.clump.moves import load_moves, moves_files
from compaction.segments.commit import fence, recovery
from compaction.segments.commit.records import FenceRecord, SegmentTombstone, TombstoneKind
from compaction.segments.directory import fs, lock
from compaction.segments.directory.fs import links_of, segment_links, status, storage_errors
from compaction.segments.directory.owner import require_stopped
from compaction.segments.errors import CorruptMovesError, LiveEntriesMissingError, LiveSetUnknownError
from compaction.segments.format.names import clump_name, job_key, parse_partial
from compaction.segments.model import FileIdentity
from compaction.segments.planning.unreferenced import DeadSegment, ToldOfLive, dead_segments
from compaction.segments.snapshot.directories import DATA_FILE, newest_snapshot

UNKNOWN_ATTEMPT_SECONDS: Final = 600.0
"""Age below which the output of a claimed attempt stays when the caller does not know which attempts are running."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deleted name; `bytes` is 0 for a symlink."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """A name whose grace is over but which must stay for now."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class SweepReport:
    """`waiting`: tombstones that remain; `next_due`: when the next of them is due, None when none is; `now`: when the
    sweep took place. Both in epoch seconds, by the clock of the log's file system.
    """

    deleted: tuple[Deleted, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    waiting: int = 0
    next_due: float | None = None
    now: float = 0.0

    @property
    def bytes_reclaimed(self) -> int:
        return sum(item.bytes for item in self.deleted)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The decisions about names whose grace is over."""

    delete: tuple[Deleted, ...] = ()
    forget: tuple[str, ...] = ()
    blocked: tuple[Blocked, ...] = ()


def sweep(
    directory: Path,
    *,
    now: float | None = None,
    grace_seconds: float,
    active: frozenset[tuple[str, int]] | None = None,
    ownership: Ownership = Ownership.DETECT,
    holder: str = "sweeper",
    timeout: float = lock.DEFAULT_TIMEOUT,
    **told: Unpack[ToldOfLive],
) -> SweepReport:
    """Delete what is due. `active`: (job, token) of the attempts that may be writing now; None: unknown. `told`: see
    `dead_segments`.

    Raises:
        NotALogDirectoryError, LockHeldError, LogNotReadableError, LogNotWritableError, StoreIOError, CorruptFenceError
        OwnerRunningError: the log's owner is not known to be stopped; nothing is deleted.
        LockLostError: the lock's file was deleted meanwhile; nothing is deleted after that.
        SegmentLogError: dead segments are due, and the log cannot be read to check them again.
    """
    recovery.require_log(directory)
    with storage_errors(directory), lock.hold(directory, holder=holder, timeout=timeout) as held:
        require_stopped(directory, ownership)
        recovery.recover_locked(directory, now=now, held=held)
        now = held.now() if now is None else now
        record = _caught_up(directory, fence.read(directory), now, held=held)
        verdicts, leftovers = _judged(
            directory,
            record,
            partial(dead_segments, directory, **told),
            active=active,
            now=now,
            grace_seconds=grace_seconds,
        )
        deleted = delete(directory, (*verdicts.delete, *leftovers), held=held)
        record = settle(directory, record, verdicts, held=held)
        left = [t.since + grace_seconds for t in record.tombstones]
        return SweepReport(
            deleted=deleted,
            blocked=verdicts.blocked,
            waiting=len(left),
            next_due=min(left) if left else None,
            now=now,
        )


@dataclass(frozen=True, slots=True)
class SweepOutlook:
    """What a sweep now would do. `delete`: names that would go; `waits`: tombstones that would remain, by name."""

    delete: tuple[Deleted, ...]
    blocked: tuple[Blocked, ...]
    waits: tuple[SegmentTombstone, ...]


def outlook(
    directory: Path,
    *,
    now: float,
    grace_seconds: float,
    **told: Unpack[ToldOfLive],
) -> SweepOutlook:
    """Return what `sweep` would delete, keep and leave waiting, without a change and without the lock: what is
    half-done now is taken as it is.

    Raises:
        NotALogDirectoryError, LogNotReadableError, StoreIOError, CorruptFenceError
        SegmentLogError: as `sweep`.
    """
    recovery.require_log(directory)
    with storage_errors(directory):
        record = _begun(_adopt_links(directory, fence.read(directory), now), now)
        verdicts, leftovers = _judged(
            directory,
            record,
            partial(dead_segments, directory, **told),
            active=None,
            now=now,
            grace_seconds=grace_seconds,
        )
    gone = {*verdicts.forget, *(item.name for item in verdicts.delete)}
    waits = sorted((t for t in record.tombstones if t.name not in gone), key=lambda t: t.name)
    return SweepOutlook((*verdicts.delete, *leftovers), verdicts.blocked, tuple(waits))


def _judged(
    directory: Path,
    record: FenceRecord,
    read_dead: Callable[[], dict[str, DeadSegment]],
    *,
    active: frozenset[tuple[str, int]] | None,
    now: float,
    grace_seconds: float,
) -> tuple[Verdicts, tuple[Deleted, ...]]:
    """Return the verdicts about what is due, and the leftovers without a tombstone that can go."""
    due = [t for t in record.tombstones if t.since + grace_seconds <= now]
    partials = _orphan_partials(directory, record, active=active, now=now, grace_seconds=grace_seconds)
    leftovers = (*partials, *_obsolete_maps(directory, now=now, grace_seconds=grace_seconds))
    dead: dict[str, DeadSegment] = {}
    unknown = ""
    # Names are links: whatever becomes of the log, no entry goes with one.
    if leftovers or any(t.kind is TombstoneKind.UNREFERENCED for t in due):
        dead, unknown = _dead_now(read_dead)
    verdicts = judge(directory, due, dead, unknown)
    if unknown and leftovers:
        kept = tuple(Blocked(item.name, unknown) for item in leftovers)
        verdicts, leftovers = replace(verdicts, blocked=(*verdicts.blocked, *kept)), ()
    return verdicts, leftovers


def _caught_up(directory: Path, record: FenceRecord, now: float, *, held: lock.HeldLock) -> FenceRecord:
    """The record after what it cannot know: links that others made, and a clock that has been set back."""
    caught_up = _begun(_adopt_links(directory, record, now), now)
    if caught_up != record:
        fence.write(directory, caught_up, held=held)
    return caught_up


def _begun(record: FenceRecord, now: float) -> FenceRecord:
    """Nothing was marked in the future: the clock was ahead then, and what it marked would wait until it is there
    again. Its grace begins now.
    """
    if all(t.since <= now for t in record.tombstones):
        return record
    return replace(record, tombstones=tuple(replace(t, since=min(t.since, now)) for t in record.tombstones))


def _adopt_links(directory: Path, record: FenceRecord, now: float) -> FenceRecord:
    """Symlinks without a tombstone (Ra's own, or from before the fence) begin their grace now, dangling ones too.

    So do those that are not the link which was marked: another process has replaced a file under that name since.
    A link that dangles here may not dangle for the owner, who may see the directory under another path.
    """
    known = {t.name: t.identity for t in record.tombstones if t.kind is TombstoneKind.LINKED}
    new = [
        SegmentTombstone(name=name, kind=TombstoneKind.LINKED, since=now, identity=identity)
        for name, identity in links_of(directory, segment_links(directory)).items()
        if name not in known or known[name] not in (None, identity)
    ]
    if not new:
        return record
    return fence.with_tombstones(fence.without_tombstones(record, (t.name for t in new)), new)


def _dead_now(read: Callable[[], dict[str, DeadSegment]]) -> tuple[dict[str, DeadSegment], str]:
    """Return the segments that are dead in the log as it is now, or the reason why they are unknown."""
    try:
        found = read()
    except LiveSetUnknownError:
        return {}, "the snapshot does not say what is live (its `indexes` file is missing)"
    except LiveEntriesMissingError as error:
        return {}, error.reason
    return found, ""


def judge(directory: Path, due: list[SegmentTombstone], dead: dict[str, DeadSegment], unknown: str = "") -> Verdicts:
    """Return the names to delete, the tombstones that no longer stand for anything, and the names that must wait.

    `unknown`: the reason why the dead segments are not known.
    """
    delete: list[Deleted] = []
    forget: list[str] = []
    blocked: list[Blocked] = []
    for tombstone in sorted(due, key=lambda t: t.name):
        name = tombstone.name
        found = status(directory / name)
        if found is None:
            forget.append(name)
        elif tombstone.kind is TombstoneKind.LINKED:
            still = stat.S_ISLNK(found.st_mode) and tombstone.identity in (None, FileIdentity.of(found))
            # A regular file, or another link, has taken the name since the mark: it is not what the tombstone stands
            # for.
            (delete.append(Deleted(name, 0)) if still else forget.append(name))
        elif FileIdentity.of(found) != tombstone.identity:
            forget.append(name)
        elif unknown:
            blocked.append(Blocked(name, unknown))
        elif name not in dead:
            blocked.append(Blocked(name, "something in it is needed, or it became the newest segment"))
        else:
            delete.append(Deleted(name, found.st_size))
    return Verdicts(delete=tuple(delete), forget=tuple(forget), blocked=tuple(blocked))


def _orphan_partials(
    directory: Path,
    record: FenceRecord,
    *,
    active: frozenset[tuple[str, int]] | None,
    now: float,
    grace_seconds: float,
) -> list[Deleted]:
    """Outputs of attempts that cannot commit any more, or have not been touched for the grace and are not active."""
    running = {(job_key(job), token) for job, token in active or ()}
    # A grace is about readers of old names. It says nothing about writers that the caller does not know of.
    untouched = max(grace_seconds, UNKNOWN_ATTEMPT_SECONDS) if active is None else grace_seconds
    claimed = {(job_key(job), record.claimed(job)) for job in record.jobs}
    orphans: list[Deleted] = []
    for name in sorted(os.listdir(directory)):
        parsed = parse_partial(name)
        found = status(directory / name) if parsed else None
        if parsed is None or found is None or (parsed.job, parsed.token) in running:
            continue
        # An attempt with another token than the claimed one can never commit, however busy it is: its file need not
        # wait.
        if (parsed.job, parsed.token) not in claimed or found.st_mtime + untouched <= now:
            orphans.append(Deleted(name, found.st_size))
    return orphans


def _obsolete_maps(directory: Path, *, now: float, grace_seconds: float) -> list[Deleted]:
    """Maps of moved entries that only an older snapshot than the one in force needs, for as long as the grace.

    No tombstone: no reader finds data by them any more, and what an owner does not read it does not miss. A map that
    cannot be read stays.
    """
    names = moves_files(directory)
    newest = newest_snapshot(directory) if names else None
    data = status(newest.path / DATA_FILE) if newest else None
    if newest is None or data is None or data.st_mtime + grace_seconds > now:
        return []
    obsolete: list[Deleted] = []
    for name in names:
        with suppress(CorruptMovesError, FileNotFoundError):
            receipt = load_moves(directory / name).receipt
            # While its `.clump` stays, nobody knows whether the map is in force; it is the evidence.
            unsettled = bool(receipt.output) and status(directory / clump_name(receipt.output)) is not None
            if receipt.last <= newest.index and not unsettled:
                obsolete.append(Deleted(name, os.stat(directory / name).st_size))
    return obsolete


def delete(directory: Path, items: tuple[Deleted, ...], *, held: lock.HeldLock) -> tuple[Deleted, ...]:
    """Delete what was judged, durably; returns what was there. OSError passes through. LockLostError."""
    deleted: list[Deleted] = []
    for item in items:
        # What was judged is only true for as long as nobody else may commit.
        held.verify()
        if fs.unlink_if_present(directory / item.name):
            deleted.append(item)
    if deleted:
        fs.sync_directory(directory)
    return tuple(deleted)


def settle(directory: Path, record: FenceRecord, verdicts: Verdicts, *, held: lock.HeldLock) -> FenceRecord:
    """Drop the tombstones of what is confirmed to be gone, or no longer is what they stood for."""
    gone = [item.name for item in verdicts.delete if status(directory / item.name) is None]
    settled = fence.without_tombstones(record, (*gone, *verdicts.forget))
    if settled != record:
        # A name found missing may have been removed by a sweep that died before its sync.
        fs.sync_directory(directory)
        fence.write(directory, settled, held=held)
    return settled
