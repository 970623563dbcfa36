"""Re-writing sparse live entries at the head of a log whose owner is stopped: on request, never by a policy.

What must hold before a single entry is appended from outside, and why (docs/adr/0100):

* the owner is stopped, and the caller says so: its list of segments and its last index are in its memory;
* nothing of the log waits in a write-ahead log beside it, or the owner's next start would write other entries under the
  very indexes that the copies have;
* the log has one member: the others of a cluster would hold other entries, or none, at those indexes;
* the owner reads the maps (`moves`) when it opens the log: its snapshot still speaks of the old indexes, and the
  copies, which lie above the snapshot, are no commands to be applied again.

A running owner appends the copies itself: see `owner`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.clump.clump_commit import ClumpTask, commit_clumps, copy_clumps, task_of
from compaction.segments.clump.clump_plan import ClumpOptions, ClumpPlan, plan_clump
from compaction.segments.clump.moves import MoveReceipt, load_moves, moves_files
from compaction.segments.commit import recovery
from compaction.segments.directory import lock
from compaction.segments.directory.fs import storage_errors
from compaction.segments.directory.owner import (
    WAL_SUFFIX,
    Marker,
    Writers,
    doubt_of,
    hazard_in,
    is_ra_directory,
    look_for_owner,
)
from compaction.segments.errors import ClumpRefusedError, LockHeldError
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.snapshot.directories import read_origin
from compaction.storage.pace import Pace

_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ClumpResult:
    """The plan of a run and the receipts of its commits, oldest first."""

    plan: ClumpPlan
    receipts: tuple[MoveReceipt, ...]


def clump_log(
    directory: Path,
    *,
    request: ClumpOptions,
    limits: SegmentLimits,
    owner_stopped: bool,
    job: str,
    token: int,
    holder: str,
    bytes_per_second: int | None = None,
    now: float | None = None,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> ClumpResult:
    """Recover, plan, copy, verify and commit. The token must be claimed (`fence.claim`).

    What an earlier attempt of the job committed counts against its bytes. `bytes_per_second`: what copying may read
    and write, reading back included. Raises as `require_stopped_owner`, `plan_clump`, `copy_clumps` and
    `commit_clumps`; what was committed before stays.
    """
    prepared = prepare_clump(
        directory,
        request=request,
        limits=limits,
        owner_stopped=owner_stopped,
        job=job,
        token=token,
        timeout=timeout,
    )
    copied = copy_clumps(prepared.task, pace=Pace(bytes_per_second=bytes_per_second))
    receipts = commit_clumps(directory, job=job, token=token, clumps=copied, holder=holder, now=now, timeout=timeout)
    return ClumpResult(plan=prepared.plan, receipts=receipts)


@dataclass(frozen=True, slots=True)
class PreparedClump:
    """A plan, the task that carries it out, and what the job has committed before."""

    plan: ClumpPlan
    task: ClumpTask
    earlier: tuple[MoveReceipt, ...]


def prepare_clump(
    directory: Path,
    *,
    request: ClumpOptions,
    limits: SegmentLimits,
    owner_stopped: bool,
    job: str,
    token: int,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> PreparedClump:
    """Settle what a crash left, check that the log may be appended to from outside, and plan."""
    ownership = Ownership.STOPPED if owner_stopped else Ownership.DETECT
    recovery.recover(directory, holder=job, ownership=ownership, timeout=timeout).require_settled(directory)
    earlier = receipts_of(directory, job)
    with storage_errors(directory):
        log = open_log(directory)
        require_stopped_owner(log, owner_stopped=owner_stopped, owner_reads_maps=request.owner_reads_maps)
    left = request.max_bytes - sum(receipt.payload_bytes for receipt in earlier)
    plan = plan_clump(log, replace(request, max_bytes=max(1, left)), limits)
    return PreparedClump(plan=plan, task=task_of(log, plan, job=job, token=token), earlier=earlier)


def receipts_of(directory: Path, job: str) -> tuple[MoveReceipt, ...]:
    """Return the receipts of a job's commits, oldest first, from the maps that have not been swept."""
    receipts = (load_moves(directory / name).receipt for name in moves_files(directory))
    return tuple(receipt for receipt in receipts if receipt.job == job)


def require_stopped_owner(log: LogState, *, owner_stopped: bool, owner_reads_maps: bool = False) -> None:
    """ClumpRefusedError unless entries may be appended to the log from outside. `owner_reads_maps`: its owner, though
    the files are of a Ra server, finds entries under their new indexes. OSError passes through.
    """
    path = str(log.directory)
    if not owner_stopped:
        raise ClumpRefusedError(
            path,
            "the log's owner is not known to be stopped. Stop it, then confirm it with --owner-stopped "
            "(in a job: ownerStopped: true); a running owner has to append the copies itself",
        )
    signs = look_for_owner(log.directory)
    if signs.writers is Writers.SOME:
        # Not overruled by what somebody says: what an owner appends next would take the copies' indexes.
        raise ClumpRefusedError(path, doubt_of(signs))
    if is_ra_directory(signs.system) and not owner_reads_maps:
        raise ClumpRefusedError(
            path,
            "its owner is a Ra server, which does not read the maps of moved entries: it would find none of them under "
            "its new index. If this one does read them, confirm it with --owner-reads-maps (in a job: ownerReadsMaps: "
            "true)",
        )
    if signs.marker is Marker.FOLLOWS:
        _require_free(signs.system, path)
    # Whoever follows the advice to start the owner must not lose entries by it.
    hazard = hazard_in(log.directory)
    if not log.segment(log.newest).identity.size:
        remedy = f"do not start it: {hazard}" if hazard else "start and stop the owner once"
        raise ClumpRefusedError(path, f"its owner was about to begin {log.newest}, which is empty: {remedy}")
    if wal := _waiting_in(log.directory):
        remedy = "start the owner, let it write them to segments, and stop it again"
        raise ClumpRefusedError(
            path,
            f"entries of it may still wait in {wal}, under indexes that the copies would take: "
            f"{f'do not start the owner: {hazard}' if hazard else remedy}",
        )
    if log.snapshot is None:
        return
    origin = read_origin(log.snapshot.data)
    members = origin.members if origin is not None else None
    if members is None or len(members) != 1:
        known = "an unknown number of members" if members is None else f"{len(members)} members"
        raise ClumpRefusedError(
            path,
            f"its snapshot names {known}: what is appended to one member's log only, the others do not hold. Let the "
            f"owner append the copies through its own protocol",
        )


def _require_free(system: Path, log: str) -> None:
    """ClumpRefusedError while an owner that follows compactions runs: it holds the lock of its system."""
    try:
        with lock.hold(system, holder="clump", timeout=0):
            pass
    except LockHeldError as error:
        raise ClumpRefusedError(log, f"its owner runs: {error}") from error


def _waiting_in(directory: Path) -> Path | None:
    """A write-ahead log beside the log's directory that mentions it (docs/design/segment-commit.md#a-running-owner: by
    its id, the directory's name). That it may all be in segments already cannot be decided without the owner.
    """
    directory = directory.resolve()
    uid = os.fsencode(directory.name)
    for path in sorted(directory.parent.glob(f"*{WAL_SUFFIX}")):
        if path.is_file() and not path.is_symlink() and _mentions(path, uid):
            return path
    return None


def _mentions(path: Path, uid: bytes) -> bool:
    """Return whether a file holds the bytes of an id anywhere; reads it in chunks."""
    tail = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if uid in tail + chunk:
                return True
            tail = chunk[-len(uid) :]
    return False
