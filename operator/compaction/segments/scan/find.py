"""Finds the directories below a root that hold logs, lists those again that have changed, and names those it
cannot read.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Final

from compaction.api.text.printing import printable
from compaction.segments.directory.fs import storage_error
from compaction.segments.directory.owner import WAL_SUFFIX
from compaction.segments.errors import (
    CorruptFenceError,
    CorruptSegmentError,
    GlobSyntaxError,
    LiveEntriesMissingError,
    LiveSetUnknownError,
    OwnerRunningError,
    SegmentLogError,
)
from compaction.segments.model import SEGMENT_NAME
from compaction.segments.snapshot.directories import SNAPSHOTS

# Include and exclude patterns for log directories: relative paths, `/` between parts.
#
# `*` and `?` stay inside one part, `[...]` is a set, `**` as a whole part stands for any number of parts, none
# included. So `**` matches the root itself as well, `*` only what lies directly below it, `**/archive/**` everything
# below any `archive`.
#
# Matching takes at most (parts of the pattern) x (parts of the path) steps, whatever the two say: a pattern comes
# from any user who may write a policy, a name from any who may create a directory, and neither may stop the
# coordinator.

_LONGEST_QUOTE = 80

Glob = tuple[re.Pattern[str] | None, ...]
"""A compiled pattern, part by part; None for `**`."""


def compile_globs(patterns: Iterable[str]) -> tuple[Glob, ...]:
    """Compiled patterns. GlobSyntaxError for an absolute one, one with `..`, an empty one, or one that cannot mean what
    it says (`***`, a `[` without its `]`).
    """
    return tuple(_compile(pattern) for pattern in patterns)


def matches(patterns: tuple[Glob, ...], relative: str) -> bool:
    """Return whether any pattern matches a path relative to the root (`""` for the root itself)."""
    names = relative.split("/") if relative else []
    return any(_matches(pattern, names) for pattern in patterns)


def _matches(pattern: Glob, names: list[str]) -> bool:
    """Greedy: should a part not match, the last `**` takes one name more. Going back further never helps."""
    part = name = 0
    any_depth, taken = -1, 0
    while name < len(names):
        wanted = pattern[part] if part < len(pattern) else None
        if part < len(pattern) and wanted is None:
            any_depth, taken = part, name
            part += 1
        elif wanted is not None and wanted.fullmatch(names[name]):
            part, name = part + 1, name + 1
        elif any_depth >= 0:
            taken += 1
            part, name = any_depth + 1, taken
        else:
            return False
    return all(rest is None for rest in pattern[part:])


def _compile(pattern: str) -> Glob:
    parts = pattern.strip("/").split("/") if not pattern.startswith("/") else []
    if not parts or any(part in ("", ".", "..") for part in parts):
        raise GlobSyntaxError(
            f"{_quoted(pattern)}: a pattern is a path relative to the root, without empty parts, `.` and `..`"
        )
    if "***" in pattern:
        raise GlobSyntaxError(f"{_quoted(pattern)}: write `**` for any depth, `*` within one name")
    if any("[" in re.sub(r"\[[^\]]+\]", "", part) for part in parts):
        raise GlobSyntaxError(
            f"{_quoted(pattern)}: a `[` has no `]` in the same name; write `[[]` for the character itself"
        )
    return tuple(None if part == "**" else re.compile(_translate(part)) for part in parts)


def _quoted(pattern: str) -> str:
    return repr(pattern[:_LONGEST_QUOTE])


def _translate(part: str) -> str:
    """One part. What follows a star is looked for once, at its first place (an atomic group): no star is tried again
    for the sake of a later one, which is never needed and takes exponential time.
    """
    chunks = [""]
    for piece in re.split(r"(\*+|\?|\[[^\]]+\])", part):
        if piece.startswith("*"):
            chunks.append("")
        elif piece == "?":
            chunks[-1] += "."
        elif piece.startswith("[") and piece.endswith("]"):
            chunks[-1] += fnmatch.translate(piece)[4:-3]
        else:
            chunks[-1] += re.escape(piece)
    first, *rest = chunks
    if not rest:
        return f"(?s:{first})"
    middle = "".join(f"(?>.*?{chunk})" for chunk in rest[:-1] if chunk)
    return f"(?s:{first}{middle}.*{rest[-1]})"


# The rule by which what was read of a directory may be used again without reading it, and what the rule depends on.
#
# A name that appears in a directory, goes, or is renamed changes the directory's ctime (and mtime), by any process
# and however. So one `stat` tells whether a listing is still true, but for two traps:
#
# * **Ticks.** A file system stamps with a clock that moves in ticks (4 ms on ext4, 2 s on FAT). A change in the same
#   tick as an earlier one leaves the stamp as it was. So a listing is trusted only when it was made at least
#   `SETTLE_SECONDS` after the very same stamp was first seen: a change after *that* listing falls into a later tick.
#   (Git's rule for "racy" files compares the stamp with the time of the reading; a file server's clock and ours may
#   differ, so only our own monotonic clock is asked here.)
# * **Writing in place** changes a file, not its directory. What is written in place in a log is the newest segment,
#   which no plan touches. Whole segments and complete snapshots are never written again by their owner
#   (docs/design/segment-commit.md#a-running-owner); should a user do it (a file restored with `cp`), every log is
#   read file by file again once in `VERIFY_LOOKS` scans, a few logs at each.
#
# The stamp is ctime beside mtime: no program can set it.

SETTLE_SECONDS: Final = 2.0
"""The coarsest tick of a file system in use."""
VERIFY_LOOKS: Final = 64

State = tuple[int, int, int, int, int]
"""Device, inode, mode (permissions included), mtime and ctime in nanoseconds."""


def state_of(path: str, *, follow: bool = False) -> State | None:
    """The state of a name itself, or of what it links to; None when there is none. Other OSErrors pass through."""
    try:
        found = os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_mtime_ns, found.st_ctime_ns


@dataclass(slots=True)
class Trust:
    """The states under which a reading was made, and whether it may be used while they stay.

    `since`: the time at which the states were first seen.
    """

    states: tuple[State | None, ...] = ()
    since: float = 0.0
    settled: bool = False

    def holds(self, states: tuple[State | None, ...]) -> bool:
        """True when nothing can have changed since the last reading."""
        return self.settled and states == self.states

    def was_read(self, states: tuple[State | None, ...], *, asked: float, now: float) -> None:
        """Everything was read just now. `states` were taken before that, and after `asked`; both monotonic."""
        if states != self.states:
            self.states, self.since, self.settled = states, now, False
        elif asked - self.since >= SETTLE_SECONDS:
            self.settled = True


# The reason why a log, or a directory in which logs may be, could not be read: as data, with the whole message.


class LogErrorReason(StrEnum):
    """The reason why a log, or a directory in which logs may be, could not be read."""

    NOT_FOUND = "NotFound"
    NOT_A_DIRECTORY = "NotADirectory"
    PERMISSION_DENIED = "PermissionDenied"
    OUTSIDE_ROOT = "OutsideRoot"
    CORRUPT_SEGMENT = "CorruptSegment"
    CORRUPT_FENCE = "CorruptFence"
    LIVE_SET_UNKNOWN = "LiveSetUnknown"
    LOG_INVALID = "LogInvalid"
    OWNER_RUNNING = "OwnerRunning"
    LIVE_ENTRIES_MISSING = "LiveEntriesMissing"
    INPUT_OUTPUT = "InputOutputError"


@dataclass(frozen=True, slots=True)
class LogError:
    """A path, why it was left out, and the whole message. `segment`: the file's name when one segment is to blame."""

    path: Path
    reason: LogErrorReason
    message: str
    segment: str | None = None


