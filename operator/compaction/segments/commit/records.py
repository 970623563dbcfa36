"""Plain data of rewriting, committing and cleaning up, and the one way in which a name comes to stand for another
file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import FailFast

from compaction.segments.directory import fs
from compaction.segments.directory.fs import regular_identity
from compaction.segments.format.names import link_name
from compaction.segments.model import FileIdentity

# Plain data of rewriting, committing and cleaning up: what travels between tasks, the driver and the fence file.
#
# All of it is immutable, picklable and made of JSON's types. Times are epoch seconds, sizes bytes, names base names.

Item = TypeVar("Item")
# Reading ends at the first bad item: an error for each costs a thousand times the bytes of the item.
Items = Annotated[tuple[Item, ...], FailFast()]


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A segment file as it was read: whatever else has its name later is another file. `mark`: of its content."""

    name: str
    identity: FileIdentity
    mark: str


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """A group's output, written, synced and read back, but not yet visible to anybody.

    `identities` and `marks` (see `SegmentIndex.mark`) are the sources' as they were read, in order; `identity` and
    `mark` are the partial file's. `fingerprint_before` is
    of the live entries as read from the sources, `fingerprint_after` of the same as read back from the partial file.
    `carried`: dead segments between the sources, with nothing to copy; they become symlinks too.
    """

    sources: tuple[str, ...]
    identities: tuple[FileIdentity, ...]
    partial: str
    identity: FileIdentity
    entries: int
    live_bytes: int
    bytes_before: int
    bytes_after: int
    fingerprint_before: str
    fingerprint_after: str
    seconds: float
    mark: str
    marks: tuple[str, ...]
    carried: tuple[str, ...] = ()
    carried_identities: tuple[FileIdentity, ...] = ()
    carried_marks: tuple[str, ...] = ()

    @property
    def files(self) -> dict[str, KnownFile]:
        """Every file that a commit of the group replaces, by name."""
        known = (
            *zip(self.sources, self.identities, self.marks, strict=True),
            *zip(self.carried, self.carried_identities, self.carried_marks, strict=True),
        )
        return {name: KnownFile(name, identity, mark) for name, identity, mark in known}


@dataclass(frozen=True, slots=True)
class GroupReceipt:
    """Proof of one committed group. `output` has replaced the lowest source, the names in `linked` are symlinks to
    it.
    """

    job: str
    token: int
    holder: str
    group: str
    sources: Items[str]
    output: str
    linked: Items[str]
    entries: int
    live_bytes: int
    bytes_before: int
    bytes_after: int
    fingerprint_before: str
    fingerprint_after: str
    seconds: float
    committed_at: float

    @property
    def bytes_reclaimed(self) -> int:
        return self.bytes_before - self.bytes_after


class TombstoneKind(StrEnum):
    """The kind of a name that waits for its deletion."""

    LINKED = "Linked"
    """A symlink to the compacted segment: the old name of a source."""
    UNREFERENCED = "Unreferenced"
    """A segment in which nothing is live."""


class UnreferencedReason(StrEnum):
    """The reason why nothing in a segment is needed."""

    NO_LIVE_INDEX = "NoLiveIndex"
    """All of it is at or below the snapshot, and none of it is live."""
    OVERWRITTEN = "Overwritten"
    """Newer segments hide every record."""
    NO_ENTRIES = "NoEntries"
    """Only a header, and newer segments exist."""


