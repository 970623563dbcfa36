"""The log view: the segment files of a directory as one reader sees them while others change it, and what is
missing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from compaction.api.text.printing import plural
from compaction.segments.directory.fs import regular_identity
from compaction.segments.directory.owner import META_FILE, system_of
from compaction.segments.errors import (
    CorruptSegmentError,
    CorruptSnapshotError,
    DamagedWalError,
    InvalidWalFormatError,
    LiveEntriesMissingError,
    LiveSetUnknownError,
    LogChangedError,
    NotALogDirectoryError,
    SegmentIsLinkError,
    SegmentLogError,
    SegmentNameError,
)
from compaction.segments.format.segment_file import read_segment
from compaction.segments.model import SEGMENT_NAME, SEGMENT_SUFFIX, BoolArray, RowArray, SegmentIndex, U64Array
from compaction.segments.snapshot.directories import LogSnapshot, SnapshotSearch, find_snapshots
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.wal.files import wal_files
from compaction.segments.wal.wal_reader import read_wal

# One consistent reading of all segment files of a directory, while compactions, sweeps and the owner go on changing
# it.
#
# A reading counts if the names are the same after it as before; else it is made again, and what did not change is not
# read again. (A directory that changes while it is listed may show a replaced name twice, or not at all.)
#
# The newest segment is read each time, and once more when it is the newest no longer: its slots are written in place
# behind its data, so within one tick of the file system's clock, or while a slot is copied, size and time say
# nothing. The others do not change: a segment is whole before the next one is created.

# A commit replaces at most 8 sources and what lies between; looks after the first one read only what was replaced.
LOOKS: Final = 20


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Regular segments in name order, symlinks (name -> base name of the target), and files that cannot be parsed."""

    segments: tuple[SegmentIndex, ...]
    links: dict[str, str]
    errors: tuple[SegmentNameError | CorruptSegmentError, ...]


def read_segments(directory: Path, *, known: Mapping[str, SegmentIndex] | None = None) -> SegmentFiles:
    """Parse the index of every segment file; of `known` ones, all of an earlier reading, only if the file is another,
    or was written to, since.

    Raises:
        NotALogDirectoryError: not a directory, or one without any segment.
        LogChangedError: names changed during each of `LOOKS` looks.
    """
    parsed = dict(known or {})
    parsed.pop(max(parsed, default=""), None)
    before = _list_names(directory)
    for _ in range(LOOKS):
        try:
            found = _parse(directory, before, parsed)
        except (FileNotFoundError, SegmentIsLinkError, _NotALinkError):
            # A compaction replaced or deleted a file since the names were listed: look again.
            found = None
        after = _list_names(directory)
        if found is not None and after == before:
            return found
        before = after
    raise LogChangedError(str(directory))


class _NotALinkError(Exception):
    """A name was a symlink when it was listed, and is none any more."""


def _list_names(directory: Path) -> dict[str, bool]:
    """Everything named *.segment, in name order, and whether it is a symlink."""
    try:
        with os.scandir(directory) as entries:
            return dict(sorted((e.name, e.is_symlink()) for e in entries if e.name.endswith(SEGMENT_SUFFIX)))
    except FileNotFoundError as error:
        raise NotALogDirectoryError(str(directory), "it does not exist") from error
    except NotADirectoryError as error:
        raise NotALogDirectoryError(str(directory), "it is not a directory") from error


def _parse(directory: Path, names: dict[str, bool], parsed: dict[str, SegmentIndex]) -> SegmentFiles:
    """Read what `parsed` does not hold already, and add it there, but for the newest."""
    segments: list[SegmentIndex] = []
    links: dict[str, str] = {}
    errors: list[SegmentNameError | CorruptSegmentError] = []
    regular = [name for name, is_link in names.items() if not is_link and SEGMENT_NAME.fullmatch(name)]
    for name, is_link in names.items():
        path = directory / name
        if not SEGMENT_NAME.fullmatch(name):
            errors.append(SegmentNameError(str(path)))
        elif is_link:
            links[name] = _target(path)
        else:
            try:
                segments.append(_read(path, parsed, newest=name == regular[-1]))
            except SegmentIsLinkError:
                # Before its base class: a compaction made the name a link, so the reading is made again.
                raise
            except CorruptSegmentError as error:
                errors.append(error)
    if not segments and not errors:
        raise NotALogDirectoryError(str(directory), "it holds no segment file (NNNNNNNNNNNNNNNN.segment)")
    return SegmentFiles(segments=tuple(segments), links=links, errors=tuple(errors))


