"""Evidence for recovery: what each file of a half-done commit holds, and what may be done with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np

from compaction.segments.commit.records import KnownFile, PendingCommit
from compaction.segments.directory.fs import regular_identity, regular_segments, status
from compaction.segments.errors import CorruptSegmentError, SegmentLogError
from compaction.segments.format import names
from compaction.segments.format.segment_file import pread_up_to, read_segment
from compaction.segments.model import FileIdentity, RowArray, SegmentIndex, U64Array
from compaction.segments.planning.unreferenced import find_stranded
from compaction.segments.reading.view import LogState, SegmentRef, open_log

# Proofs by content: what one file holds of another, and what a log provides without a file.
#
# Asked before a name is replaced, or a file removed, whose content is no longer known: a commit without its record, a
# restored copy, Ra's own half-done compaction. Everything here reads, nothing changes.


def covers(log: LogState, leader: str, member: str) -> bool:
    """Return whether the segment `member` can become a link to `leader` without a loss.

    The leader holds everything that must survive of what is read from the member now: index, term, the same bytes.
    False as well for what reaches above the snapshot, for the newest segment, for a damaged one, for a member that
    alone holds a live entry which newer files hide, and while live entries are missing. When the live set is unknown,
    everything is live.
    """
    present = {segment.name for segment in log.segments}
    if log.snapshot_index is None or not log.refs or member >= log.refs[-1].name or not {leader, member} <= present:
        return False
    if log.missing or log.segment(member).damage or _holds_stranded(log, member):
        return False
    ref = log.ref(member)
    return ref is None or _holds_all(log, leader, ref, log.snapshot_index)


def _holds_stranded(log: LogState, member: str) -> bool:
    """Coverage is about what is read from a member. What newer files hide in it comes back when those are deleted."""
    if log.live is not None:
        return member in find_stranded(log, log.live)
    segment, ref = log.segment(member), log.ref(member)
    readable = 0 if ref is None else log.readable(ref).size
    return readable < int(np.count_nonzero(segment.effective))


def _holds_all(log: LogState, leader: str, ref: SegmentRef, snapshot_index: int) -> bool:
    if ref.last > snapshot_index:
        return False
    output, source = log.segment(leader), log.segment(ref.name)
    wanted = log.readable(ref)
    if log.live is not None:
        wanted = wanted[log.live.mask(source.idx[wanted])]
        if wanted.size != log.live.count_in(ref.first, ref.last):
            return False
    held = np.flatnonzero(output.effective)
    at = np.searchsorted(output.idx[held], source.idx[wanted])
    if np.any(at >= held.size):
        return False
    found = held[at]
    same = (
        (output.idx[found] == source.idx[wanted])
        & (output.term[found] == source.term[wanted])
        & (output.length[found] == source.length[wanted])
        & (output.crc[found] == source.crc[wanted])
    )
    return bool(np.all(same)) and same_payloads(output, found, source, wanted)


def same_payloads(index: SegmentIndex, rows: RowArray, other: SegmentIndex, other_rows: RowArray) -> bool:
    """Return whether the payloads of `rows` are those of `other_rows`, position by position; False for a torn one.

    Bytes are compared: equal stored checksums prove nothing about bytes that never reached the disk.
    """
    left, right = (os.open(s.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) for s in (index, other))
    try:
        for mine, theirs in zip(rows.tolist(), other_rows.tolist(), strict=True):
            length = int(other.length[theirs])
            if int(index.length[mine]) != length:
                return False
            copy = pread_up_to(left, length, int(index.offset[mine]))
            if len(copy) != length or copy != pread_up_to(right, length, int(other.offset[theirs])):
                return False
    finally:
        os.close(left)
        os.close(right)
    return True


def not_provided(log: LogState, segment: SegmentIndex) -> U64Array:
    """The indexes that must survive, that the file `segment` holds, and that the log does not provide.

    `segment`: a file that is no part of the log. When the live set is unknown, everything is live.
    """
    held = segment.idx[segment.effective]
    if log.snapshot_index is None or log.live is not None:
        held = held[log.live_mask(held)]
    if not held.size or not log.refs:
        return held
    readable = np.concatenate([log.segment(ref.name).idx[log.readable(ref)] for ref in log.refs])
    return np.setdiff1d(held, readable)


# Actions that recovery may take on a commit that a crash left half-done: decided from every file it would touch, one
# by one.
#
# Between a crash and the recovery anybody may have acted: the log's owner with a compaction of its own, another
# compactor, a user who restored a directory. So no name is trusted. An intent says which file each name was: inode,
# size, modification time, and a mark of the content. (Not the device: some file systems have another at each mount.)
#
# * The lowest name is the intent's output, and a higher name is the very file that the intent recorded: it is
#   replaced.
# * Something differs but size and mark (a restored directory has new inodes), or nothing is recorded (a lost fence, a
#   commit of the design note's own protocol): a name is replaced only if the output holds, byte for byte, all that
#   must survive of it (below).
# * The first name that is neither ends the commit there: that file hides the output from its own first index on, so
#   all that lies above it stays, whatever it is.
# * The output of a commit that did not happen is removed only if the log provides what is live in it.
#
# Everything here reads; `recovery` acts on the verdict.

_SHOWN: Final = 3


class Stays(StrEnum):
    """The reason why a name of a commit is not replaced any more."""

    CHANGED = "Changed"
    """It is no longer the file that the commit read."""
    NOT_COVERED = "NotCovered"
    """No record says which file it was, and the output does not provably hold all that must survive of it."""
    HIDES_OUTPUT = "HidesOutput"
    """A segment that is none of the commit's lies below it, and hides the output from there on."""


