"""Content of one log, in memory, in segments and in snapshots, and the place where it ends; `Log` adds what
changes it.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from compaction.segments.directory import fs
from compaction.segments.directory.lock import replace_file
from compaction.segments.directory.owner import is_ra_directory
from compaction.segments.errors import EntryMissingError, InvalidCutError, WriteRefusedError
from compaction.segments.memtable import LogEntry, LogPosition, MemTables, Seq
from compaction.segments.model import MAX_INDEX
from compaction.segments.snapshot.directories import (
    DATA_FILE,
    INDEXES_FILE,
    NO_CLUSTER,
    SNAPSHOTS,
    LogSnapshot,
    SnapshotOrigin,
    encode_snapshot,
    parse_snapshot_name,
    read_origin,
    snapshot_name,
)
from compaction.segments.snapshot.live_indexes import LiveSet, encode_indexes
from compaction.segments.system.compactions import SegmentList
from compaction.segments.system.rules import LogRow, LogStatus
from compaction.segments.system.segment_changes import OnChange

# The end of a log whose files hold more: after an installation that was interrupted or has replaced its tail.
#
# The formats of the write-ahead log and of segments have no record that takes entries away; a later write hides them,
# but until then a restart would bring them back. `<log>/log.cut` says which entries are no part of the log: those
# from index `first` on, in write-ahead log files with a number below `before` (None: in every file that is there),
# and in segments until a newer entry is in them. 4 bytes `CCUT`, u8 version 1, u32 crc32 of the rest, u64 first, u64
# before (2**64 - 1 for None), big-endian (docs/design/segment-install.md#cut).

CUT_FILE: Final = "log.cut"
_TEMPORARY: Final = "log.cut.tmp"
_MAGIC: Final = b"CCUT"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sBI")
_BODY: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class LogCut:
    """Entries from `first` on, in files with a number below `before` (None: in all of them), do not count."""

    first: int
    before: int | None

    def covers(self, index: int, file: int) -> bool:
        """Return whether the cut excludes the entry of this index, in the write-ahead log file of this number."""
        return index >= self.first and (self.before is None or file < self.before)

    def above(self, snapshot_index: int | None) -> LogCut:
        """The cut of a log with this snapshot, which covers everything up to its index."""
        if snapshot_index is None or self.first > snapshot_index:
            return self
        return replace(self, first=snapshot_index + 1)


def encode_cut(cut: LogCut) -> bytes:
    body = _BODY.pack(cut.first, MAX_INDEX if cut.before is None else cut.before)
    return _HEADER.pack(_MAGIC, _VERSION, zlib.crc32(body)) + body


def decode_cut(data: bytes, *, file: str) -> LogCut:
    """InvalidCutError names `file`."""
    if len(data) != _HEADER.size + _BODY.size:
        raise InvalidCutError(file, f"it has {len(data)} bytes, not {_HEADER.size + _BODY.size}")
    magic, version, crc = _HEADER.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise InvalidCutError(file, f"it begins with {data[:5]!r}, not {_MAGIC + bytes((_VERSION,))!r}")
    if zlib.crc32(data[_HEADER.size :]) != crc:
        raise InvalidCutError(file, "its checksum does not match its content")
    first, before = _BODY.unpack_from(data, _HEADER.size)
    return LogCut(first, None if before == MAX_INDEX else before)


def read_cut(directory: Path) -> LogCut | None:
    """The cut of the log in `directory`; None without any. InvalidCutError; OSError passes through."""
    path = directory / CUT_FILE
    try:
        with path.open("rb") as file:
            data = file.read(_HEADER.size + _BODY.size + 1)
    except FileNotFoundError:
        return None
    return decode_cut(data, file=str(path))


def write_cut(directory: Path, cut: LogCut) -> None:
    """Replace the cut of a log, durably. OSError passes through."""
    replace_file(directory / _TEMPORARY, directory / CUT_FILE, encode_cut(cut), access=None, held=None)
    fs.sync_directory(directory)


def discard_temporary(directory: Path) -> None:
    """Delete the cut that was being written when its process ended. OSError passes through."""
    fs.unlink_if_present(directory / _TEMPORARY)


def remove_cut(directory: Path) -> None:
    """Everything that the files hold counts again, durably. OSError passes through."""
    if fs.unlink_if_present(directory / CUT_FILE):
        fs.sync_directory(directory)


T = TypeVar("T")
_PAGE: Final = 1024
"""Entries that `fold` reads at once."""


class LogContent:
    """The reading half of a log. Several threads may read at once, beside one that writes."""

    def __init__(
        self,
        uid: str,
        directory: Path,
        *,
        row: LogRow,
        snapshot: LogSnapshot | None,
        cut: LogCut | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        """Without entries: the recovery fills the mem tables, `refresh` reads the segments."""
        self.uid = uid.encode()
        self.name = uid
        self.directory = directory
        self.row = row
        self.newest_snapshot = snapshot
        self.tables = MemTables()
        self.cut = None if cut is None else cut.above(row.snapshot_index)
        """What in the files is no part of the log, after an interrupted installation; None: nothing."""
        self._lock = threading.RLock()
        self.segments = SegmentList(directory, on_change)
        self._last: LogPosition | None = None
        self._written: LogPosition | None = None

    @property
    def waiting(self) -> LiveSet:
        """The indexes that wait in mem tables, and in the write-ahead log, for the segment writer."""
        with self._lock:
            return self.tables.visible().as_set()

    def read(self, indexes: Iterable[int]) -> list[LogEntry]:
        """The entries of these indexes, ascending; dead ones, and indexes beyond the last, are left out.

        Raises:
            EntryMissingError: an entry that the log must hold is not there.
            CorruptEntryError: a payload in a segment is damaged; names file, index and offset.
        """
        wanted = sorted(set(indexes))
        with self._lock:
            row, view = self.row, self.segments.view
            last = self._last.index if self._last is not None else -1
            wanted = [index for index in wanted if 0 <= index <= last and row.needs(index)]
            found = {index: entry for index in wanted if (entry := self.tables.lookup(index)) is not None}
            bound = self.tables.visible().first
        rest = [index for index in wanted if index not in found and (bound is None or index < bound)]
        found |= view.read(rest, refresh=self.segments.refresh)
        # What died since the read began may be gone: the row as it is now says so. And an index above the snapshot may
        # be a gap, after a sparse write.
        if missing := [index for index in wanted if index not in found]:
            certain = row.certain.intersection(self.row.certain)
            for index in missing:
                if index in certain:
                    raise EntryMissingError(str(self.directory), index)
        return [found[index] for index in sorted(found)]

    def fold(self, function: Callable[[T, LogEntry], T], initial: T, *, first: int = 0) -> T:
        """`function` over all entries that the log needs, ascending from index `first`; errors as `read`."""
        result = initial
        for page in self.indexes(first).chunks(_PAGE):
            for entry in self.read(page):
                result = function(result, entry)
        return result

    def indexes(self, low: int = 0, high: int = MAX_INDEX) -> Seq:
        """Return the indexes in low..high of the entries that the log holds and needs."""
        with self._lock:
            row, view, in_memory = self.row, self.segments.view, self.tables.visible()
            last = self._last.index if self._last is not None else -1
        high = min(high, last)
        below = high if in_memory.first is None else min(high, in_memory.first - 1)
        stored = Seq.from_indexes(view.indexes(low, below).tolist()) if below >= low else Seq()
        return row.needed(in_memory.within(low, high).over(stored))

    @property
    def last(self) -> LogPosition | None:
        """The last entry, written or not."""
        return self._last

    @property
    def _last_index(self) -> int | None:
        return None if self._last is None else self._last.index

    @property
    def last_written(self) -> LogPosition | None:
        """The last entry up to which everything is durable."""
        return self._written

    @property
    def state(self) -> LogStatus:
        with self._lock:
            view = self.segments.view
            return LogStatus(
                uid=self.name,
                last=self._last,
                last_written=self._written,
                row=self.row,
                segments=len(view.segments),
                segment_bytes=view.payload_bytes,
                unflushed=len(self.tables.visible()),
                unflushed_bytes=self.tables.payload_bytes,
            )

    def refresh(self) -> None:
        """Read the segments as they are now: a notification that they changed, which nothing depends on. Errors as
        `SegmentView.refreshed`.
        """
        self.segments.refresh()

    def _before(self, index: int) -> LogPosition | None:
        """The log's last entry below `index`."""
        below = self.tables.visible().limit(index - 1).last if index else None
        ends = [below, None if self.row.end is None else self.row.end.index]
        bound = self.tables.visible().first
        if high := min(index, bound if bound is not None else index):
            ends += self.segments.view.indexes(0, high - 1)[-1:].tolist()
        last = max((end for end in ends if end is not None), default=None)
        return None if last is None else LogPosition(last, self._term(last))

    def _term(self, index: int) -> int:
        # First: behind an installed snapshot, mem tables and segments may hold the entry that it has replaced.
        if self.row.end is not None and index == self.row.end.index:
            return self.row.end.term
        entry = self.tables.lookup(index)
        if entry is not None:
            return entry.term
        term = self.segments.view.term(index)
        if term is None:
            raise EntryMissingError(str(self.directory), index)
        return term

    def _found_last(self) -> LogPosition | None:
        """The last entry that the recovery found: of the mem tables, else of the segments up to the cut; at least the
        snapshot's index.
        """
        last = self.tables.last
        if last is None:
            last = self.segments.view.last
            if self.cut is not None and last is not None and last >= self.cut.first:
                below = self.segments.view.indexes(0, self.cut.first - 1)[-1:].tolist() if self.cut.first else []
                last = below[0] if below else None
        if self.row.snapshot_index is not None and (last is None or last < self.row.snapshot_index):
            last = self.row.snapshot_index
        return None if last is None else LogPosition(last, self._term(last))

    def _holds(self, index: int, term: int) -> bool:
        """Return whether the entry of this index and term is part of the log."""
        if self._last is None or self._last.index < index or not self.indexes(index, index):
            return False
        return self._term(index) == term