def _read(path: Path, parsed: dict[str, SegmentIndex], *, newest: bool) -> SegmentIndex:
    if newest:
        return read_segment(path, newest=True)
    known = parsed.get(path.name)
    if known is None or regular_identity(path) != known.identity:
        known = parsed[path.name] = read_segment(path)
    return known


def _target(path: Path) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError as error:
        # EINVAL: a file has taken the place of the link since it was listed.
        if error.errno == errno.EINVAL:
            raise _NotALinkError from error
        raise


# Live entries that neither a segment of a log nor a write-ahead log file holds: lost, or elsewhere.
#
# What took an entry may have taken more, and any file may be the trace of one. So while one is missing, nothing of
# its log is deleted or replaced.


@dataclass(frozen=True, slots=True)
class MissingEntries:
    """The number of live indexes that no segment holds, and the first of them (0 without any)."""

    entries: int = 0
    first: int = 0

    @classmethod
    def of(cls, indexes: LiveSet) -> MissingEntries:
        return cls(len(indexes), indexes.smallest) if indexes else NOTHING_MISSING

    def __bool__(self) -> bool:
        return self.entries > 0

    def __str__(self) -> str:
        what = plural(self.entries, "live entry", "live entries")
        verb = "is" if self.entries == 1 else "are"
        return f"{what} (first index {self.first}) {verb} in no segment that can be read"


NOTHING_MISSING: Final = MissingEntries()


def in_no_segment(segments: Iterable[SegmentIndex], live: LiveSet) -> LiveSet:
    """Return the live indexes that have no record in any of the segments.

    An index that newer segments hide has one: its segment is left alone until it can be read again
    (`unreferenced.find_stranded`).
    """
    held = [segment for segment in segments if segment.count]
    whole = [item for item in held if item.count == item.last - item.first + 1 and item.effective.all()]
    # A segment without a gap needs no look at its records.
    missing = live.without(LiveSet.from_ranges((item.first, item.last) for item in whole))
    for segment in held:
        if not missing:
            break
        missing = missing.without(LiveSet.from_indexes(np.unique(segment.idx[missing.mask(segment.idx)])))
    return missing


def waiting_in(directory: Path, uid: bytes) -> LiveSet:
    """The indexes of which the write-ahead log files of a directory have a record of this log.

    InvalidWalFormatError, DamagedWalError: a file cannot be read, so it may hold any. OSError passes through.
    """
    ranges: list[tuple[int, int]] = []
    for path in wal_files(directory):
        try:
            with read_wal(path) as reader:
                ranges += [(run.entries[0].index, run.entries[-1].index) for run in reader.runs() if run.writer == uid]
        except FileNotFoundError:
            # Emptied since it was listed: its entries are in segments, which are read after it.
            continue
    return LiveSet.from_ranges(ranges)


def missing_error(directory: Path, missing: LiveSet, wal_directory: Path | None) -> LiveEntriesMissingError:
    """The error for a log of which these entries are missing. `wal_directory`: where its write-ahead log was looked
    for; None: beside the log.
    """
    system = wal_directory or system_of(directory)
    files = wal_files(system)
    if files:
        where = f"nor in the write-ahead log ({plural(len(files), 'file')} in {system})"
    elif wal_directory is None and os.path.lexists(system / META_FILE):
        where = f"and no write-ahead log lies beside {system / META_FILE}: it is lost, or elsewhere (--wal-dir)"
    else:
        where = f"and no write-ahead log lies {'beside the log' if wal_directory is None else f'in {system}'}"
    reason = (
        f"{MissingEntries.of(missing)}, {where}. "
        "Nothing of the log is deleted: restore it from a copy or another member"
    )
    return LiveEntriesMissingError(str(directory), reason)