class Likeness(StrEnum):
    """The result of comparing a file with a recorded one."""

    SAME = "Same"
    """That very file."""
    COPY = "Copy"
    """Another file of the same size with the same index: a restored one."""
    OTHER = "Other"


@dataclass(frozen=True, slots=True)
class StayingName:
    """A segment that a commit was to replace, and that stays a file of its own."""

    segment: str
    reason: Stays


@dataclass(frozen=True, slots=True)
class SegmentReplacement:
    """A name to replace by a link, and the file it must still be right before that."""

    segment: str
    identity: FileIdentity


@dataclass(frozen=True, slots=True)
class CommitVerdict:
    """The decision about one half-done commit.

    `committed`: its output is in place. `replace`: names that become links now, ascending. `linked`: all names that are
    links to the output then. `stays`: names that were to become links and do not. `needed`: why the `.compacting` file
    must stay; empty when it can go.
    """

    committed: bool
    replace: tuple[SegmentReplacement, ...] = ()
    linked: tuple[str, ...] = ()
    stays: tuple[StayingName, ...] = ()
    needed: str = ""


@dataclass(slots=True)
class _Look:
    """The log's view, opened when a proof needs it; None when it cannot be read, and then `error` says why."""

    directory: Path
    error: str = ""
    _state: list[LogState | None] = field(default_factory=list)

    @property
    def log(self) -> LogState | None:
        if not self._state:
            try:
                self._state.append(open_log(self.directory))
            except SegmentLogError as error:
                self.error = str(error)
                self._state.append(None)
        return self._state[0]


def judge(directory: Path, compacting: str, intent: PendingCommit | None) -> CommitVerdict:
    """The verdict about the commit whose output is, or was, named `compacting`. OSError passes through."""
    group = names.parse_compacting(compacting)
    assert group is not None, f"{compacting} is no .compacting name"
    lowest, *others = names.group_sources(group)
    if intent is not None:
        # The intent also knows the dead segments between the sources.
        others = list(intent.receipt.linked)
    look = _Look(directory)
    output = _output(directory, compacting, lowest, intent)
    needed = _needed(directory, compacting, lowest, intent, look)
    if output is Likeness.OTHER:
        return CommitVerdict(committed=False, needed=needed)
    known = {source.name: source for source in intent.replaced} if intent is not None else {}
    walk = _Walk(directory, lowest, known, look, trusted=output is Likeness.SAME)
    return replace(walk.along(others), needed=needed)


def likeness(path: Path, identity: FileIdentity, mark: str) -> Likeness:
    """Compare the regular file under `path` with a recorded one. `mark` empty: none was recorded."""
    found = regular_identity(path)
    if found is None or found.size != identity.size:
        return Likeness.OTHER
    if not mark:
        return Likeness.SAME if found == identity else Likeness.OTHER
    segment = _parsed(path)
    if segment is None or segment.mark != mark:
        return Likeness.OTHER
    return Likeness.SAME if found == identity else Likeness.COPY


def changed_names(directory: Path, intent: PendingCommit) -> list[str]:
    """Names of a commit that are no longer the files it recorded; the cheap look right before its commit point."""
    return [source.name for source in intent.replaced if regular_identity(directory / source.name) != source.identity]