_REASONS: Final[Mapping[type[Exception], LogErrorReason]] = {
    LiveSetUnknownError: LogErrorReason.LIVE_SET_UNKNOWN,
    CorruptSegmentError: LogErrorReason.CORRUPT_SEGMENT,
    OwnerRunningError: LogErrorReason.OWNER_RUNNING,
    LiveEntriesMissingError: LogErrorReason.LIVE_ENTRIES_MISSING,
    CorruptFenceError: LogErrorReason.CORRUPT_FENCE,
    PermissionError: LogErrorReason.PERMISSION_DENIED,
    FileNotFoundError: LogErrorReason.NOT_FOUND,
    NotADirectoryError: LogErrorReason.NOT_A_DIRECTORY,
    OSError: LogErrorReason.INPUT_OUTPUT,
}
"""The first that an error is of; any other is an invalid log."""


def log_error(path: Path, error: SegmentLogError | OSError) -> LogError:
    """The entry for a log, or a directory, that could not be read."""
    reason = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), LogErrorReason.LOG_INVALID)
    segment = Path(error.file).name if isinstance(error, CorruptSegmentError) else None
    message = str(error)
    if isinstance(error, OSError):
        named = storage_error(error, path)
        message = f"{getattr(named, 'path', path)}: {error.strerror or error}"
    return LogError(path=path, reason=reason, message=message, segment=segment)