# The log view: what a reader of many segment files sees (docs/design/segment-files.md#log-view).
#
# Only regular files count; a symlink is an old name of a compacted segment. Newer files hide older ones from their
# first index on. Invariant: `refs` are ascending and disjoint, so every index is read from at most one file.


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment and the inclusive range of indexes that is read from it, after newer files limited it."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class LogState:
    """One reading of a log directory.

    `segments`: regular files in name order (= write order), header-only ones included. `orphans`: names of segments
    whose every record is hidden by newer files. `links`: symlink name -> target's base name.
    `snapshot_index` None: no snapshot, so nothing may be dropped. `live` None beside a snapshot: unknown.
    `unreadable`: paths of files that `scan_log` left out. `missing`: what is live and neither in a segment nor in the
    write-ahead log, which lies beside the log unless it was looked for in `wal_directory`.

    Memory: 33 bytes per record of every segment (overwritten and dead ones too), so 135 kB per full segment of 4096
    entries and 660 MB for 20 million entries; beside it the live set (24 bytes per range) and, while one segment is
    parsed, its index area (at most 2 MiB). Payloads are never held.
    """

    directory: Path
    segments: tuple[SegmentIndex, ...]
    links: dict[str, str]
    refs: tuple[SegmentRef, ...]
    orphans: tuple[str, ...]
    snapshot_index: int | None
    live: LiveSet | None
    snapshot: LogSnapshot | None = None
    rejected_snapshots: tuple[CorruptSnapshotError, ...] = ()
    unreadable: frozenset[str] = frozenset()
    missing: LiveSet = field(default_factory=LiveSet.empty)
    wal_directory: Path | None = None
    _by_name: dict[str, SegmentIndex] = field(init=False, repr=False)
    _refs_by_name: dict[str, SegmentRef] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {segment.name: segment for segment in self.segments})
        object.__setattr__(self, "_refs_by_name", {ref.name: ref for ref in self.refs})

    @property
    def newest(self) -> str:
        """The last segment's name: the one the owner appends to."""
        return self.segments[-1].name

    def segment(self, name: str) -> SegmentIndex:
        """KeyError when no regular segment has this name."""
        return self._by_name[name]

    def ref(self, name: str) -> SegmentRef | None:
        """Return the range that is read from a segment; None when nothing is, or there is no such segment."""
        return self._refs_by_name.get(name)

    def live_unknown(self) -> LiveSetUnknownError:
        """The error that says why the live set is unknown."""
        own = self.snapshot is not None and self.snapshot.index == self.snapshot_index
        return LiveSetUnknownError(str(self.directory), None if own else self.snapshot_index)

    def entries_missing(self) -> LiveEntriesMissingError:
        """The error that says which live entries are missing."""
        return missing_error(self.directory, self.missing, self.wal_directory)

    def look_again(self) -> LogState:
        """The segments as they are now, under the same snapshot and live set; unchanged files are not read again.

        Errors as `read_segments`, and of a file that cannot be parsed now but was not left out before.
        """
        files = read_segments(self.directory, known=self._by_name)
        for error in files.errors:
            if error.file not in self.unreadable:
                raise error
        refs, orphans = limit_refs(files.segments)
        return replace(self, segments=files.segments, links=files.links, refs=refs, orphans=orphans)

    def readable(self, ref: SegmentRef) -> RowArray:
        """Positions of the records that a reader gets from this ref, ascending in index and in file order."""
        segment = self.segment(ref.name)
        return np.flatnonzero(segment.effective & (segment.idx <= np.uint64(ref.last)))

    def live_mask(self, indexes: U64Array) -> BoolArray:
        """Return which indexes must survive: those above the snapshot, and the live ones at or below it.

        LiveSetUnknownError when there is a snapshot and what is live below it is unknown.
        """
        if self.snapshot_index is None:
            return np.ones(indexes.shape, dtype=np.bool_)
        if self.live is None:
            raise self.live_unknown()
        return (indexes > np.uint64(self.snapshot_index)) | self.live.mask(indexes)


@dataclass(frozen=True, slots=True)
class LogScan:
    """A log state made from what could be parsed, and the errors of what could not."""

    log: LogState
    errors: tuple[SegmentLogError, ...]


def limit_refs(segments: tuple[SegmentIndex, ...]) -> tuple[tuple[SegmentRef, ...], tuple[str, ...]]:
    """(refs oldest to newest, orphans in name order) of segments in name order; linear in their number."""
    refs: list[SegmentRef] = []
    orphans: list[str] = []
    for segment in segments:
        if not segment.count:
            continue
        start = segment.first
        while refs and refs[-1].first >= start:
            orphans.append(refs.pop().name)
        if refs and refs[-1].last >= start:
            refs[-1] = SegmentRef(name=refs[-1].name, first=refs[-1].first, last=start - 1)
        refs.append(SegmentRef(name=segment.name, first=start, last=segment.last))
    return tuple(refs), tuple(sorted(orphans))


