"""Finds the directories that hold segment logs below a root, and lists only those again that have changed.

Invariants: nothing outside the root is ever read (a symlink that leads out is refused, by name); nothing that
cannot be read is passed over in silence.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from compaction.api.text.safe import printable
from compaction.segments.directory.owner import WAL_SUFFIX
from compaction.segments.model import SEGMENT_NAME
from compaction.segments.scan.changes import VERIFY_LOOKS, State, Trust, state_of
from compaction.segments.scan.globs import compile_globs, matches
from compaction.segments.scan.problems import LogError, leads_out, log_error, unnameable
from compaction.segments.snapshot.directories import SNAPSHOTS

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
    """What a listing said. `links`: those whose target may become another without a trace here; `wals`: the directory's
    first write-ahead log.
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

    `include` and `exclude` are patterns of paths relative to the root (see `globs`).
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
                verified = (known.number + self._looks) % VERIFY_LOOKS == 0
                if state is None or verified or not known.trust.holds((state,)):
                    self._list(known, relative, path)
                    known.trust.was_read((state,), asked=asked, now=self._clock())
            except OSError as error:
                if not matches(self._unwanted, relative):
                    yield log_error(Path(path), error)
                continue
            self._known[relative] = known
            if known.is_selected_log:
                yield FoundLog(known.path, state, asked, self._wals_above(relative))
            yield from known.errors
            for link in known.links:
                if refused := leads_out(self._root, link):
                    yield refused
            pending += known.below

    def _wals_above(self, relative: str) -> tuple[str, ...] | None:
        return self._known[relative.rpartition("/")[0]].wals if relative else None

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