# Writing snapshots of a log so that none is ever visible in part (docs/design/segment-wal.md#snapshots).
#
# Both files are written and synced in a directory of another name; one rename makes them visible together. A reader,
# a crash and the owner's next start see the old snapshot or the new one, never a state without its live indexes.

PARTIAL: Final = "snapshot.partial"
"""Beside `snapshots`, not in it: there, Ra would take a complete one for the newest snapshot."""
INSTALL_PARTIAL: Final = "install.partial"
"""The same for a snapshot that arrives from another member."""


def origin_for(directory: Path, given: SnapshotOrigin | None, newest: LogSnapshot | None) -> SnapshotOrigin:
    """Return the origin of the next snapshot of the log in `directory`: as given, else as its newest one says.

    WriteRefusedError: neither says it, and a Ra server owns the directory, which would find itself in no cluster.
    CorruptSnapshotError: the newest one has been damaged since it was found. OSError passes through.
    """
    if given is not None:
        return given
    found = read_origin(newest.data) if newest is not None else None
    if found is not None and (found != NO_CLUSTER or not is_ra_directory(directory.parent)):
        return found
    if is_ra_directory(directory.parent):
        said = "no snapshot says" if newest is None else f"{newest.data} does not say"
        reason = f"{said} which cluster and machine version the Ra server of this log has: give both with the snapshot"
        raise WriteRefusedError(str(directory), reason)
    return NO_CLUSTER


