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
contain is checked in both directions, see the rule below.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from compaction.api.base import first_problem
from compaction.segments.commit.records import (
    FenceRecord,
    GroupReceipt,
    JobClaim,
    PendingCommit,
    SegmentTombstone,
    TombstoneKind,
)
from compaction.segments.directory import fs, lock
from compaction.segments.directory.fs import storage_error, storage_errors
from compaction.segments.directory.lock import replace_file
from compaction.segments.errors import CorruptFenceError, InvalidGroupError, StaleLogTokenError, UnwritableFenceError
from compaction.segments.format.names import group_key, group_sources, job_key, parse_partial
from compaction.segments.format.segment_file import pread_up_to
from compaction.segments.model import SEGMENT_NAME, FileIdentity

# The permitted content of a fence record: one rule, asked after each read and before each write.
#
# The file lies where others can write. Every name in it that could be linked or deleted is a segment's name inside
# the log's directory, every group is what its sources spell, every number can be a token, a size or a time. So
# whatever the file says, nothing outside the log is touched, and what is written can be read back.

VERSION: Final = 1
MAX_TOKEN: Final = 2**31 - 1
"""A token is the transition count of a Lease (int32)."""

_EARLIEST: Final = -62_135_596_800.0
_LATEST: Final = 253_402_300_799.0
_SIGNED: Final = 2**63
_UNSIGNED: Final = 2**64
_LONGEST: Final = 80


def first_fault(record: FenceRecord) -> str | None:
    """Return the first fault of a record, as the end of a sentence; None when there is none."""
    return next(_faults(record), None)


def _brief(value: object) -> str:
    """A hostile value in an error: not a page of it."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _faults(record: FenceRecord) -> Iterator[str]:
    if record.version != VERSION:
        yield f"has version {_brief(record.version)}, which is not supported ({VERSION} is)"
    if not 0 <= record.floor <= MAX_TOKEN:
        yield f"has a floor of {_brief(record.floor)}, which is not in 0..{MAX_TOKEN}"
    for job, claim in record.jobs.items():
        try:
            job_key(job)
        except InvalidGroupError as error:
            yield f"has a claim whose job is none: {error}"
        if not 1 <= claim.token <= MAX_TOKEN:
            yield f"has a claim of job {_brief(job)} with token {_brief(claim.token)}, which is not in 1..{MAX_TOKEN}"
        yield from _time(f"the claim of job {_brief(job)}", claim.claimed_at)
        for tombstone in claim.unreferenced:
            yield from _tombstone(tombstone)
    for receipt in record.receipts:
        yield from _receipt(receipt)
    for intent in record.intents:
        yield from _intent(intent)
    if len({intent.group for intent in record.intents}) < len(record.intents):
        yield "has two intents of one group"
    for tombstone in record.tombstones:
        yield from _tombstone(tombstone)


def _time(what: str, seconds: float) -> Iterator[str]:
    # Written so that NaN is refused as well.
    if not _EARLIEST <= seconds <= _LATEST:
        yield f"has a time for {what} that is not a finite time of the calendar: {_brief(seconds)}"


def _counts(what: str, *counts: int) -> Iterator[str]:
    if any(not 0 <= count < _SIGNED for count in counts):
        yield f"has a size or number for {what} that cannot be one"


def _tombstone(tombstone: SegmentTombstone) -> Iterator[str]:
    if SEGMENT_NAME.fullmatch(tombstone.name) is None:
        yield f"has a tombstone for {_brief(tombstone.name)}, which is not the name of a segment"
        return
    what = f"the tombstone of {tombstone.name}"
    yield from _time(what, tombstone.since)
    if not 0 <= tombstone.token <= MAX_TOKEN:
        yield f"has a token for {what} that is not in 0..{MAX_TOKEN}: {_brief(tombstone.token)}"
    yield from _counts(what, tombstone.bytes)
    if tombstone.identity is not None:
        yield from _identity(what, tombstone.identity)


def _identity(what: str, identity: FileIdentity) -> Iterator[str]:
    numbers = (identity.device, identity.inode)
    inside = all(0 <= number < _UNSIGNED for number in numbers) and -_SIGNED <= identity.mtime_ns < _SIGNED
    if not inside:
        yield f"has a file identity for {what} that cannot be one"
    yield from _counts(what, identity.size)


def _receipt(receipt: GroupReceipt) -> Iterator[str]:
    try:
        spelled = group_key(group_sources(receipt.group)) == receipt.group
    except InvalidGroupError:
        spelled = False
    if not spelled or receipt.sources != group_sources(receipt.group):
        yield f"has a receipt of group {_brief(receipt.group)}, which its sources do not spell"
        return
    lowest, highest = receipt.sources[0], receipt.sources[-1]
    if receipt.output != lowest:
        yield f"has a receipt of group {receipt.group} whose output is not its first source: {_brief(receipt.output)}"
    for name in receipt.linked:
        if SEGMENT_NAME.fullmatch(name) is None or not lowest < name <= highest:
            yield f"has a receipt of group {receipt.group} with a link that is none of its names: {_brief(name)}"
    what = f"the receipt of group {receipt.group}"
    if not 1 <= receipt.token <= MAX_TOKEN:
        yield f"has a token for {what} that is not in 1..{MAX_TOKEN}: {_brief(receipt.token)}"
    yield from _time(what, receipt.seconds)
    yield from _time(what, receipt.committed_at)
    yield from _counts(what, receipt.entries, receipt.live_bytes, receipt.bytes_before, receipt.bytes_after)


def _intent(intent: PendingCommit) -> Iterator[str]:
    yield from _receipt(intent.receipt)
    receipt, partial = intent.receipt, parse_partial(intent.partial)
    if intent.group != receipt.group:
        yield f"has an intent of group {_brief(intent.group)} with a receipt of group {_brief(receipt.group)}"
    if partial is None or (partial.group, partial.token) != (receipt.group, receipt.token):
        yield f"has an intent whose output is not that of its attempt: {_brief(intent.partial)}"
    elif partial.job != _key_or_none(receipt.job):
        yield f"has an intent whose output is of another job: {_brief(intent.partial)}"
    yield from _identity("the intent", intent.identity)
    replaceable = {receipt.output, *receipt.linked}
    for source in intent.replaced:
        if source.name not in replaceable:
            yield f"has an intent of group {receipt.group} that replaces none of its names: {_brief(source.name)}"
            return
        yield from _identity(f"{source.name} in an intent", source.identity)


def _key_or_none(job: str) -> str | None:
    try:
        return job_key(job)
    except InvalidGroupError:
        return None


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
        # No job has claimed this log yet.
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
    """Return whether the file still is, byte for byte, what `write` has put there. OSError passes through."""
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
