"""The records of a write-ahead log file that its owner appends to, as they come: each is read once."""

from __future__ import annotations

import os
from pathlib import Path

from compaction.segments.format.codec import pread_up_to
from compaction.segments.wal.codec import HEADER, HELD_WRITER, WalRecord, check_header
from compaction.segments.wal.files import open_wal
from compaction.segments.wal.reader import BadRecordError, RecordCursor, take_record


class GrowingFile:
    """One file; `offset` is behind the last whole record that was read, `stopped` why no more of it is whole now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.stopped = ""
        self._inode: int | None = None
        self._writers: dict[int, bytes] = {}

    def read(self) -> list[WalRecord]:
        """What is whole since the last time. InvalidWalFormatError: no write-ahead log; OSError passes through."""
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