def write_partial(
    directory: Path, *, index: int, term: int, state: bytes, live: LiveSet, origin: SnapshotOrigin
) -> Path:
    """Write the files of a snapshot of the log in `directory`, durably; returns what `publish` makes visible. OSError
    passes through.
    """
    partial = directory / PARTIAL
    remove_tree(partial)
    fs.make_directory(partial)
    _write(partial / INDEXES_FILE, encode_indexes(live))
    _write(partial / DATA_FILE, encode_snapshot(index=index, term=term, state=state, origin=origin))
    return partial


def publish(partial: Path, *, index: int, term: int, live: LiveSet) -> LogSnapshot:
    """Make a snapshot whose two files are durable visible, durably. OSError passes through."""
    directory = partial.parent
    root = directory / SNAPSHOTS
    fs.sync_directory(partial)
    if not root.is_dir():
        fs.make_directory(root)
        fs.sync_directory(directory)
    path = root / snapshot_name(term=term, index=index)
    remove_tree(path)
    fs.rename(partial, path)
    fs.sync_directory(root)
    return LogSnapshot(index=index, term=term, live=live, path=path)


def discard_partials(directory: Path) -> None:
    """Delete what the log in `directory` was writing, or another member was sending, when its process ended."""
    remove_tree(directory / PARTIAL)
    remove_tree(directory / INSTALL_PARTIAL)


def write_indexes(snapshot: LogSnapshot, live: LiveSet) -> LogSnapshot:
    """Put a rebuilt live set into a snapshot that has none, or a damaged one: atomically and durably."""
    temporary = snapshot.path / f"{INDEXES_FILE}.partial"
    fs.unlink_if_present(temporary)
    _write(temporary, encode_indexes(live))
    fs.rename(temporary, snapshot.path / INDEXES_FILE)
    fs.sync_directory(snapshot.path)
    return LogSnapshot(index=snapshot.index, term=snapshot.term, live=live, path=snapshot.path)


def older_snapshots(directory: Path, current: LogSnapshot) -> list[Path]:
    """The snapshot directories that `current` replaces, oldest first."""
    root = directory / SNAPSHOTS
    names = sorted(name for name in os.listdir(root) if parse_snapshot_name(name) is not None)
    return [root / name for name in names if name < current.path.name]


def remove_tree(path: Path) -> None:
    """Delete a snapshot's directory; `snapshot.dat` first, without which nothing takes it for a snapshot."""
    try:
        names = sorted(os.listdir(path), key=lambda name: (name != DATA_FILE, name))
    except FileNotFoundError:
        return
    for name in names:
        fs.unlink_if_present(path / name)
    fs.remove_directory(path)


def _write(path: Path, data: bytes) -> None:
    fd = fs.create(path)
    try:
        fs.write(fd, [data])
        fs.sync(fd)
    finally:
        os.close(fd)
