"""The owner of a log: whether it is stopped, or follows compactions, by what its files and processes show."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from compaction.api.policy.segment_logs import Ownership
from compaction.api.text.printing import printable
from compaction.segments.directory import fs
from compaction.segments.directory.lock import HeldLock, replace_file
from compaction.segments.errors import OwnerRunningError
from compaction.segments.format import names
from compaction.segments.snapshot.directories import INDEXES_FILE, SNAPSHOTS, parse_snapshot_name

# The marker of an owner that follows compactions: `compaction.owner` in the directory of its system of logs.
#
# Without it, write-ahead logs (`*.wal`) above a log belong to a server of unknown kind, whose list of segments may be
# in its memory, and the log is left alone. The marker is that owner's own word, in version 1, that it keeps to the
# rules of docs/design/segment-owner.md while it runs: it takes the log's lock for what it deletes, finds replaced
# segments by name and inode, writes the newest segment only, and deletes no other name than by these rules. It is
# written and synced before the system's first write-ahead log, and stays for ever: after a stop, or a kill, the same
# is true.
#
# It says nothing about a Ra server. Where `meta.dets` or `names.dets` lie, which every Ra server creates when it
# starts, its rules decide (`owner`).

MARKER_FILE: Final = "compaction.owner"
TEMPORARY_FILE: Final = "compaction.owner.tmp"
RULES: Final = 1
"""The version of the rules that an owner keeps to."""
_LARGEST: Final = 4096


class Marker(StrEnum):
    """The state of the marker in the directory of a system."""

    ABSENT = "Absent"
    FOLLOWS = "Follows"
    FOREIGN = "Foreign"
    """It is no marker, or of other rules than are known here."""


def read_marker(system: Path) -> tuple[Marker, str]:
    """Return the state of the marker in the directory of a system, and the fault of one that is FOREIGN.

    Never raises: a marker that cannot be read is no evidence.
    """
    # O_NONBLOCK: no FIFO under this name may hang us before it is refused.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(system / MARKER_FILE, flags)
    except FileNotFoundError:
        return Marker.ABSENT, ""
    except OSError as error:
        return Marker.FOREIGN, error.strerror or str(error)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return Marker.FOREIGN, "it is not a regular file"
        return _judge(os.pread(fd, _LARGEST, 0))
    except OSError as error:
        return Marker.FOREIGN, error.strerror or str(error)
    finally:
        os.close(fd)


def write_marker(system: Path, *, held: HeldLock) -> None:
    """Say, durably, that the owner of this system follows compactions. `held`: the system's lock. OSError passes
    through.
    """
    if read_marker(system)[0] is Marker.FOLLOWS:
        # A crash may have come between its rename and the sync of the directory.
        fs.sync_directory(system)
        return
    data = json.dumps({"owner": "LogSystem", "rules": RULES}).encode()
    replace_file(system / TEMPORARY_FILE, system / MARKER_FILE, data, access=None, held=held)
    fs.sync_directory(system)


def _judge(data: bytes) -> tuple[Marker, str]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        # RecursionError: deeply nested JSON, which no owner writes.
        return Marker.FOREIGN, "it is not JSON"
    rules = said.get("rules") if isinstance(said, dict) else None
    if type(rules) is not int or rules != RULES:
        return Marker.FOREIGN, f"it is not of rules {RULES}"
    return Marker.FOLLOWS, ""


# Signs that the Ra server that owns a log is stopped, or that the log's owner is one that follows compactions: what
# files say, and what the kernel says of them. Reads only.
#
# A running server holds its list of segments in memory. What a compaction replaces behind its back, its next
# compaction deletes: 20 to 51 of 493 keys (docs/design/segment-commit.md#a-running-owner). A Ra system is one data
# directory with `meta.dets`, `*.wal`, and one directory per log; so the signs lie in the log's parent directory.
#
# * Bytes 8 to 11 of `meta.dets` are 0 from the first write on, also after a kill, and 1 after a close. They are 1 as
#   well while a server runs that has written nothing for five seconds: DETS marks the file as closed whenever it
#   saves it (docs/adr/0205). So 0 says "not stopped cleanly", and 1 alone says nothing.
# * The kernel grants a read lease on a file only if no process has it open for writing, in whatever container it
#   runs. A server has `meta.dets` open for writing from start to stop.
#
# A directory without `meta.dets` and `*.wal` is no Ra system; its owner keeps to the fence (docs/segment-logs.md).
# Nor is one with `*.wal`, neither `meta.dets` nor `names.dets`, and the marker of an owner that follows compactions
# (`marker`): its logs are compacted while it runs.

META_FILE: Final = "meta.dets"
NAMES_FILE: Final = "names.dets"
"""Beside `meta.dets` in every Ra system: should that be lost, this one still says whose system it is."""
WAL_SUFFIX: Final = ".wal"
_COOKIE: Final = b"\x00\xab\xcd\xef"
"""Bytes 4 to 7 of every DETS file."""
_HEADER_BYTES: Final = 12
_PROCESSES: Final = "/proc"


class Mark(StrEnum):
    """The state that `meta.dets` records of itself."""

    ABSENT = "Absent"
    OPEN = "Open"
    CLOSED = "Closed"
    FOREIGN = "Foreign"
    UNREADABLE = "Unreadable"


class Writers(StrEnum):
    """The presence of a process on this machine that has `meta.dets` open for writing."""

    NONE = "None"
    SOME = "Some"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class OwnerSigns:
    """The signs of life in one data directory (`system`), at one moment.

    `wals`: names of its write-ahead logs; `detail`: what is wrong with a mark that is FOREIGN or UNREADABLE, or with
    the marker, or why WRITERS is UNKNOWN. `marker`: read only where the mark is ABSENT; ABSENT where `names.dets` lies.
    """

    system: Path
    mark: Mark = Mark.ABSENT
    writers: Writers = Writers.UNKNOWN
    wals: tuple[str, ...] = ()
    detail: str = ""
    marker: Marker = Marker.ABSENT

    @property
    def is_ra_system(self) -> bool:
        return self.mark is not Mark.ABSENT or (bool(self.wals) and self.marker is not Marker.FOLLOWS)

    def doubt(self, *, process: str = "") -> str:
        """Return why the owner cannot be taken for stopped; empty when it can.

        `process`: the process that has its files open, if known.
        """
        meta = self.system / META_FILE
        silent = "so it does not say whether the log's owner runs"
        if self.mark is Mark.ABSENT:
            return self._doubt_of_wals() if self.is_ra_system else ""
        if self.mark is Mark.FOREIGN:
            return f"{meta} is not a file of Ra ({self.detail}), {silent}"
        if self.mark is Mark.UNREADABLE:
            return f"{meta} cannot be read ({self.detail}), {silent}"
        if self.writers is Writers.SOME:
            return f"the log's owner runs: {process or 'a process'} has {meta} open for writing"
        if self.mark is Mark.OPEN:
            where = " on another machine" if self.writers is Writers.NONE else ""
            return f"{meta} was not closed (bytes 8 to 11 are 0): the log's owner runs{where}, or was killed"
        if self.writers is Writers.UNKNOWN:
            return (
                f"{meta} is closed, as it is while an owner runs that has nothing to write, and whether a process has "
                f"it open cannot be found out here ({self.detail})"
            )
        return ""

    def _doubt_of_wals(self) -> str:
        wal = self.system / self.wals[0]
        if self.marker is Marker.FOREIGN:
            marker = self.system / MARKER_FILE
            return f"{wal} lies there, and {marker} does not say that its owner follows compactions: {self.detail}"
        return f"{wal} lies there without {META_FILE}, so it does not say whether the log's owner runs"


def system_of(directory: Path) -> Path:
    """The data directory of the Ra system that a log may belong to, whatever links lead to the log."""
    return Path(os.path.realpath(directory)).parent


def is_ra_directory(system: Path) -> bool:
    """Return whether a Ra server has used this data directory: it creates both files before anything else."""
    return any(os.path.lexists(system / name) for name in (META_FILE, NAMES_FILE))


def look_for_owner(directory: Path) -> OwnerSigns:
    """The signs of life beside a log."""
    system = system_of(directory)
    return signs_in(system, wals=_write_ahead_logs(system))


def signs_in(system: Path, *, wals: tuple[str, ...]) -> OwnerSigns:
    """The signs of life in a data directory that holds these write-ahead logs. Never raises: what cannot be read is one
    of the signs.
    """
    # O_NONBLOCK: no FIFO under this name may hang us before it is refused.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(system / META_FILE, flags)
    except FileNotFoundError:
        return _signs_without_mark(system, wals)
    except OSError as error:
        return OwnerSigns(system, Mark.UNREADABLE, wals=wals, detail=error.strerror or str(error))
    try:
        mark, what = _mark(fd)
        writers, why = _writers(fd) if mark in (Mark.OPEN, Mark.CLOSED) else (Writers.UNKNOWN, "")
    except OSError as error:
        return OwnerSigns(system, Mark.UNREADABLE, wals=wals, detail=error.strerror or str(error))
    finally:
        os.close(fd)
    return OwnerSigns(system, mark, writers, wals, what or why)


def _signs_without_mark(system: Path, wals: tuple[str, ...]) -> OwnerSigns:
    if not wals or os.path.lexists(system / NAMES_FILE):
        return OwnerSigns(system, wals=wals)
    marker, wrong = read_marker(system)
    return OwnerSigns(system, wals=wals, detail=wrong, marker=marker)


def require_stopped(directory: Path, ownership: Ownership) -> None:
    """OwnerRunningError unless the log's owner is stopped, or follows compactions, or the caller says that it is."""
    if ownership is Ownership.STOPPED:
        return
    if doubt := doubt_of(look_for_owner(directory)):
        raise OwnerRunningError(str(directory), doubt, hazard_in(directory))


