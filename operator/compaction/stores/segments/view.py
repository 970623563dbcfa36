"""The log view: what a reader of many segment files sees (research/ra.md §1.8).

Only regular files count; a symlink is an old name of a compacted segment. Newer files hide older ones from their first
index on. Invariant: `refs` are ascending and disjoint, so every index is read from at most one file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from compaction.exceptions import (
    CorruptSegmentError,
    CorruptSnapshotError,
    LiveSetUnknownError,
    LogChangedError,
    NotALogDirectoryError,
    SegmentIsLinkError,
    SegmentLogError,
    SegmentNameError,
)
from compaction.stores.segments.codec import read_segment
from compaction.stores.segments.model import SEGMENT_NAME, SEGMENT_SUFFIX, BoolArray, RowArray, SegmentIndex, U64Array
from compaction.stores.segments.seq import LiveSet
from compaction.stores.segments.snapshot import Snapshot, find_snapshots

# A commit renames at most 8 names; a second look finds it finished unless the log is being rewritten all the time.
LOOKS = 5


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment and the inclusive range of indexes that is read from it, after newer files limited it."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class LogState:
    """One look at a log directory.

    `segments`: regular files in name order (= write order), header-only ones included. `orphans`: names of segments
    whose every record is hidden by newer files. `links`: symlink name -> target's base name.
    `snapshot_index` None: no snapshot, so nothing may be dropped. `live` None beside a snapshot: unknown.
    """

    directory: Path
    segments: tuple[SegmentIndex, ...]
    links: dict[str, str]
    refs: tuple[SegmentRef, ...]
    orphans: tuple[str, ...]
    snapshot_index: int | None
    live: LiveSet | None
    snapshot: Snapshot | None = None
    rejected_snapshots: tuple[CorruptSnapshotError, ...] = ()
    _by_name: dict[str, SegmentIndex] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {segment.name: segment for segment in self.segments})

    @property
    def newest(self) -> str:
        """The last segment's name: the one the owner appends to."""
        return self.segments[-1].name

    def segment(self, name: str) -> SegmentIndex:
        """KeyError when no regular segment has this name."""
        return self._by_name[name]

    def readable(self, ref: SegmentRef) -> RowArray:
        """Positions of the records that a reader gets from this ref, ascending in index and in file order."""
        segment = self.segment(ref.name)
        return np.flatnonzero(segment.effective & (segment.idx <= np.uint64(ref.last)))

    def live_mask(self, indexes: U64Array) -> BoolArray:
        """Which indexes must survive: those above the snapshot, and the live ones at or below it.

        LiveSetUnknownError when there is a snapshot and what is live below it is unknown.
        """
        if self.snapshot_index is None:
            return np.ones(indexes.shape, dtype=np.bool_)
        if self.live is None:
            raise LiveSetUnknownError(str(self.directory))
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
    """Whether a directory holds at least one regular file named like a segment."""
    try:
        with os.scandir(path) as entries:
            return any(
                entry.is_file(follow_symlinks=False) and SEGMENT_NAME.fullmatch(entry.name) is not None
                for entry in entries
            )
    except (FileNotFoundError, NotADirectoryError):
        return False


def open_log(directory: Path, *, snapshot_index: int | None = None, live: LiveSet | None = None) -> LogState:
    """Parse every segment's index and the newest snapshot. Explicit values win over the snapshot directory.

    An explicit `snapshot_index` without `live` takes the live set of the directory's snapshot only if that is of the
    same index. The first corrupt segment, or a corrupt `indexes` file that no explicit value replaces, is raised.
    """
    scan = scan_log(directory, snapshot_index=snapshot_index, live=live)
    if scan.errors:
        raise scan.errors[0]
    return scan.log


def scan_log(directory: Path, *, snapshot_index: int | None = None, live: LiveSet | None = None) -> LogScan:
    """As open_log, but what is corrupt is left out and named in `errors`: for looking, not for deciding.

    NotALogDirectoryError when there is no segment at all.
    """
    segments, links, errors = _read_segments(directory)
    search = find_snapshots(directory)
    index, members, error = _effective_snapshot(search.newest, snapshot_index, live)
    if error is not None:
        errors.append(error)
    refs, orphans = limit_refs(segments)
    log = LogState(
        directory=directory,
        segments=segments,
        links=links,
        refs=refs,
        orphans=orphans,
        snapshot_index=index,
        live=members,
        snapshot=search.newest,
        rejected_snapshots=search.rejected,
    )
    return LogScan(log=log, errors=tuple(errors))


def _effective_snapshot(
    newest: Snapshot | None, snapshot_index: int | None, live: LiveSet | None
) -> tuple[int | None, LiveSet | None, SegmentLogError | None]:
    """(snapshot index, live set, error) after explicit values were applied."""
    if snapshot_index is None:
        snapshot_index = newest.index if newest else None
    if live is not None or newest is None or newest.index != snapshot_index:
        return snapshot_index, live, None
    return snapshot_index, newest.live, newest.live_error


def _read_segments(directory: Path) -> tuple[tuple[SegmentIndex, ...], dict[str, str], list[SegmentLogError]]:
    """Segments, links and errors; looks again when a commit or the sweeper changed names while they were read."""
    for _ in range(LOOKS):
        found = _list_segments(directory)
        try:
            return _parse_segments(directory, found)
        except (FileNotFoundError, SegmentIsLinkError):
            continue
    raise LogChangedError(str(directory))


def _list_segments(directory: Path) -> list[tuple[str, bool]]:
    """(name, is a symlink) of everything named *.segment, in name order."""
    try:
        with os.scandir(directory) as entries:
            return sorted((e.name, e.is_symlink()) for e in entries if e.name.endswith(SEGMENT_SUFFIX))
    except FileNotFoundError as error:
        raise NotALogDirectoryError(str(directory), "it does not exist") from error
    except NotADirectoryError as error:
        raise NotALogDirectoryError(str(directory), "it is not a directory") from error


def _parse_segments(
    directory: Path, found: list[tuple[str, bool]]
) -> tuple[tuple[SegmentIndex, ...], dict[str, str], list[SegmentLogError]]:
    segments: list[SegmentIndex] = []
    links: dict[str, str] = {}
    errors: list[SegmentLogError] = []
    for name, is_link in found:
        path = directory / name
        if not SEGMENT_NAME.fullmatch(name):
            errors.append(SegmentNameError(str(path)))
        elif is_link:
            links[name] = os.path.basename(os.readlink(path))
        else:
            try:
                segments.append(read_segment(path))
            except SegmentIsLinkError:
                raise
            except CorruptSegmentError as error:
                errors.append(error)
    if not segments and not errors:
        raise NotALogDirectoryError(str(directory), "it holds no segment file (NNNNNNNNNNNNNNNN.segment)")
    return tuple(segments), links, errors
