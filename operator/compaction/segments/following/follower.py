"""Follows a system of logs by listing it again and again, and by reading on in the write-ahead log; no lock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from compaction.segments.checking.reading import is_log
from compaction.segments.directory.faults import storage_errors
from compaction.segments.directory.owner import system_of
from compaction.segments.errors import InvalidWalFormatError, LogChangedError, NotALogDirectoryError, SegmentLogError
from compaction.segments.following.changes import (
    Change,
    ChangeKind,
    LogListing,
    SystemListing,
    changes,
    in_log,
    written,
)
from compaction.segments.reading.files import SegmentFiles, read_segments
from compaction.segments.snapshot.directories import find_snapshots
from compaction.segments.wal.files import wal_files
from compaction.segments.wal.growing import GrowingFile


class Follower:
    """One directory: a system, or one log of it. The first `poll` returns what is there, each other one what is new."""

    def __init__(self, directory: Path) -> None:
        """NotALogDirectoryError: neither a log nor a directory in which logs can be."""
        if not directory.is_dir():
            raise NotALogDirectoryError(str(directory), "it is not a directory")
        self._log = directory if is_log(directory) else None
        self._system = directory if self._log is None else system_of(directory)
        self._listing = SystemListing()
        self._files: dict[str, GrowingFile] = {}
        self._lasts: dict[bytes, int] = {}
        self._stopped: set[str] = set()

    def poll(self) -> list[Change]:
        """Writes first: of each entry the write-ahead log holds it before a segment does.

        LogNotReadableError, StoreIOError: the directory cannot be read.
        """
        with storage_errors(self._system):
            found = [change for change in self._written() if self._log is None or change.log in ("", self._log.name)]
            listing = self._list()
        found += changes(self._listing, listing)
        self._listing = listing
        return found

    def _written(self) -> Iterator[Change]:
        paths = wal_files(self._system)
        for path in paths:
            file = self._files.setdefault(path.name, GrowingFile(path))
            try:
                yield from written(path.name, file.read(), self._lasts)
            except FileNotFoundError:
                continue
            except InvalidWalFormatError as error:
                file.stopped = error.reason
            # The end of the newest file may be a record that is being written now.
            if file.stopped and path != paths[-1] and path.name not in self._stopped:
                self._stopped.add(path.name)
                detail = f"nothing is read from offset {file.offset} on: {file.stopped}"
                yield Change(ChangeKind.UNREADABLE, "", path.name, detail)
        names = {path.name for path in paths}
        self._files = {name: file for name, file in self._files.items() if name in names}

    def _list(self) -> SystemListing:
        directories = self._directories() if self._log is None else [self._log]
        logs = {}
        for directory in directories:
            try:
                logs[directory.name] = self._list_log(directory)
            except FileNotFoundError:
                continue  # deleted
        return SystemListing(logs, tuple(path.name for path in wal_files(self._system)))

    def _directories(self) -> list[Path]:
        with os.scandir(self._system) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
        return [self._system / name for name in names]

    def _list_log(self, directory: Path) -> LogListing:
        before = self._listing.logs.get(directory.name, LogListing())
        errors: list[SegmentLogError] = []
        try:
            files = read_segments(directory, known=before.segments)
        except NotALogDirectoryError:
            files = SegmentFiles((), {}, ())
            if not directory.is_dir():
                raise FileNotFoundError(directory) from None
        except LogChangedError:
            return before  # as of the last time; the next poll may find it still
        errors += files.errors
        snapshot = before.snapshot
        try:
            snapshot = find_snapshots(directory).newest
        except LogChangedError:
            pass
        except SegmentLogError as error:
            errors.append(error)
        return LogListing(
            segments={segment.name: segment for segment in files.segments},
            links=files.links,
            snapshot=snapshot,
            errors=frozenset(in_log(directory, str(error)) for error in errors),
        )