@dataclass(frozen=True, slots=True)
class SegmentTombstone:
    """A name that is deleted once `since` is longer ago than the grace.

    `job`, `token` and `holder`: of the attempt that marked it. `identity`: the file, or the link, that it stands for;
    None in an older record of a link.
    """

    name: str
    kind: TombstoneKind
    since: float
    job: str = ""
    token: int = 0
    holder: str = ""
    bytes: int = 0
    reason: UnreferencedReason | None = None
    identity: FileIdentity | None = None


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A group commit that was begun: enough to finish it if the process dies after the commit point, and not further
    than it is still true.

    `identity` and `mark`: of the output. `replaced`: the files that it replaces, the lowest first. Both are empty in
    the record of an older version: then only content is evidence.
    """

    group: str
    partial: str
    identity: FileIdentity
    receipt: GroupReceipt
    mark: str = ""
    replaced: Items[KnownFile] = ()

    def cut_short(self, linked: Iterable[str]) -> PendingCommit:
        """The same commit when only `linked` of its higher names became links: what else it names stayed a file."""
        names = tuple(linked)
        stayed = set(self.receipt.linked) - set(names)
        if not stayed:
            return self
        kept = sum(source.identity.size for source in self.replaced if source.name in stayed)
        before = max(0, self.receipt.bytes_before - kept)
        return replace(self, receipt=replace(self.receipt, linked=names, bytes_before=before))


@dataclass(frozen=True, slots=True)
class JobClaim:
    """A job's highest token. `unreferenced`: what the job has marked for deletion, kept for its report."""

    token: int
    holder: str
    claimed_at: float
    retired: bool = False
    unreferenced: Items[SegmentTombstone] = ()


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """The content of a log's fence file.

    `floor`: no token at or below it is ever accepted from a job that is not listed (the jobs forgotten to keep the file
    small had such tokens).
    """

    version: int = 1
    floor: int = 0
    jobs: Annotated[dict[str, JobClaim], FailFast()] = field(default_factory=dict)
    receipts: Items[GroupReceipt] = ()
    intents: Items[PendingCommit] = ()
    tombstones: Items[SegmentTombstone] = ()

    def high_water(self, job: str) -> int:
        """The largest token ever accepted for a job; 0 when none was."""
        claim = self.jobs.get(job)
        return self.floor if claim is None else claim.token

    def claimed(self, job: str) -> int | None:
        """The token whose commits are accepted now."""
        claim = self.jobs.get(job)
        return None if claim is None or claim.retired else claim.token

    def receipt(self, job: str, group: str) -> GroupReceipt | None:
        """The receipt of a group that this job has committed, by whichever attempt."""
        return next((r for r in self.receipts if r.job == job and r.group == group), None)

    def intent(self, group: str) -> PendingCommit | None:
        """The commit of a group that was begun and has not come to its end."""
        return next((i for i in self.intents if i.group == group), None)

    def tombstone(self, name: str) -> SegmentTombstone | None:
        return next((t for t in self.tombstones if t.name == name), None)


# The step by which the name of a segment comes to stand for another file: atomic, and only if it still is what it
# was.
#
# The name is checked once more right before the system call that replaces it. What remains is the moment between the
# two, which no file system of all that hold logs can close: a compaction of the owner's own must not run at that
# time.


def put_link(directory: Path, name: str, source: Path, *, expected: FileIdentity) -> bool:
    """Replace the segment `name` by a hard link to `source`; False, and nothing is done, if it is not `expected`."""
    temporary = directory / link_name(name)
    fs.unlink_if_present(temporary)
    fs.link(source, temporary)
    done = _put(directory / name, temporary, expected)
    # rename() between two names of one file does nothing and leaves both.
    fs.unlink_if_present(temporary)
    return done


def put_symlink(directory: Path, name: str, target: str, *, expected: FileIdentity) -> bool:
    """Replace the segment `name` by a relative symlink to its sibling `target`; False if it is not `expected`."""
    temporary = directory / link_name(name)
    fs.unlink_if_present(temporary)
    fs.symlink(target, temporary)
    done = _put(directory / name, temporary, expected)
    if not done:
        fs.unlink_if_present(temporary)
    return done


def _put(name: Path, temporary: Path, expected: FileIdentity) -> bool:
    if regular_identity(name) != expected:
        return False
    fs.rename(temporary, name)
    return True