def hazard_in(directory: Path) -> str:
    """Return the hazard that a start of a Ra server now would be to a log; empty when it may be started.

    The text says what the server would lose, and what comes first.

    To Ra, a marker without its copy means "committed", and a snapshot without `indexes` means that nothing is live
    (docs/design/segment-commit.md#windows-of-the-reference, W1 and W2). Never raises.
    """
    with suppress(OSError):
        if name := names.unfinished(os.listdir(directory)):
            command = f"`compactor segments sweep {directory} --apply --owner-stopped`"
            return f"{name} is of a compaction that is not finished: run {command} first"
        snapshots = sorted(filter(parse_snapshot_name, os.listdir(directory / SNAPSHOTS)))
        if snapshots and not os.path.lexists(directory / SNAPSHOTS / snapshots[-1] / INDEXES_FILE):
            newest = f"{SNAPSHOTS}/{snapshots[-1]}"
            return f"{newest} has no `indexes`: restore it first, unless the server's machine never has live indexes"
    return ""


def doubt_of(signs: OwnerSigns) -> str:
    """As `OwnerSigns.doubt`, with the process that has the files open where it can be found."""
    return signs.doubt(process=writing_process(signs) if signs.writers is Writers.SOME else "")


def writing_process(signs: OwnerSigns) -> str:
    """A process that has `meta.dets` or a write-ahead log open, as a person can find it: `process 5 (beam.smp)`; empty
    when there is none, or it is in another container, or this account may not see it.
    """
    known = {os.path.join(signs.system, name) for name in (META_FILE, *signs.wals)}
    for process, path in _open_files():
        if path in known:
            return f"process {process} ({_name_of(process)})"
    return ""


