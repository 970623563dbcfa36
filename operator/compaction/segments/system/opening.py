"""Opens the logs of a system, each by itself: one that cannot be opened is kept closed, as it is, and the others go on
(docs/design/segment-wal.md#a-log-that-cannot-be-opened).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compaction.segments.directory.faults import fault_of
from compaction.segments.directory.listing import regular_segments
from compaction.segments.directory.owner import is_ra_directory
from compaction.segments.errors import NotALogDirectoryError, SegmentLogError
from compaction.segments.model import HEADER_BYTES
from compaction.segments.reading.files import read_segments
from compaction.segments.snapshot.directories import find_snapshots
from compaction.segments.system.changes import OnChange
from compaction.segments.system.cut import discard_temporary, read_cut
from compaction.segments.system.log import Log
from compaction.segments.system.phase_one import settle
from compaction.segments.system.recovery import Recovered, recover
from compaction.segments.system.row import LogRow
from compaction.segments.system.snapshots import discard_partials
from compaction.segments.writer.repair import repair_last

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

    def recover(self, *, timeout: float) -> Recovered:
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

    def _require_directories(self, recovered: Recovered) -> None:
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

    def _settle(self, log: Log, recovered: Recovered, *, timeout: float) -> None:
        """What a crash has left of the log. First what can fail without a change: a damaged log stays as it is."""
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
        return
    newest = max(regular_segments(directory), default="")
    for error in files.errors:
        path = Path(error.file)
        if not (torn_newest and path.name == newest and path.stat().st_size < HEADER_BYTES):
            raise error
