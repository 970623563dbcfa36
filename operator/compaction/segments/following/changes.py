"""The changes between two listings of a system of logs: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from compaction.api.text.printing import format_bytes, plural
from compaction.segments.model import SegmentIndex
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.wal.codec import WalRecord

_SHOWN_RANGES = 8


class ChangeKind(StrEnum):
    """The kind of a change."""

    LOG_CREATED = "LogCreated"
    LOG_DELETED = "LogDeleted"
    WRITTEN = "Written"
    """Entries are in the write-ahead log."""
    OVERWRITTEN = "Overwritten"
    """So are these, which go back behind entries of before."""
    ROLLED = "Rolled"
    """A write-ahead log file was begun."""
    EMPTIED = "Emptied"
    """A write-ahead log file is gone: its entries are in segments, or dead."""
    FLUSHED = "Flushed"
    """Entries were appended to a segment."""
    SNAPSHOT = "Snapshot"
    LIVE = "Live"
    """What is live below the snapshot."""
    COMPACTED = "Compacted"
    """Another file has a segment's name."""
    LINKED = "Linked"
    """A segment became a link to the compacted one."""
    DELETED = "Deleted"
    """A segment, or a link, is gone."""
    UNREADABLE = "Unreadable"
    """A file cannot be read now."""


@dataclass(frozen=True, slots=True)
class LogChange:
    """One line. `log` empty: of the system; `file`: a base name, or empty; `detail`: in words."""

    kind: ChangeKind
    log: str
    file: str
    detail: str


@dataclass(frozen=True, slots=True)
class LogListing:
    """A log: segments and links by name, the newest snapshot, and what could not be read."""

    segments: Mapping[str, SegmentIndex] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    snapshot: LogSnapshot | None = None
    errors: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SystemListing:
    """A system: logs by name, names of its write-ahead log files."""

    logs: Mapping[str, LogListing] = field(default_factory=dict)
    wal: tuple[str, ...] = ()


def changes(before: SystemListing, after: SystemListing) -> Iterator[LogChange]:
    """Of the files of the write-ahead log, then log by log, in name order."""
    for name in after.wal:
        if name not in before.wal:
            yield LogChange(ChangeKind.ROLLED, "", name, "entries go to this file")
    for name in before.wal:
        if name not in after.wal:
            yield LogChange(ChangeKind.EMPTIED, "", name, "all that is needed of it is in segments")
    for name in sorted(before.logs.keys() | after.logs.keys()):
        old, new = before.logs.get(name), after.logs.get(name)
        if new is None:
            yield LogChange(ChangeKind.LOG_DELETED, name, "", "its directory is gone")
            continue
        if old is None:
            yield LogChange(ChangeKind.LOG_CREATED, name, "", "its directory is there")
        yield from _of_log(name, old or LogListing(), new)


def _of_log(log: str, old: LogListing, new: LogListing) -> Iterator[LogChange]:
    yield from _snapshots(log, old.snapshot, new.snapshot)
    for name in sorted(old.segments.keys() | old.links.keys() | new.segments.keys() | new.links.keys()):
        yield from _of_name(log, name, old, new)
    for text in sorted(new.errors - old.errors):
        yield LogChange(ChangeKind.UNREADABLE, log, "", text)


def _snapshots(log: str, old: LogSnapshot | None, new: LogSnapshot | None) -> Iterator[LogChange]:
    if new is None:
        if old is not None:
            yield LogChange(ChangeKind.SNAPSHOT, log, "", "no snapshot is there any more")
        return
    if old is None or (old.index, old.term) != (new.index, new.term):
        yield LogChange(ChangeKind.SNAPSHOT, log, "", f"index {new.index}, term {new.term}")
    elif old.live == new.live:
        return
    if new.live is None:
        detail = "unknown: the snapshot has no readable `indexes`"
    elif not new.live:
        detail = "nothing at or below the snapshot"
    else:
        parts = str(new.live).split(",")
        shown = ",".join(parts[:_SHOWN_RANGES]) + (",..." if len(parts) > _SHOWN_RANGES else "")
        detail = f"{plural(len(new.live), 'entry', 'entries')} at {shown}"
    yield LogChange(ChangeKind.LIVE, log, "", detail)


def _of_name(log: str, name: str, old: LogListing, new: LogListing) -> Iterator[LogChange]:
    was, now = old.segments.get(name), new.segments.get(name)
    if name in new.links:
        if new.links[name] != old.links.get(name):
            yield LogChange(ChangeKind.LINKED, log, name, f"now a link to {new.links[name]}")
    elif now is None:
        what = "a link" if name in old.links else "a segment" + (f" with {_entries(was.count)}" if was else "")
        yield LogChange(ChangeKind.DELETED, log, name, what)
    elif was is not None and was.identity.inode != now.identity.inode:
        size = format_bytes(was.identity.size), format_bytes(now.identity.size)
        detail = f"{was.count} -> {_entries(now.count)}, {size[0]} -> {size[1]}"
        yield LogChange(ChangeKind.COMPACTED, log, name, detail)
    elif now.count > (was.count if was else 0):
        first = int(now.idx[was.count if was else 0])
        added = now.count - (was.count if was else 0)
        yield LogChange(ChangeKind.FLUSHED, log, name, f"{_range(first, now.last)}, {_entries(added)}")


def written(file: str, records: Iterable[WalRecord], lasts: dict[bytes, int]) -> Iterator[LogChange]:
    """A line for each stretch of ascending indexes of each log. `lasts`: the last index of each; updated."""
    stretches: dict[bytes, list[WalRecord]] = {}
    for record in records:
        stretch = stretches.setdefault(record.writer, [])
        if stretch and (record.index <= stretch[-1].index or record.truncate):
            yield _stretch(file, stretch, lasts)
            stretch.clear()
        stretch.append(record)
    for stretch in stretches.values():
        yield _stretch(file, stretch, lasts)


def _stretch(file: str, records: list[WalRecord], lasts: dict[bytes, int]) -> LogChange:
    first, last = records[0], records[-1]
    kind = ChangeKind.OVERWRITTEN if first.index <= lasts.get(first.writer, -1) else ChangeKind.WRITTEN
    lasts[first.writer] = last.index
    size = sum(len(record.payload) for record in records)
    detail = f"{_range(first.index, last.index)}, term {last.term}, {_entries(len(records))}, {format_bytes(size)}"
    if first.truncate:
        detail += "; lower indexes are dead"
    return LogChange(kind, first.writer.decode(errors="backslashreplace"), file, detail)


def _range(first: int, last: int) -> str:
    return f"index {first}" if first == last else f"indexes {first}-{last}"


def _entries(count: int) -> str:
    return plural(count, "entry", "entries")


def in_log(directory: Path, text: str) -> str:
    """A message without the log's own path, which the line names."""
    return text.replace(f"{directory}/", "")