def unnameable(path: str) -> LogError:
    """An error for a directory that no resource can name: strings of the API are UTF-8, and so are jobs' sources; and
    lines of output must not be written by users who may create a directory.
    """
    said = printable(path)
    message = f"{said}: name is not valid UTF-8, or holds control characters: rename it"
    return LogError(path=Path(said), reason=LogErrorReason.LOG_INVALID, message=message)


def leads_out(root: Path, path: str) -> LogError | None:
    """An error for a symlinked directory that leads out of the root; one that stays inside is found under its own
    name.
    """
    said = printable(path)
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return None
    except PermissionError as error:
        message = f"{said}: a symbolic link whose target may not be read ({error.strerror}): not followed"
        return LogError(path=Path(said), reason=LogErrorReason.PERMISSION_DENIED, message=message)
    except OSError:
        return None  # it leads nowhere: dangling, in a circle, through a file
    # Not Path.resolve, which has an error of its own for links in a circle.
    target = os.path.realpath(path)
    if Path(target).is_relative_to(os.path.realpath(root)):
        return None
    message = (
        f"{said}: a symbolic link to {printable(target)}, outside of {root}: not followed; make that directory a root"
    )
    return LogError(path=Path(said), reason=LogErrorReason.OUTSIDE_ROOT, message=message)


# Finds the directories that hold segment logs below a root, and lists only those again that have changed.
#
# Invariants: nothing outside the root is ever read (a symlink that leads out is refused, by name); nothing that
# cannot be read is passed over in silence.

# A log's own directories: what lies in them belongs to the log.
_INSIDE_A_LOG = frozenset({SNAPSHOTS, "checkpoints", "recovery_checkpoint"})


@dataclass(frozen=True, slots=True)
class FoundLog:
    """A log's directory; its state as of `asked` (monotonic) or later, and before anything in it was read. `wals`: the
    first write-ahead log in the directory above; None for the root itself, above which nothing was listed.
    """

    path: Path
    state: State | None
    asked: float
    wals: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Directory:
    """The content of a listing.

    `links`: those whose target may become another without a trace here; `wals`: the directory's first write-ahead log.
    """

    number: int
    path: Path
    trust: Trust = field(default_factory=Trust)
    is_selected_log: bool = False
    below: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    wals: tuple[str, ...] = ()
    errors: tuple[LogError, ...] = ()


