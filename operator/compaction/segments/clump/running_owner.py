"""Re-writing sparse live entries while the owner of the log runs: by a request to it, or by its own call."""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from compaction.segments.clump.clump_plan import ClumpOptions, ClumpPlan, ClumpRound, plan_clump
from compaction.segments.clump.clump_run import ClumpResult, receipts_of
from compaction.segments.clump.moves import MoveReceipt, Moves, write_moves
from compaction.segments.commit import fence, recovery
from compaction.segments.directory import fs, lock
from compaction.segments.directory.fs import storage_errors
from compaction.segments.errors import (
    ClumpRefusedError,
    FlushFailedError,
    SourcesChangedError,
    StaleLogTokenError,
    VerificationFailedError,
)
from compaction.segments.memtable import LogPosition
from compaction.segments.model import U64Array
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.reader import EntryBatch, EntryFingerprint, SegmentFile
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.snapshot.directories import newest_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.compactions import OWNER
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem
from compaction.storage.pace import UNLIMITED, Pace

# Re-writing sparse live entries of a log whose owner is running: the owner appends, this module only asks and checks.
#
# No other process may append to a running owner's log: its last index, its segment list and its live set are in its
# memory, and in a cluster a copy is an entry only if the members agree on it (in Ra: a command of the state machine,
# which knows the old indexes). So the owner is a port with two questions, both of which it may refuse:
#
# 1. `append`: copies of these entries, as entries of yours; answer with their indexes once they are in segments;
# 2. `adopt`: speak of the new indexes from now on, and take a snapshot whose live set no longer has the old ones.
#
# Between the two the copies are read back and compared, and the map is written down, so that an owner which dies
# before it has adopted finds what it had appended. Nothing else of the log is changed by this module. At a death
# anywhere the old entries are live until the owner itself says otherwise; copies that no owner adopted die at its
# next snapshot.

PORTION_BYTES: Final = 4 << 20
"""Payload bytes after which a portion is handed to the owner; one read (4 MiB, or the largest payload) comes on top."""


@dataclass(frozen=True, slots=True)
class EntryCopy:
    """A live entry that the owner is asked to append once more; the payload's CRC was checked."""

    old: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """The index and term under which the owner appended a copy."""

    index: int
    term: int


class LogOwner(Protocol):
    """The process that owns a log, with what re-writing needs. Errors it raises pass through to the caller."""

    @property
    def directory(self) -> Path:
        """The log's directory, as this process sees it."""

    def append(self, copies: Sequence[EntryCopy], *, job: str, token: int) -> Sequence[Appended]:
        """Append the payloads, unchanged and in this order, and return once they are committed and in segment files.

        Other entries may come in between. An owner that has seen a larger token for the job raises StaleTokenError.
        """

    def adopt(self, moves: Moves, *, job: str, token: int) -> None:
        """Use the new indexes instead of the old ones, and return once a snapshot says so: none of the old indexes is
        in its live set, and the copies are, or lie above it. What has died meanwhile need not be live any more.
        """


