"""What a fence record may contain: one rule, asked after each read and before each write.

The file lies where others can write. Every name in it that could be linked or deleted is a segment's name inside the
log's directory, every group is what its sources spell, every number can be a token, a size or a time. So whatever the
file says, nothing outside the log is touched, and what is written can be read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from compaction.segments.commit.records import FenceRecord, GroupReceipt, PendingCommit, SegmentTombstone
from compaction.segments.errors import InvalidGroupError
from compaction.segments.format.names import group_key, group_sources, job_key, parse_partial
from compaction.segments.model import SEGMENT_NAME, FileIdentity

VERSION: Final = 1
MAX_TOKEN: Final = 2**31 - 1
"""A token is the transition count of a Lease (int32)."""

_EARLIEST: Final = -62_135_596_800.0
_LATEST: Final = 253_402_300_799.0
_SIGNED: Final = 2**63
_UNSIGNED: Final = 2**64
_LONGEST: Final = 80


def first_fault(record: FenceRecord) -> str | None:
    """What is wrong with a record, as the end of a sentence; None when nothing is."""
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