class LogFinder:
    """Remembers the directories below one root. About 1 KB per directory.

    `include` and `exclude` are patterns of paths relative to the root (see above).
    """

    def __init__(
        self,
        root: Path,
        *,
        include: tuple[str, ...],
        exclude: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._include = include
        self._exclude = exclude
        self._clock = clock
        self._known: dict[str, _Directory] = {}
        self._numbers = count()
        self._looks = 0

    def find(self) -> Iterator[FoundLog | LogError]:
        """Every log directory (with at least one file named like a segment), and what could not be searched.

        GlobSyntaxError when a pattern is not one.
        """
        self._wanted, self._unwanted = compile_globs(self._include), compile_globs(self._exclude)
        self._looks += 1
        pending, before = [""], self._known
        self._known = {}
        while pending:
            relative = pending.pop()
            path = f"{self._root}/{relative}" if relative else str(self._root)
            known = before.get(relative) or _Directory(next(self._numbers), Path(path))
            asked = self._clock()
            try:
                state = self._state(path, relative)
                # Some directories at each look, changed or not: writing in place leaves no trace in their state.
                verified = (known.number + self._looks) % VERIFY_LOOKS == 0
                if state is None or verified or not known.trust.holds((state,)):
                    self._list(known, relative, path)
                    known.trust.was_read((state,), asked=asked, now=self._clock())
            except OSError as error:
                # An excluded directory may be unreadable, which is no problem then.
                if not matches(self._unwanted, relative):
                    yield log_error(Path(path), error)
                continue
            self._known[relative] = known
            if known.is_selected_log:
                yield FoundLog(
                    known.path, state, asked, self._known[relative.rpartition("/")[0]].wals if relative else None
                )
            yield from known.errors
            for link in known.links:
                if refused := leads_out(self._root, link):
                    yield refused
            pending += known.below

    def _state(self, path: str, relative: str) -> State | None:
        """Of a directory, or of what the root links to; None when it is gone, as listing it will say."""
        state = state_of(path, follow=not relative)
        if state is not None and not stat.S_ISDIR(state[2]) and relative:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return state

    def _list(self, known: _Directory, relative: str, path: str) -> None:
        is_log, directories, symlinks, wals = _names(path, follow=not relative)
        below, links, errors = [], [], []
        for name, leads_to_directory in symlinks:
            inside = f"{relative}/{name}" if relative else name
            # A segment's link to its sibling is no way out, and there may be very many.
            if self._selects(inside) and (leads_to_directory or not SEGMENT_NAME.fullmatch(name)):
                links.append(f"{path}/{name}")
        for name in directories:
            inside = f"{relative}/{name}" if relative else name
            if is_log and name in _INSIDE_A_LOG:
                continue
            if printable(inside) == inside:
                below.append(inside)
            elif not matches(self._unwanted, inside):
                errors.append(unnameable(f"{path}/{name}"))
        known.is_selected_log = is_log and self._selects(relative)
        known.below, known.links, known.errors = tuple(below), tuple(links), tuple(errors)
        known.wals = wals

    def _selects(self, relative: str) -> bool:
        return matches(self._wanted, relative) and not matches(self._unwanted, relative)


def _names(path: str, *, follow: bool) -> tuple[bool, list[str], list[tuple[str, bool]], tuple[str, ...]]:
    """Of one directory: whether it is a log's; its directories; its symbolic links, and whether each leads to one; its
    first write-ahead log, if any.

    Sorted. Ordinary files are not kept, however many there are. Without `follow` a directory that was replaced by a
    link since it was found is an error, and nothing behind the link is seen.
    """
    is_log, directories, symlinks = False, [], []
    wal: str | None = None
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if entry.is_symlink():
                    symlinks.append((entry.name, _may_lead_to_directory(entry)))
                elif entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                elif entry.name.endswith(WAL_SUFFIX) and entry.is_file(follow_symlinks=False):
                    wal = min(wal or entry.name, entry.name)
                elif not is_log:
                    is_log = SEGMENT_NAME.fullmatch(entry.name) is not None and entry.is_file(follow_symlinks=False)
    except OSError as error:
        # A descriptor was listed, so the error itself names no path.
        error.filename = path
        raise
    finally:
        os.close(fd)
    return is_log, sorted(directories), sorted(symlinks), () if wal is None else (wal,)


def _may_lead_to_directory(link: os.DirEntry[str]) -> bool:
    """Also when its target may not be read; not when it leads in a circle."""
    try:
        return link.is_dir()
    except PermissionError:
        return True
    except OSError:
        return False
