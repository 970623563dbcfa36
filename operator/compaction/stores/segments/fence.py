"""The fence of a log: one small durable record of who may commit, what was committed, and what waits for deletion.

`compaction.fence` in the log's directory: JSON, replaced atomically (temporary name, fsync, rename, fsync of the
directory), changed only by the holder of the log's lock. Invariants:

* per job, claimed tokens strictly increase, also over retirement and over the pruning of old jobs (`floor`);
* receipts of jobs that are not retired are kept, so a repeated commit finds its own; of retired ones the newest
  `KEPT_RECEIPTS` are;
* every name that will be deleted has a tombstone first.

The functions on records are pure; `read`, `write`, `claim`, `retire` and `high_water` touch the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from compaction.exceptions import CorruptFenceError, InvalidGroupError, StaleTokenError
from compaction.stores.segments import fs, lock
from compaction.stores.segments.faults import storage_error, storage_errors
from compaction.stores.segments.names import job_key
from compaction.stores.segments.records import Claim, FenceRecord, PendingCommit, Tombstone, TombstoneKind

FENCE_FILE: Final = "compaction.fence"
TEMPORARY_FILE: Final = "compaction.fence.tmp"
KEPT_JOBS: Final = 256
KEPT_RECEIPTS: Final = 64
MAX_FENCE_BYTES: Final = 64 << 20
_RECORD: Final = TypeAdapter(FenceRecord)


def read(directory: Path) -> FenceRecord:
    """The record, or an empty one when the log has none yet. Needs no lock: the file is replaced atomically.

    Raises:
        CorruptFenceError: the file is not a fence record of a version known here.
    """
    path = directory / FENCE_FILE
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return FenceRecord()
    except OSError as error:
        raise storage_error(error, directory) from error
    with open(fd, "rb") as file, storage_errors(directory):
        data = file.read(MAX_FENCE_BYTES + 1)
    if len(data) > MAX_FENCE_BYTES:
        raise CorruptFenceError(str(path), f"it is larger than {MAX_FENCE_BYTES} bytes")
    try:
        record = _RECORD.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise CorruptFenceError(str(path), f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}") from error
    if record.version != 1:
        raise CorruptFenceError(str(path), f"version {record.version} is not supported (1 is)")
    return record


def write(directory: Path, record: FenceRecord, *, sync_directory: bool = True) -> None:
    """Replace the record; the lock must be held. OSError passes through, the old record then stands.

    With `sync_directory=False` the caller syncs the directory itself before it relies on the record.
    """
    temporary = directory / TEMPORARY_FILE
    fs.unlink_if_present(temporary)
    try:
        fd = fs.create(temporary)
        try:
            fs.write(fd, [_RECORD.dump_json(record)])
            fs.sync(fd)
        finally:
            os.close(fd)
        fs.rename(temporary, directory / FENCE_FILE)
    except OSError:
        fs.unlink_if_present(temporary)
        raise
    if sync_directory:
        fs.sync_directory(directory)


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
        LockHeldError, LogNotWritableError, StoreIOError, CorruptFenceError
    """
    if token < 1:
        raise InvalidGroupError(f"a fencing token is a positive integer, not {token}")
    job_key(job)
    with storage_errors(directory), lock.hold(directory, holder=holder, job=job, timeout=timeout):
        record = read(directory)
        if token <= record.high_water(job):
            raise StaleTokenError(str(directory), job, token, record.high_water(job))
        write(
            directory, with_claim(record, job=job, token=token, holder=holder, now=time.time() if now is None else now)
        )


def retire(directory: Path, job: str, *, timeout: float = lock.DEFAULT_TIMEOUT) -> None:
    """Nothing may be committed for this job any more; its high water stays. Repeating is harmless."""
    if read(directory).claimed(job) is None:
        return
    with storage_errors(directory), lock.hold(directory, holder="retire", job=job, timeout=timeout):
        record = read(directory)
        if record.claimed(job) is not None:
            write(directory, retired(record, job))


def check_token(record: FenceRecord, directory: Path, *, job: str, token: int) -> None:
    """StaleTokenError unless `token` EQUALS the one claimed last: a larger one was never handed out by this store."""
    claimed = record.claimed(job)
    if token != claimed:
        raise StaleTokenError(str(directory), job, token, claimed)


def with_claim(record: FenceRecord, *, job: str, token: int, holder: str, now: float) -> FenceRecord:
    before = record.jobs.get(job)
    marked = before.unreferenced if before else ()
    return replace(
        record,
        jobs=record.jobs | {job: Claim(token=token, holder=holder, claimed_at=now, unreferenced=marked)},
    )


def retired(record: FenceRecord, job: str) -> FenceRecord:
    """The record with this job closed, and without what is too old to be asked for again."""
    jobs = record.jobs | {job: replace(record.jobs[job], retired=True)}
    closed = sorted((name for name, c in jobs.items() if c.retired), key=lambda name: jobs[name].claimed_at)
    dropped = closed[: max(0, len(closed) - KEPT_JOBS)]
    floor = max([record.floor, *(jobs[name].token for name in dropped)])
    jobs = {name: c for name, c in jobs.items() if name not in dropped}
    old = [r for r in record.receipts if r.job not in jobs or jobs[r.job].retired]
    kept = {id(r) for r in old[-KEPT_RECEIPTS:]}
    receipts = tuple(r for r in record.receipts if (r.job in jobs and not jobs[r.job].retired) or id(r) in kept)
    return replace(record, jobs=jobs, floor=floor, receipts=receipts)


def with_pending(record: FenceRecord, pending: PendingCommit | None) -> FenceRecord:
    return replace(record, pending=pending)


def promoted(record: FenceRecord) -> FenceRecord:
    """The pending commit has happened: its receipt counts, and its replaced names wait for their deletion."""
    if record.pending is None:
        return record
    receipt = record.pending.receipt
    links = [
        Tombstone(
            name=name, kind=TombstoneKind.LINKED, since=receipt.committed_at, job=receipt.job, token=receipt.token
        )
        for name in receipt.linked
    ]
    without = without_tombstones(record, (*receipt.sources, *receipt.linked))
    return replace(with_tombstones(without, links), pending=None, receipts=(*record.receipts, receipt))


def with_tombstones(record: FenceRecord, tombstones: Iterable[Tombstone]) -> FenceRecord:
    """Add tombstones; one that stands for the same name already keeps its age."""
    present = {t.name for t in record.tombstones}
    new = tuple(t for t in tombstones if t.name not in present)
    return replace(record, tombstones=tuple(sorted((*record.tombstones, *new), key=lambda t: t.name)))


def without_tombstones(record: FenceRecord, names: Iterable[str]) -> FenceRecord:
    gone = frozenset(names)
    return replace(record, tombstones=tuple(t for t in record.tombstones if t.name not in gone))