def _output(directory: Path, compacting: str, lowest: str, intent: PendingCommit | None) -> Likeness:
    """Compare the file under the lowest name with the commit's output."""
    candidate, output = status(directory / compacting), status(directory / lowest)
    if output is None or regular_identity(directory / lowest) is None:
        return Likeness.OTHER
    one_file = candidate is not None and os.path.samestat(candidate, output)
    if intent is None:
        # The name alone: whether it is true of a higher source, its content says.
        return Likeness.COPY if one_file else Likeness.OTHER
    found = likeness(directory / lowest, intent.identity, intent.mark)
    if found is Likeness.SAME and candidate is not None and not one_file:
        return Likeness.COPY
    return found


@dataclass(frozen=True, slots=True)
class _Walk:
    """Up the higher names of a commit that happened. `known`: the recorded files; `trusted`: the output is the very
    file that was recorded, so that theirs is evidence.
    """

    directory: Path
    lowest: str
    known: Mapping[str, KnownFile]
    look: _Look
    trusted: bool

    def along(self, others: Sequence[str]) -> CommitVerdict:
        """`others`: the names that were to become links."""
        links: list[SegmentReplacement] = []
        linked: list[str] = []
        stays: list[StayingName] = []
        end: Stays | None = None
        regular = {n for n in regular_segments(self.directory) if self.lowest < n <= max(others, default=self.lowest)}
        for name in sorted(regular.union(others)):
            identity = regular_identity(self.directory / name)
            if name not in others:
                end = end or Stays.HIDES_OUTPUT
            elif identity is not None:
                end = end or self._why_not(name)
                if end is None:
                    links.append(SegmentReplacement(name, identity))
                    linked.append(name)
                else:
                    stays.append(StayingName(name, end))
            elif _leads_to(self.directory / name, self.lowest):
                linked.append(name)
            elif (self.directory / name).is_symlink():
                end = end or Stays.CHANGED
        return CommitVerdict(committed=True, replace=tuple(links), linked=tuple(linked), stays=tuple(stays))

    def _why_not(self, name: str) -> Stays | None:
        """Return the reason why a regular file must not be replaced; None when it may."""
        known = self.known.get(name)
        found = Likeness.OTHER if known is None else likeness(self.directory / name, known.identity, known.mark)
        if self.trusted and found is Likeness.SAME:
            return None
        if self.look.log is not None and covers(self.look.log, self.lowest, name):
            return None
        return Stays.CHANGED if known is not None and found is Likeness.OTHER else Stays.NOT_COVERED


def _leads_to(path: Path, target: str) -> bool:
    try:
        return os.path.basename(os.readlink(path)) == target
    except OSError:
        # No link any more, or gone: it leads nowhere.
        return False


def _needed(directory: Path, compacting: str, lowest: str, intent: PendingCommit | None, look: _Look) -> str:
    """Return why a file under the `.compacting` name must stay; empty when it can go."""
    path = directory / compacting
    candidate, other = status(path), status(directory / lowest)
    if candidate is None or (other is not None and os.path.samestat(candidate, other)):
        return ""
    missing = look.log is not None and look.log.missing
    if intent is not None and intent.replaced and not missing and not changed_names(directory, intent):
        return ""
    return _alone(path, look)


def why_partial_needed(directory: Path, name: str) -> str:
    """Return why the output of an attempt that is over must stay all the same; empty when it can go."""
    return _alone(directory / name, _Look(directory))


def _alone(path: Path, look: _Look) -> str:
    segment, log = _parsed(path), look.log
    reason = "" if segment is None else why_needed(segment, log, look.error)
    # A torn copy may be all that is left of what is missing.
    return reason or (log.entries_missing().reason if log is not None and log.missing else "")


def why_needed(segment: SegmentIndex, log: LogState | None, error: str = "") -> str:
    """Return why a file beside the log must not be removed; empty when it can go.

    A file stays when it alone holds something live, or when that is unknown.

    `log` None: it could not be read, as `error` says.
    """
    if log is None:
        return f"cannot determine whether the log provides its content: {error}"
    missing = not_provided(log, segment)
    if not missing.size:
        return ""
    shown = ", ".join(str(index) for index in missing[:_SHOWN].tolist())
    more = f" and {missing.size - _SHOWN} more" if missing.size > _SHOWN else ""
    return f"it holds entry {shown}{more}, which no segment of the log provides"


def _parsed(path: Path) -> SegmentIndex | None:
    """A segment file; None when there is none of its own under the name, or it is torn."""
    try:
        return read_segment(path)
    except (FileNotFoundError, CorruptSegmentError):
        return None
