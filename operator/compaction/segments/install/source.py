"""What a sender reads: a log's newest snapshot as a stream of bytes, and the live entries beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from compaction.segments.directory.faults import storage_error
from compaction.segments.errors import InstallStoppedError, LiveSetUnknownError, LogChangedError
from compaction.segments.install.needed import NeededEntries
from compaction.segments.install.sender import SendPlan
from compaction.segments.memtable.table import LogEntry
from compaction.segments.snapshot.data_file import DATA_FILE
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.snapshot.seq import encode_indexes
from compaction.segments.system.log import Log

_LOOKS: Final = 20
"""Openings in a row before which the snapshot was replaced and deleted."""


class SnapshotReplaced(Exception):
    """The log has a newer snapshot, so entries of this one may be gone."""


class SnapshotSource:
    """One snapshot, whose file stays open: replacing and deleting it does not disturb the stream."""

    def __init__(self, log: Log) -> None:
        """The log's newest snapshot.

        InstallStoppedError: there is none. LiveSetUnknownError. StoreIOError and the like.
        """
        self._log = log
        self._file, self.snapshot = _open(log)
        if self.snapshot.live is None:
            os.close(self._file)
            raise LiveSetUnknownError(str(log.directory))
        self._indexes = encode_indexes(self.snapshot.live)
        self.plan = SendPlan(
            index=self.snapshot.index,
            term=self.snapshot.term,
            live=NeededEntries.of(self.snapshot.live),
            indexes_bytes=len(self._indexes),
            data_bytes=os.fstat(self._file).st_size,
        )

    def entries(self, indexes: Sequence[int]) -> list[LogEntry]:
        """All of these live entries, ascending. SnapshotReplaced; else errors as `Log.read`."""
        found = self._log.read(indexes)
        # Asked afterwards: what was read under an older snapshot is complete, unless the next one is being written.
        if self._log.row.snapshot_index != self.snapshot.index or len(found) < len(indexes):
            raise SnapshotReplaced
        return found

    def stream(self, offset: int, size: int) -> bytes:
        """Bytes of `indexes` and then of `snapshot.dat`. StoreIOError and the like."""
        head = self._indexes[offset : offset + size]
        behind = offset + len(head) - len(self._indexes)
        try:
            tail = os.pread(self._file, size - len(head), behind) if len(head) < size else b""
        except OSError as error:
            raise storage_error(error, self.snapshot.path) from error
        if len(head) + len(tail) < size:
            raise InstallStoppedError(str(self.snapshot.path / DATA_FILE), "the file has become shorter")
        return head + tail

    def close(self) -> None:
        os.close(self._file)


def _open(log: Log) -> tuple[int, LogSnapshot]:
    for _ in range(_LOOKS):
        snapshot = log.newest_snapshot
        if snapshot is None:
            raise InstallStoppedError(str(log.directory), "the log has no snapshot")
        try:
            return os.open(snapshot.path / DATA_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), snapshot
        except FileNotFoundError as error:
            if log.newest_snapshot == snapshot:
                raise storage_error(error, snapshot.path) from error
        except OSError as error:
            raise storage_error(error, snapshot.path) from error
    raise LogChangedError(str(log.directory))