def is_log_directory(path: Path) -> bool:
    """Return whether a directory holds at least one regular file named like a segment."""
    try:
        with os.scandir(path) as entries:
            return any(
                entry.is_file(follow_symlinks=False) and SEGMENT_NAME.fullmatch(entry.name) is not None
                for entry in entries
            )
    except (FileNotFoundError, NotADirectoryError):
        return False


def open_log(
    directory: Path,
    *,
    snapshot_index: int | None = None,
    live: LiveSet | None = None,
    wal_directory: Path | None = None,
    skim: bool = False,
) -> LogState:
    """Parse every segment's index and the newest snapshot. Explicit values win over the snapshot directory.

    An explicit `snapshot_index` without `live` takes the live set of the directory's snapshot only if that is of the
    same index. The newest segment may have 0 bytes: its owner has created it and not yet written the header.
    Live entries that no segment holds are looked for in the write-ahead log; `skim`: only those below the last index
    that the segments hold, since the others wait there, unless it is not there at all.

    Raises:
        CorruptSegmentError, SegmentNameError: the first segment file that cannot be parsed.
        CorruptIndexesError, CorruptSnapshotError: the snapshot directory cannot be read, and no explicit values
        replace it. NotALogDirectoryError: no segment at all. LogChangedError: it never held still.
        InvalidWalFormatError, DamagedWalError: live entries may wait in a write-ahead log file that cannot be read.
    """
    scan = scan_log(directory, snapshot_index=snapshot_index, live=live, wal_directory=wal_directory, skim=skim)
    if scan.errors:
        raise scan.errors[0]
    return scan.log


def scan_log(
    directory: Path,
    *,
    snapshot_index: int | None = None,
    live: LiveSet | None = None,
    wal_directory: Path | None = None,
    skim: bool = False,
) -> LogScan:
    """As open_log, but what is corrupt is left out and named in `errors`: for looking, not for deciding.

    NotALogDirectoryError when there is no segment at all.
    """
    files = read_segments(directory)
    errors: list[SegmentLogError] = [*files.errors]
    try:
        search = find_snapshots(directory)
    except CorruptSnapshotError as error:
        search = SnapshotSearch(newest=None, rejected=())
        # A caller that gave both does not depend on the log's own snapshots.
        if snapshot_index is None or live is None:
            errors.append(error)
    index, members, corrupt = _effective_snapshot(search.newest, snapshot_index, live)
    if corrupt is not None:
        errors.append(corrupt)
    refs, orphans = limit_refs(files.segments)
    log = LogState(
        directory=directory,
        segments=files.segments,
        links=files.links,
        refs=refs,
        orphans=orphans,
        snapshot_index=index,
        live=members,
        snapshot=search.newest,
        rejected_snapshots=search.rejected,
        unreadable=frozenset(error.file for error in files.errors),
        wal_directory=wal_directory,
    )
    try:
        log = _with_missing(log, skim=skim)
    except (DamagedWalError, InvalidWalFormatError) as error:
        errors.append(error)
    return LogScan(log=log, errors=tuple(errors))


def _with_missing(log: LogState, *, skim: bool) -> LogState:
    missing = in_no_segment(log.segments, log.live) if log.live else LiveSet.empty()
    if missing:
        real = Path(os.path.realpath(log.directory))
        system = log.wal_directory or real.parent
        if skim and log.refs and wal_files(system):
            missing = missing.clip(0, log.refs[-1].last)
        if missing:
            missing = missing.without(waiting_in(system, os.fsencode(real.name)))
    if missing:
        # The segment writer may have moved them since the segments were read.
        missing = in_no_segment(log.look_again().segments, missing)
    return replace(log, missing=missing)


def _effective_snapshot(
    newest: LogSnapshot | None, snapshot_index: int | None, live: LiveSet | None
) -> tuple[int | None, LiveSet | None, SegmentLogError | None]:
    """(snapshot index, live set, error) after explicit values were applied."""
    if snapshot_index is None:
        snapshot_index = newest.index if newest else None
    if live is not None or newest is None or newest.index != snapshot_index:
        return snapshot_index, live, None
    return snapshot_index, newest.live, newest.live_error
