"""Follows a system of logs: lists it again and again, and reads on in the write-ahead log; no lock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from compaction.segments.checking.reading import is_log
from compaction.segments.directory.fs import storage_errors
from compaction.segments.directory.owner import system_of
from compaction.segments.errors import InvalidWalFormatError, LogChangedError, NotALogDirectoryError, SegmentLogError
from compaction.segments.following.changes import (
    ChangeKind,
    LogChange,
    LogListing,
    SystemListing,
    changes,
    in_log,
    written,
)
from compaction.segments.format.segment_file import pread_up_to
from compaction.segments.reading.view import SegmentFiles, read_segments
from compaction.segments.snapshot.directories import find_snapshots
from compaction.segments.wal.codec import HEADER, HELD_WRITER, WalRecord, check_header
from compaction.segments.wal.files import open_wal, wal_files
from compaction.segments.wal.wal_reader import BadRecordError, RecordCursor, take_record

# The records of a write-ahead log file that its owner appends to, as they come: each is read once.


class GrowingFile:
    """One file; `offset` is behind the last whole record that was read, `stopped` why no more of it is whole now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.stopped = ""
        self._inode: int | None = None
        self._writers: dict[int, bytes] = {}

    def read(self) -> list[WalRecord]:
        """Return the records that became whole since the last read.

        InvalidWalFormatError: the file is no write-ahead log; OSError passes through.
        """
        fd = open_wal(self.path)
        try:
            state = os.fstat(fd)
            if self._inode not in (None, state.st_ino):
                # Its owner has left some of the records in it, none that is new: see `HELD_WRITER`.
                self.offset = state.st_size
            self._inode = state.st_ino
            data = pread_up_to(fd, max(0, state.st_size - self.offset), self.offset)
        finally:
            os.close(fd)
        begin = 0
        if not self.offset:
            check_header(data, file=str(self.path))
            begin = len(HEADER)
        cursor = RecordCursor(data, begin, self._writers, self.offset)
        found: list[WalRecord] = []
        self.stopped = ""
        while cursor.offset < len(data):
            try:
                record = take_record(cursor)
            except BadRecordError as error:
                # Zeros are the rest of a preallocated file; anything else is being written, or damaged.
                self.stopped = str(error) if data[cursor.offset :].strip(b"\0") else ""
                break
            if record.writer != HELD_WRITER:
                found.append(record)
        self.offset = cursor.position
        return found


# Follows a system of logs by listing it again and again, and by reading on in the write-ahead log; no lock.


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

    def poll(self) -> list[LogChange]:
        """Writes first: of each entry the write-ahead log holds it before a segment does.

        LogNotReadableError, StoreIOError: the directory cannot be read.
        """
        with storage_errors(self._system):
            found = [change for change in self._written() if self._log is None or change.log in ("", self._log.name)]
            listing = self._list()
        found += changes(self._listing, listing)
        self._listing = listing
        return found

    def _written(self) -> Iterator[LogChange]:
        paths = wal_files(self._system)
        for path in paths:
            file = self._files.setdefault(path.name, GrowingFile(path))
            try:
                yield from written(path.name, file.read(), self._lasts)
            except FileNotFoundError:
                # Its owner flushed it to segments and deleted it since it was listed.
                continue
            except InvalidWalFormatError as error:
                file.stopped = error.reason
            # The end of the newest file may be a record that is being written now.
            if file.stopped and path != paths[-1] and path.name not in self._stopped:
                self._stopped.add(path.name)
                detail = f"nothing is read from offset {file.offset} on: {file.stopped}"
                yield LogChange(ChangeKind.UNREADABLE, "", path.name, detail)
        names = {path.name for path in paths}
        self._files = {name: file for name, file in self._files.items() if name in names}

    def _list(self) -> SystemListing:
        if self._log is not None:
            directories = [self._log]
        else:
            with os.scandir(self._system) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            directories = [self._system / name for name in names if not name.startswith(".")]
        logs = {}
        for directory in directories:
            try:
                logs[directory.name] = self._list_log(directory)
            except FileNotFoundError:
                continue  # deleted
        return SystemListing(logs, tuple(path.name for path in wal_files(self._system)))

    def _list_log(self, directory: Path) -> LogListing:
        before = self._listing.logs.get(directory.name, LogListing())
        errors: list[SegmentLogError] = []
        try:
            files = read_segments(directory, known=before.segments)
        except NotALogDirectoryError:
            # A log may hold no segment yet; the error of one that was deleted goes to the caller.
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
            # The snapshot as of the last time; the next poll may find it still.
            pass
        except SegmentLogError as error:
            errors.append(error)
        return LogListing(
            segments={segment.name: segment for segment in files.segments},
            links=files.links,
            snapshot=snapshot,
            errors=frozenset(in_log(directory, str(error)) for error in errors),
        )
