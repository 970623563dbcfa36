"""Opens a system of logs: one process at a time, each log by itself, with what the write-ahead log holds."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from compaction.core.collecting import no_collection
from compaction.segments.directory import lock
from compaction.segments.directory.fs import fault_of, regular_segments
from compaction.segments.directory.owner import Writers, doubt_of, is_ra_directory, signs_in, write_marker
from compaction.segments.errors import NotALogDirectoryError, SegmentLogError, ServerRunningError
from compaction.segments.memtable import MemTable, MemTables, Seq
from compaction.segments.model import HEADER_BYTES
from compaction.segments.reading.view import read_segments
from compaction.segments.snapshot.directories import find_snapshots
from compaction.segments.system.compactions import settle
from compaction.segments.system.content import LogCut, discard_partials, discard_temporary, read_cut
from compaction.segments.system.log import Log
from compaction.segments.system.rules import LogRow
from compaction.segments.system.segment_changes import OnChange
from compaction.segments.wal.codec import WalTail
from compaction.segments.wal.files import WalEnd, lost_since_stop, wal_files, wal_number
from compaction.segments.wal.wal_log import RolledFile, WalClient
from compaction.segments.wal.wal_reader import WalRun, read_wal
from compaction.segments.writer import repair_last

# The content of a system's write-ahead log files, put back into mem tables when the system is opened.


class RecoveringLog(WalClient, Protocol):
    """A log whose mem tables are filled."""

    @property
    def tables(self) -> MemTables:
        """The mem tables, of this log alone."""

    @property
    def cut(self) -> LogCut | None:
        """The entries in the files that are no part of the log; None without any."""


@dataclass(frozen=True, slots=True)
class RecoveredTables:
    """`files`: for the segment writer, oldest first. `number`: the last file's; 0 without any. `writers`: the ids of
    all logs that have records, needed or not.

    `tails`: records that were being written when the process or the machine stopped, by file. `failed`: logs whose
    records could not be put into mem tables.
    """

    files: tuple[RolledFile, ...]
    number: int
    writers: frozenset[bytes]
    tails: dict[Path, WalTail]
    failed: dict[bytes, Exception]


def recover(directory: Path, logs: Mapping[bytes, RecoveringLog]) -> RecoveredTables:
    """Read every file, oldest first. Of a log that is not in `logs` only the id is noted: it was deleted, or could not
    be opened.

    InvalidWalFormatError, DamagedWalError: a file cannot be read, or has lost its end since a clean stop; nothing was
    changed. OSError passes through.
    """
    for lost in lost_since_stop(directory):
        raise lost
    files: list[RolledFile] = []
    tails: dict[Path, WalTail] = {}
    failed: dict[bytes, Exception] = {}
    number = 0
    for path in wal_files(directory):
        number = wal_number(path.name)
        pieces: dict[WalClient, dict[MemTable, Seq]] = {}
        writers: set[bytes] = set()
        with read_wal(path) as reader, no_collection():
            for run in reader.runs():
                writers.add(run.writer)
                log = logs.get(run.writer)
                if log is None or run.writer in failed:
                    continue
                try:
                    _put(log, run, pieces.setdefault(log, {}), number)
                except Exception as error:  # noqa: BLE001 - of one log, whatever it is: its siblings go on
                    failed[run.writer] = error
        waiting = {log: list(tables.items()) for log, tables in pieces.items() if tables}
        files.append(
            RolledFile(path, WalEnd(reader.end, reader.size), waiting, frozenset(writers), is_held=reader.is_held)
        )
        if reader.tail is not None:
            tails[path] = reader.tail
    return RecoveredTables(tuple(files), number, frozenset().union(*(file.writers for file in files)), tails, failed)


def _put(log: RecoveringLog, run: WalRun, pieces: dict[MemTable, Seq], number: int) -> None:
    """Put the entries of a run that the log needs into its mem tables, and note them in `pieces`.

    Of a run that is dead it keeps the last entry, which hides what stands behind it in segments. `pieces`, `number`: of
    the write-ahead log file.
    """
    entries, first = run.entries, run.entries[0].index
    if log.cut is not None and log.cut.covers(entries[-1].index, number):
        # What the cut covers is the end of the run: all from its first index on.
        entries = entries[: max(0, log.cut.first - first)]
    truncate = run.truncate
    if first < log.row.smallest_live:
        entries, truncate = entries[log.row.smallest_live - first :] or entries[-1:], False
    if not entries:
        return
    if truncate:
        log.tables.remove_below(first)
    table = log.tables.insert_run(entries, sum([len(payload) for _, _, payload in entries]))
    pieces.setdefault(table, Seq()).extend(entries[0].index, entries[-1].index)


# Opens the logs of a system, each by itself: one that cannot be opened is kept closed, as it is, and the others go on
# (docs/design/segment-wal.md#a-log-that-cannot-be-opened).

_logger = logging.getLogger(__name__)
LOG_ID: Final = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9_=+.-]{0,199}", re.ASCII)
"""The id of a log, and the name of its directory."""


class LogOpening:
    """`logs` by id, and by name the errors of those that are `broken`."""

    def __init__(self, directory: Path, on_change: OnChange | None) -> None:
        """`directory`: the system's, which is locked."""
        self.logs: dict[bytes, Log] = {}
        self.broken: dict[str, SegmentLogError] = {}
        self._directory = directory
        self._on_change = on_change

    @property
    def refused(self) -> frozenset[bytes]:
        """The ids of the broken logs."""
        return frozenset(name.encode() for name in self.broken)

    def recover(self, *, timeout: float) -> RecoveredTables:
        """Read all logs and the write-ahead log. `timeout`: seconds to wait for the lock of a log.

        InvalidWalFormatError, DamagedWalError: of the write-ahead log; nothing was changed. OSError passes through.
        """
        self._find()
        recovered = recover(self._directory, self.logs)
        self._require_directories(recovered)
        for log in list(self.logs.values()):
            with self.alone(log.name):
                self._settle(log, recovered, timeout=timeout)
        return recovered

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Whatever the opening of one log raises is that log's error: it is kept closed, and the others go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - see `fault_of`: what is unexpected is logged with its place
            self.broken[name] = fault_of(error, self._directory / name)
            self.logs.pop(name.encode(), None)
            _logger.error("%s: the log is kept closed: %s", self._directory / name, self.broken[name])

    def _find(self) -> None:
        with os.scandir(self._directory) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and LOG_ID.fullmatch(e.name))
        for name in names:
            with self.alone(name):
                log = self._read(name)
                self.logs[log.uid] = log

    def _read(self, name: str) -> Log:
        path = self._directory / name
        search = find_snapshots(path)
        if search.rejected and not is_ra_directory(self._directory):
            # No crash of ours leaves one: what an older snapshot needs is gone. A Ra server may die while it writes it.
            raise search.rejected[0]
        row = LogRow.of(search.newest)
        return Log(name, path, row=row, snapshot=search.newest, cut=read_cut(path), on_change=self._on_change)

    def _require_directories(self, recovered: RecoveredTables) -> None:
        """A log with records and without a directory was deleted, if nothing else has its name."""
        for uid in recovered.writers - self.logs.keys():
            name = uid.decode("ascii", errors="replace")
            if name in self.broken or not LOG_ID.fullmatch(name):
                continue
            with self.alone(name):
                path = self._directory / name
                if os.path.lexists(path):
                    kind = "a symbolic link, which is not followed" if path.is_symlink() else "not a directory"
                    raise NotALogDirectoryError(str(path), f"it is {kind}, and the write-ahead log has entries of it")
        for uid, error in recovered.failed.items():
            with self.alone(uid.decode()):
                raise error

    def _settle(self, log: Log, recovered: RecoveredTables, *, timeout: float) -> None:
        """Settle the leftovers of a crash.

        The steps that can fail without a change come first: a damaged log stays as it is.
        """
        covered = log.uid in recovered.writers
        _check_segments(log.directory, torn_newest=covered)
        repair_last(log.directory, row=log.row, cut=log.cut, in_wal=log.tables.visible(), covered=covered)
        settle(log.directory, timeout=timeout)
        log.refresh()
        discard_partials(log.directory)
        discard_temporary(log.directory)
        log.settle_cut(recovered.number + 1)


def _check_segments(directory: Path, *, torn_newest: bool) -> None:
    """The first segment that cannot be parsed is raised. `torn_newest`: the newest may be without its whole header."""
    try:
        files = read_segments(directory)
    except NotALogDirectoryError:
        # Nothing of this log was flushed yet, so it has no segment.
        return
    newest = max(regular_segments(directory), default="")
    for error in files.errors:
        path = Path(error.file)
        if not (torn_newest and path.name == newest and path.stat().st_size < HEADER_BYTES):
            raise error


# One process at a time writes a system of logs: an advisory lock on a file in its directory, and its marker.


def hold_system(directory: Path, resources: ExitStack, *, timeout: float) -> lock.HeldLock:
    """Hold the system's lock until `resources` close, and say that this owner follows compactions.

    Raises:
        LockHeldError: another process writes the system; names it.
        ServerRunningError: a Ra server has its files open for writing. OSError passes through.
    """
    signs = signs_in(directory, wals=())
    if signs.writers is Writers.SOME:
        raise ServerRunningError(str(directory), doubt_of(signs))
    held = resources.enter_context(lock.hold(directory, holder=f"system of logs, pid {os.getpid()}", timeout=timeout))
    write_marker(directory, held=held)
    return held