def clump_through_owner(
    owner: LogOwner,
    *,
    request: ClumpOptions,
    limits: SegmentLimits,
    job: str,
    token: int,
    holder: str,
    pace: Pace = UNLIMITED,
    now: float | None = None,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> ClumpResult:
    """Plan, hand over, read back, write the map down, let the owner adopt: round by round. The token must be claimed.

    `pace` is asked before copies are read, handed over and read back; how the owner writes them is its own affair.

    Raises:
        StaleTokenError, SourcesChangedError, CorruptEntryError, ... : nothing was adopted in this round.
        VerificationFailedError: the owner's copies are not what it was given; nothing was adopted.
        ClumpRefusedError: the owner said it had adopted the copies, and its snapshot says something else.
    """
    directory = owner.directory
    recovery.recover(directory, holder=holder, timeout=timeout).require_settled(directory)
    spent = sum(receipt.payload_bytes for receipt in receipts_of(directory, job))
    with storage_errors(directory):
        plan = plan_clump(open_log(directory), replace(request, max_bytes=max(1, request.max_bytes - spent)), limits)
    receipts = []
    for part in plan.rounds:
        fence.check_token(fence.read(directory), directory, job=job, token=token)
        started = time.monotonic()
        with storage_errors(directory):
            moves = _move(owner, plan, part, job=job, token=token, holder=holder, pace=pace)
        moves = _write_down(directory, moves, started=started, now=now, timeout=timeout)
        owner.adopt(moves, job=job, token=token)
        _check_adopted(directory, moves)
        receipts.append(moves.receipt)
    return ClumpResult(plan=plan, receipts=tuple(receipts))


def _move(
    owner: LogOwner, plan: ClumpPlan, part: ClumpRound, *, job: str, token: int, holder: str, pace: Pace
) -> Moves:
    """Hand the entries of one round over, batch by batch, and read the copies back."""
    log = open_log(owner.directory)
    before, indexes, terms = EntryFingerprint(), [], []
    for copies in _portions(log, part.old, pace):
        pace(sum(len(copy.payload) for copy in copies), written=True)
        answer = list(owner.append(copies, job=job, token=token))
        if len(answer) != len(copies):
            raise VerificationFailedError(f"{log.directory}: {len(copies)} entries given, {len(answer)} appended")
        idx = np.array([appended.index for appended in answer], dtype=np.uint64)
        term = np.array([appended.term for appended in answer], dtype=np.uint64)
        length = np.array([len(copy.payload) for copy in copies], dtype=np.uint32)
        crc = np.array([zlib.crc32(copy.payload) for copy in copies], dtype=np.uint32)
        before.update_arrays(idx=idx, term=term, length=length, crc=crc)
        indexes.append(idx)
        terms.append(term)
    new, term = np.concatenate(indexes), np.concatenate(terms)
    _check_order(log, plan, new, term)
    if _read_back(owner.directory, new, pace) != before.hexdigest():
        raise VerificationFailedError(f"{log.directory}: what its owner appended from index {new[0]} on is not a copy")
    receipt = _receipt(log, plan, part, new, term=int(term[-1]), job=job, token=token, holder=holder, copied=before)
    return Moves.of_pairs(receipt, np.fromiter(part.old, dtype=np.uint64, count=len(part.old)), new)


def _portions(log: LogState, wanted: LiveSet, pace: Pace) -> Iterator[list[EntryCopy]]:
    """The wanted entries, ascending, in as few portions as memory allows: what the owner writes in between, its own
    mark of a portion included, keeps copies apart.
    """
    portion: list[EntryCopy] = []
    size = 0
    for batch in _batches(log, wanted, pace):
        olds = batch.segment.idx[batch.rows].tolist()
        portion += [EntryCopy(old, bytes(copy)) for old, copy in zip(olds, batch.payloads(), strict=True)]
        size += len(batch.data)
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _batches(log: LogState, wanted: LiveSet, pace: Pace) -> Iterator[EntryBatch]:
    """Checked payloads of the wanted entries, ascending; SourcesChangedError when one is not readable any more."""
    found = 0
    for ref in log.refs:
        segment, rows = log.segment(ref.name), log.readable(ref)
        rows = rows[wanted.mask(segment.idx[rows])]
        if rows.size:
            found += int(rows.size)
            with closing(SegmentFile(segment)) as file:
                yield from file.batches(rows, pace=pace)
    if found != len(wanted):
        raise SourcesChangedError(f"{log.directory}: {len(wanted) - found} entries are not readable: plan again")


def _check_order(log: LogState, plan: ClumpPlan, new: U64Array, term: U64Array) -> None:
    """Copies are entries like any other: above all that was there, ascending, in terms that never decrease."""
    ascending = bool(np.all(new[1:] > new[:-1])) and bool(np.all(term[1:] >= term[:-1]))
    if not ascending or int(new[0]) <= plan.head.last or int(term[0]) < plan.head.term:
        raise VerificationFailedError(
            f"{log.directory}: its owner appended at index {new[0]}, term {term[0]}, which does not follow index "
            f"{plan.head.last}, term {plan.head.term}"
        )


def _read_back(directory: Path, new: U64Array, pace: Pace) -> str:
    """The fingerprint of the entries at the new indexes, as they are in segment files now."""
    after = EntryFingerprint()
    for batch in _batches(open_log(directory), LiveSet.from_indexes(new), pace):
        after.update_batch(batch)
    return after.hexdigest()


def _receipt(
    log: LogState,
    plan: ClumpPlan,
    part: ClumpRound,
    new: U64Array,
    *,
    term: int,
    job: str,
    token: int,
    holder: str,
    copied: EntryFingerprint,
) -> MoveReceipt:
    live = log.live if log.live is not None else LiveSet.empty()
    after = LiveSet.from_ranges([*live.without(part.old).ranges, *LiveSet.from_indexes(new).ranges])
    return MoveReceipt(
        job=job,
        token=token,
        holder=holder,
        snapshot_index=plan.snapshot_index,
        snapshot_term=plan.snapshot_term,
        first=int(new[0]),
        last=int(new[-1]),
        term=term,
        entries=int(new.size),
        payload_bytes=copied.payload_bytes,
        ranges_before=live.bounds[0].size,
        ranges_after=after.bounds[0].size,
        fingerprint=copied.hexdigest(),
        seconds=0.0,
        committed_at=0.0,
    )


def _write_down(directory: Path, moves: Moves, *, started: float, now: float | None, timeout: float) -> Moves:
    """The map, under the lock and with the token that is claimed: one rename, so there is nothing to recover. Returns
    it with its times.
    """
    receipt = moves.receipt
    with (
        storage_errors(directory),
        lock.hold(directory, holder=receipt.holder, job=receipt.job, timeout=timeout) as held,
    ):
        recovery.recover_locked(directory, now=now, held=held)
        committed_at = held.now() if now is None else now
        fence.check_token(fence.read(directory), directory, job=receipt.job, token=receipt.token)
        stamped = replace(receipt, seconds=time.monotonic() - started, committed_at=committed_at)
        moves = replace(moves, receipt=stamped)
        write_moves(directory, moves, held=held, access=directory / open_log(directory).newest)
        fs.sync_directory(directory)
    return moves


def _check_adopted(directory: Path, moves: Moves) -> None:
    """Positive evidence: the snapshot in force has none of the old indexes live."""
    newest = newest_snapshot(directory)
    live = newest.live if newest is not None else None
    if newest is None or live is None:
        raise ClumpRefusedError(str(directory), "its owner adopted the copies, and has no snapshot that says so")
    kept = moves.old_set.intersection(live)
    if kept:
        reason = f"its owner adopted the copies, and its snapshot {newest.index} still has index {kept.smallest} live"
        raise ClumpRefusedError(str(directory), reason)


# Phase 4 by the owner's own call: sparse live entries are appended once more at the head, so that they lie together.
#
# Only the application can do that to its log: which new index stands for which old one is in its machine's state, and
# in a cluster a copy is an entry only if the members agree on it. So it is a port with two questions. Planning,
# reading back, the map of the moves and the fence are those of `clump.running_owner`, as for any running owner.

_FLUSH_SECONDS: Final = 600.0
"""For everything that waits before the copies, and the copies, to be in segments."""


class ClumpingMachine(Protocol):
    """The application, in whichever thread it writes the log. Errors it raises end the round, of which nothing counts.

    A copy is no command to be applied again; one that the machine does not adopt dies at its next snapshot.
    """

    def append(self, payloads: Sequence[bytes]) -> Sequence[LogPosition]:
        """Append the payloads, unchanged and in this order; returns once they are durable. Others may come between."""

    def adopt(self, moves: Moves) -> None:
        """Use the new indexes from now on, and return once a snapshot says so: none of the old ones is live in it."""


def clump_own_log(
    system: LogSystem,
    log: Log,
    machine: ClumpingMachine,
    *,
    options: ClumpOptions,
    limits: SegmentLimits,
    bytes_per_second: int | None = None,
) -> ClumpResult:
    """Plan, append, read back, write the map down, adopt: round by round, in the caller's thread.

    `bytes_per_second`: what may be read, handed to the machine and read back.

    Errors as `clump_through_owner`; what was adopted before stays.
    """
    directory = log.directory
    job = f"{OWNER}-{secrets.token_hex(5)}"
    token = fence.claim_next(directory, job=job, holder=OWNER)
    try:
        owner = _RunningOwner(system, log, machine)
        return clump_through_owner(
            owner,
            request=options,
            limits=limits,
            job=job,
            token=token,
            holder=OWNER,
            pace=Pace(bytes_per_second=bytes_per_second),
        )
    finally:
        fence.retire(directory, job)


class _RunningOwner:
    """A log of ours as `clump.running_owner` sees it: see `LogOwner`."""

    def __init__(self, system: LogSystem, log: Log, machine: ClumpingMachine) -> None:
        self._system = system
        self._log = log
        self._machine = machine
        self._token = 0

    @property
    def directory(self) -> Path:
        return self._log.directory

    def append(self, copies: Sequence[EntryCopy], *, job: str, token: int) -> Sequence[Appended]:
        self._accept(job, token)
        positions = self._machine.append([copy.payload for copy in copies])
        self._system.roll().result(_FLUSH_SECONDS)
        if not self._system.drain(_FLUSH_SECONDS):
            reason = f"the copies are not in segments after {_FLUSH_SECONDS:.0f} s"
            raise FlushFailedError(str(self.directory), reason)
        return [Appended(position.index, position.term) for position in positions]

    def adopt(self, moves: Moves, *, job: str, token: int) -> None:
        self._accept(job, token)
        self._machine.adopt(moves)

    def _accept(self, job: str, token: int) -> None:
        if token < self._token:
            raise StaleLogTokenError(str(self.directory), job, token, self._token)
        self._token = token