def _write_ahead_logs(system: Path) -> tuple[str, ...]:
    """In name order; none where the directory cannot be listed: `meta.dets` is asked all the same."""
    try:
        with os.scandir(system) as entries:
            return tuple(
                sorted(e.name for e in entries if e.name.endswith(WAL_SUFFIX) and e.is_file(follow_symlinks=False))
            )
    except OSError:
        return ()


def _mark(fd: int) -> tuple[Mark, str]:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return Mark.FOREIGN, "it is not a regular file"
    header = os.pread(fd, _HEADER_BYTES, 0)
    if len(header) < _HEADER_BYTES:
        return Mark.FOREIGN, f"it has {len(header)} bytes"
    if header[4:8] != _COOKIE:
        return Mark.FOREIGN, "it does not begin as a DETS file does"
    closed = int.from_bytes(header[8:12], "big")
    if closed > 1:
        return Mark.FOREIGN, f"bytes 8 to 11 are {closed}"
    return (Mark.CLOSED if closed else Mark.OPEN), ""


def _writers(fd: int) -> tuple[Writers, str]:
    """By a read lease that is released at once. An owner that starts at this moment waits for that, microseconds."""
    if sys.platform != "linux":
        return Writers.UNKNOWN, "only Linux tells"
    try:
        # Whoever opens a leased file has its holder signalled, by default with SIGIO, which would end this process.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        # The kernel refuses a read lease while the file is open for writing.
        return Writers.SOME, ""
    except PermissionError:
        # Only the owner of a file may take a lease on it, or a process with CAP_LEASE.
        return Writers.UNKNOWN, f"it belongs to uid {os.fstat(fd).st_uid}: run as that user"
    except OSError as error:
        return Writers.UNKNOWN, f"its file system does not tell: {error.strerror}"
    # Explicitly: a child that is being forked at this moment shares the open file, and closing it would not be enough.
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return Writers.NONE, ""


def _open_files() -> Iterator[tuple[str, str]]:
    """(pid, path) of the open files of all processes that this one may inspect."""
    with suppress(OSError):
        for process in filter(str.isdecimal, os.listdir(_PROCESSES)):
            with suppress(OSError):
                for fd in os.listdir(f"{_PROCESSES}/{process}/fd"):
                    with suppress(OSError):
                        yield process, os.readlink(f"{_PROCESSES}/{process}/fd/{fd}")


def _name_of(process: str) -> str:
    try:
        with open(f"{_PROCESSES}/{process}/comm", encoding="utf-8", errors="replace") as file:
            return printable(file.read().strip())
    except OSError:
        return "it has ended since"
