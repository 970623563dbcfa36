"""The fence of a log: one small durable record of who may commit, what was committed, and what waits for deletion.

`compaction.fence` in the log's directory: JSON, replaced atomically (temporary name, fsync, rename, fsync of the
directory), changed only by the holder of the log's lock. Invariants:

* per job, claimed tokens strictly increase, also over retirement and over the pruning of old jobs (`floor`);
* receipts of jobs that are not retired are kept, so a repeated commit finds its own; of retired ones the newest
  `KEPT_RECEIPTS` are;
* every name that will be deleted has a tombstone first;
* the file stays small: what is kept for closed jobs is bounded, and jobs that are never closed (their process was
  killed) are closed when they are old or many. A record that would be too large is refused while the old one stands.

The functions on records are pure; `read`, `write`, `claim`, `retire` and `high_water` touch the disk. What a record may
contain is checked in both directions, see `fence_check`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from compaction.api.bounds import first_problem
from compaction.segments.commit.fence_check import MAX_TOKEN, first_fault
from compaction.segments.commit.records import FenceRecord, JobClaim, PendingCommit, SegmentTombstone, TombstoneKind
from compaction.segments.directory import fs, lock
from compaction.segments.directory.access import replace_file
from compaction.segments.directory.faults import storage_error, storage_errors
from compaction.segments.errors import CorruptFenceError, InvalidGroupError, StaleLogTokenError, UnwritableFenceError
from compaction.segments.format.codec import pread_up_to
from compaction.segments.format.names import job_key
from compaction.segments.model import FileIdentity

FENCE_FILE: Final = "compaction.fence"
TEMPORARY_FILE: Final = "compaction.fence.tmp"
KEPT_JOBS: Final = 256
KEPT_RECEIPTS: Final = 64
KEPT_MARKED: Final = 8
"""Closed jobs of which is still known what they marked for deletion: for a report that was lost."""
KEPT_OPEN: Final = 64
OPEN_SECONDS: Final = 7 * 86_400.0
"""Claims that were never closed count as closed beyond the newest KEPT_OPEN, and a week after their creation. A job
that was alive after all gets the error that its token is stale, and claims a new one.
"""
MAX_FENCE_BYTES: Final = 64 << 20
SPARE_BYTES: Final = 8 << 20
"""Room that only the end of a commit may use: what was begun can always be recorded."""
_RECORD: Final = TypeAdapter(FenceRecord)


def read(directory: Path) -> FenceRecord:
    """The record, or an empty one when the log has none yet. Needs no lock: the file is replaced atomically.

    Raises:
        CorruptFenceError: the file is not a fence record of a version known here.
        LogNotReadableError, StoreIOError
    """
    path = directory / FENCE_FILE
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return FenceRecord()
    except OSError as error:
        raise storage_error(error, directory) from error
    try:
        with storage_errors(directory):
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise CorruptFenceError(str(path), "it is not a regular file")
            # Not the bound itself: a read reserves memory for all that it asks for, and every look reads the fence.
            data = pread_up_to(fd, min(status.st_size, MAX_FENCE_BYTES) + 1, 0)
    finally:
        os.close(fd)
    if len(data) > MAX_FENCE_BYTES:
        raise CorruptFenceError(str(path), f"it is larger than {MAX_FENCE_BYTES} bytes")
    try:
        record = _RECORD.validate_json(data)
    except ValidationError as error:
        raise CorruptFenceError(str(path), first_problem(error)) from error
    if fault := first_fault(record):
        raise CorruptFenceError(str(path), f"it {fault}")
    return record


def write(
    directory: Path,
    record: FenceRecord,
    *,
    sync_directory: bool = True,
    held: lock.HeldLock | None = None,
    spare: int | None = None,
) -> bytes:
    """Replace the record; the lock must be held. OSError passes through, the old record then stands.

    Returns the file's new content, for `stands`.

    `held` is asked right before the old record goes. With `sync_directory=False` the caller syncs the directory itself
    before it relies on the record. `spare`: bytes below the limit that must stay free (default SPARE_BYTES).

    Raises:
        UnwritableFenceError: the record could not be read back, or has grown too large; the old one stands.
        LockLostError: the lock was lost; the old record, or the one that another process wrote, stands.
    """
    data = _encoded(directory, record, spare=SPARE_BYTES if spare is None else spare)
    replace_file(directory / TEMPORARY_FILE, directory / FENCE_FILE, data, access=None, held=held)
    if sync_directory:
        fs.sync_directory(directory)
    return data


def stands(directory: Path, data: bytes) -> bool:
    """Whether the file still is, byte for byte, what `write` has put there. OSError passes through."""
    try:
        fd = os.open(directory / FENCE_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        return pread_up_to(fd, len(data) + 1, 0) == data
    finally:
        os.close(fd)


def _encoded(directory: Path, record: FenceRecord, *, spare: int) -> bytes:
    path = directory / FENCE_FILE
    if fault := first_fault(record):
        raise UnwritableFenceError(str(path), fault)
    try:
        data = _RECORD.dump_json(record)
    except PydanticSerializationError as error:
        raise UnwritableFenceError(str(path), f"cannot be written as text ({error})") from error
    limit = MAX_FENCE_BYTES - spare
    if len(data) > limit:
        # Over the limit already: less is always better, or the sweep could not make room.
        with suppress(FileNotFoundError):
            limit = max(limit, min(MAX_FENCE_BYTES, os.stat(path, follow_symlinks=False).st_size - 1))
    if len(data) > limit:
        reason = f"is larger than {limit} bytes ({len(data)}): sweep what waits for its deletion, or mark fewer at once"
        raise UnwritableFenceError(str(path), reason)
    return data


def high_water(directory: Path, job: str) -> int:
    """The largest token ever accepted for a job in this log; the next one must be larger. 0 when there was none."""
    return read(directory).high_water(job)


def claim(
    directory: Path,
    *,
    job: str,
    token: int,
    holder: str,
    now: float | None = None,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> None:
    """Make `token` the only one this job may commit with.

    Raises:
        StaleTokenError: not larger than every token claimed for the job before.
        LockHeldError, LogNotWritableError, StoreIOError, CorruptFenceError, UnwritableFenceError
    """
    if not 1 <= token <= MAX_TOKEN:
        raise InvalidGroupError(f"a fencing token is an integer in 1..{MAX_TOKEN}, not {token}")
    job_key(job)
    with storage_errors(directory), lock.hold(directory, holder=holder, job=job, timeout=timeout) as held:
        record = read(directory)
        # Equal is refused too: two coordinators may hand out the same number, and only one of them may own it.
        if token <= record.high_water(job):
            raise StaleLogTokenError(str(directory), job, token, record.high_water(job))
        claimed_at = held.now() if now is None else now
        write(directory, with_claim(record, job=job, token=token, holder=holder, now=claimed_at), held=held)


def claim_next(directory: Path, *, job: str, holder: str, timeout: float = lock.DEFAULT_TIMEOUT) -> int:
    """Claim the smallest token that the job may have, and return it: for a job that has no coordinator.

    Under one lock: the floor of all jobs may rise at any moment, as other jobs are forgotten. Errors as `claim`.
    """
    job_key(job)
    with storage_errors(directory), lock.hold(directory, holder=holder, job=job, timeout=timeout) as held:
        record = read(directory)
        token = record.high_water(job) + 1
        write(directory, with_claim(record, job=job, token=token, holder=holder, now=held.now()), held=held)
    return token


def retire(directory: Path, job: str, *, timeout: float = lock.DEFAULT_TIMEOUT) -> None:
    """Nothing may be committed for this job any more; its high water stays. Repeating is harmless."""
    # Asked without the lock first: a job that was never claimed here must not wait for a commit that holds it.
    if read(directory).claimed(job) is None:
        return
    with storage_errors(directory), lock.hold(directory, holder="retire", job=job, timeout=timeout) as held:
        record = read(directory)
        if record.claimed(job) is not None:
            write(directory, retired(record, job), held=held)


def check_token(record: FenceRecord, directory: Path, *, job: str, token: int) -> None:
    """StaleTokenError unless `token` EQUALS the one claimed last: a larger one was never handed out by this store."""
    claimed = record.claimed(job)
    if token != claimed:
        raise StaleLogTokenError(str(directory), job, token, claimed)


def with_claim(record: FenceRecord, *, job: str, token: int, holder: str, now: float) -> FenceRecord:
    """The record with a new claim, and without what is too old to be asked for again."""
    before = record.jobs.get(job)
    marked = before.unreferenced if before else ()
    claim = JobClaim(token=token, holder=holder, claimed_at=now, unreferenced=marked)
    return _bounded(replace(record, jobs=record.jobs | {job: claim}), current=job, now=now)


def retired(record: FenceRecord, job: str) -> FenceRecord:
    """The record with this job closed, and without what is too old to be asked for again."""
    return _bounded(replace(record, jobs=record.jobs | {job: replace(record.jobs[job], retired=True)}))


def _bounded(record: FenceRecord, *, current: str | None = None, now: float | None = None) -> FenceRecord:
    """The record with what is kept for closed jobs cut to its bounds, after abandoned ones were closed.

    `current`: the job that claims at `now`; it stays open.
    """
    newest = sorted(record.jobs, key=lambda name: record.jobs[name].claimed_at, reverse=True)
    opened = [name for name in newest if name != current and not record.jobs[name].retired]
    abandoned = set(opened[KEPT_OPEN:])
    if now is not None:
        abandoned |= {name for name in opened if record.jobs[name].claimed_at + OPEN_SECONDS < now}
    jobs = {name: replace(c, retired=True) if name in abandoned else c for name, c in record.jobs.items()}
    closed = [name for name in newest if jobs[name].retired]
    dropped = frozenset(closed[KEPT_JOBS:])
    # A job that is forgotten must not be able to come back with an old token: the floor remembers for all of them.
    floor = max([record.floor, *(jobs[name].token for name in dropped)])
    marked = [name for name in closed if jobs[name].unreferenced]
    silent = frozenset(marked[KEPT_MARKED:])
    jobs = {
        name: replace(claim, unreferenced=()) if name in silent else claim
        for name, claim in jobs.items()
        if name not in dropped
    }
    old = [r for r in record.receipts if r.job not in jobs or jobs[r.job].retired]
    kept = {id(r) for r in old[-KEPT_RECEIPTS:]}
    receipts = tuple(r for r in record.receipts if (r.job in jobs and not jobs[r.job].retired) or id(r) in kept)
    return replace(record, jobs=jobs, floor=floor, receipts=receipts)


def with_intents(record: FenceRecord, intents: Iterable[PendingCommit]) -> FenceRecord:
    """The record with these commits begun as well."""
    return replace(record, intents=(*record.intents, *intents))


def without_intent(record: FenceRecord, group: str) -> FenceRecord:
    """The record after the commit of a group was given up."""
    return replace(record, intents=tuple(i for i in record.intents if i.group != group))


def promoted(
    record: FenceRecord, intent: PendingCommit, *, linked_at: float, links: Mapping[str, FileIdentity]
) -> FenceRecord:
    """A commit that was begun has happened: its receipt counts, and its replaced names wait for their deletion.

    `linked_at`: when the names really were replaced, from which their grace counts. `links`: which links they are.
    """
    receipt = intent.receipt
    marks = [
        SegmentTombstone(
            name=name,
            kind=TombstoneKind.LINKED,
            since=linked_at,
            job=receipt.job,
            token=receipt.token,
            identity=links.get(name),
        )
        for name in receipt.linked
    ]
    without = without_tombstones(without_intent(record, intent.group), (receipt.output, *receipt.linked))
    return replace(with_tombstones(without, marks), receipts=(*record.receipts, receipt))


def with_tombstones(record: FenceRecord, tombstones: Iterable[SegmentTombstone]) -> FenceRecord:
    """Add tombstones; one that stands for the same name already keeps its age."""
    present = {t.name for t in record.tombstones}
    new = tuple(t for t in tombstones if t.name not in present)
    return replace(record, tombstones=tuple(sorted((*record.tombstones, *new), key=lambda t: t.name)))


def without_tombstones(record: FenceRecord, names: Iterable[str]) -> FenceRecord:
    gone = frozenset(names)
    return replace(record, tombstones=tuple(t for t in record.tombstones if t.name not in gone))
