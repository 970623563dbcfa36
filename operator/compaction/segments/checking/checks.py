"""Checks of segments, snapshots and the write-ahead log against each other: pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from compaction.segments.checking.facts import CheckProblem, LogFacts, OwnerRule, ReadWindow, SystemFacts
from compaction.segments.directory.owner import MARKER_FILE, META_FILE, Marker
from compaction.segments.errors import DamagedWalError, MissingSegmentHeaderError, SegmentNameError
from compaction.segments.format import names
from compaction.segments.memtable import Seq
from compaction.segments.model import (
    MAX_INDEX,
    SEGMENT_NAME,
    BoolArray,
    SegmentIndex,
    U64Array,
    segment_name,
    segment_number,
    torn_from,
)
from compaction.segments.planning.unreferenced import find_dead
from compaction.segments.reading.reader import hidden_entries
from compaction.segments.reading.view import SegmentRef, in_no_segment
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.content import CUT_FILE
from compaction.segments.wal.files import wal_number

# Checks of segments, their names and links, and of what compactions leave beside them: pure.


def names_and_headers(log: LogFacts) -> Iterator[CheckProblem]:
    """Files that cannot be parsed."""
    for error in log.errors:
        path = str(getattr(error, "file", log.directory))
        if isinstance(error, SegmentNameError):
            yield CheckProblem(OwnerRule.SEGMENT_NAMES, path, "its name has no place in the log", _named(path))
        elif Path(path).name == log.cut_off and log.covered:
            remedy = "the owner creates it again at its next start: its entries are in the write-ahead log"
            yield CheckProblem(OwnerRule.SEGMENT_HEADERS, path, str(error), remedy, note=True)
        elif isinstance(error, MissingSegmentHeaderError):
            remedy = "restore it from a copy or from another member: newer segments exist, so its owner has passed it"
            yield CheckProblem(OwnerRule.SEGMENT_HEADERS, path, str(error), remedy)
        else:
            yield CheckProblem(
                OwnerRule.SEGMENT_HEADERS, path, str(error), "restore it from a copy or from another member"
            )


def _named(path: str) -> str:
    stem = Path(path).stem
    if stem.isdecimal() and len(stem) == 8:
        return f"rename it to {segment_name(int(stem))} while its owner is stopped"
    return "write 16 digits and .segment, or move the file out of the log's directory"


def segment_records(log: LogFacts) -> Iterator[CheckProblem]:
    """Payloads without a gap, and nothing else in the file. The end of the newest segment may be torn while the
    write-ahead log has its entries.
    """
    for segment in log.state.segments:
        # What an interrupted flush leaves behind the end of the newest is no record yet, and waits in the log.
        grows = segment.name == log.state.newest and not segment.is_holed and torn_from(segment) is None
        if segment.damage and not (grows and log.covered):
            remedy = "restore the segment from a copy or from another member: entries of it may be lost"
            yield CheckProblem(OwnerRule.SEGMENT_RECORDS, str(segment.path), segment.damage, remedy, note=grows)
    if log.torn is not None:
        alone = _only_here(log, log.torn)
        remedy = "the owner clears it at its next start: its entries are in the write-ahead log"
        if alone:
            remedy = "restore the segment from a copy or from another member: entries of it may be lost"
        yield CheckProblem(OwnerRule.SEGMENT_RECORDS, str(log.torn.path), log.torn.damage, remedy, note=not alone)


def _only_here(log: LogFacts, segment: SegmentIndex) -> bool:
    """Return whether a whole record behind a torn or empty slot is of an entry that the log needs.

    Only entries below those that wait in the write-ahead log count.
    """
    torn = torn_from(segment)
    row = segment.count if torn is None else torn
    whole = segment.inside[row:] & (segment.length[row:] > 0)
    first = min(log.waiting or (), default=None)
    found = (*segment.idx[row:][whole].tolist(), *segment.behind_hole.tolist())
    behind = [index for index in found if log.counts(index) and log.row.needs(index)]
    return bool(behind) and (first is None or min(behind) < first)


def links(log: LogFacts) -> Iterator[CheckProblem]:
    """Old names of compacted segments."""
    regular = {segment.name for segment in log.state.segments}
    for name, target in (log.links or {}).items():
        path = str(log.directory / name)
        if "/" in target:
            what = f"it is a link to {target}, outside of the log's directory"
            remedy = "delete the link: no reader follows it, and the log may have been moved since it was written"
            yield CheckProblem(OwnerRule.LINKS, path, what, remedy)
        elif not SEGMENT_NAME.fullmatch(target) or segment_number(target) >= segment_number(name):
            what = f"it is a link to {target}, which is no segment of a lower number"
            yield CheckProblem(OwnerRule.LINKS, path, what, "restore the segment from a copy, or delete the link")
        elif target not in regular and target not in (log.links or {}):
            what = f"it is a link to {target}, which is not there"
            remedy = "it does no harm: the owner or the next sweep deletes it"
            yield CheckProblem(OwnerRule.LINKS, path, what, remedy, note=True)


def half_done(log: LogFacts) -> Iterator[CheckProblem]:
    """Report the leftovers of a compaction that died: of the compactor here, or of Ra's own."""
    markers = [name for name in log.half_done if names.parse_ra_marker(name)]
    # The flag: a server that was killed does not look stopped, and without it the command refuses.
    recover = f"run `compactor segments sweep {log.directory} --apply --owner-stopped`"
    for marker in markers:
        path, leader = str(log.directory / marker), names.parse_ra_marker(marker)
        assert leader is not None
        copied = names.ra_compacting_name(leader) in log.names
        if len(markers) > 1:
            what, window = (
                f"it is one of {len(markers)} markers of compactions: a Ra server does not start",
                ReadWindow.W4,
            )
        elif copied:
            what = "a compaction of Ra was interrupted while it copied: later ones of that server fail"
            window = ReadWindow.W3
        else:
            what = (
                "a marker without its copy: a Ra server takes the group for committed when it starts, and may lose it"
            )
            window = ReadWindow.W1
        remedy = f"stop the owner if it runs, do not start it, and {recover} first"
        yield CheckProblem(OwnerRule.HALF_DONE, path, what, remedy, window)
    for text in log.blocked:
        yield CheckProblem(
            OwnerRule.HALF_DONE, str(log.directory), text, "restore what is missing, or move the file away"
        )
    known = {names.ra_compacting_name(leader) for marker in markers if (leader := names.parse_ra_marker(marker))}
    for name in log.half_done:
        if name not in markers and name not in known and not any(text.startswith(name) for text in log.blocked):
            what = "a compaction is under way, or died; every live entry is readable all the same"
            remedy = f"if it died: stop the owner if it runs, do not start it, and {recover} first"
            yield CheckProblem(OwnerRule.HALF_DONE, str(log.directory / name), what, remedy, note=True)


def cut(log: LogFacts) -> Iterator[CheckProblem]:
    """Report a damaged file of an installation: without it, it is unknown which entries count."""
    if log.cut_error is not None:
        remedy = "the system is not opened before that: restore the file from a copy, or the log from another member"
        yield CheckProblem(OwnerRule.LOG_CUT, log.cut_error.file, str(log.cut_error), remedy)


def compactor_files(log: LogFacts) -> Iterator[CheckProblem]:
    """The fence and the maps of moved entries."""
    for error in log.compactor_errors:
        path = str(getattr(error, "file", log.directory))
        remedy = "move it away if no job of the log is running: claims and receipts go, log data does not"
        if names.parse_moves(Path(path).name) is not None:
            remedy = "restore it from a copy: the owner needs it until its next snapshot"
        yield CheckProblem(OwnerRule.COMPACTOR_FILES, path, str(error), remedy)


def for_ra(log: LogFacts) -> Iterator[CheckProblem]:
    """Notes of what a Ra server that gets the directory would read otherwise than its owner."""
    first = min((*(ref.first for ref in log.state.refs), *(log.waiting or ())), default=None)
    if first == 1 and not log.snapshots:
        what = "the log begins at index 1 without a snapshot; that of a Ra server begins at index 0"
        remedy = "let its owner take a snapshot before a Ra server gets the directory"
        yield CheckProblem(OwnerRule.ENTRIES_ABOVE, str(log.directory), what, remedy, note=True)
    if log.cut is not None:
        what = f"entries from index {log.cut.first} on do not count, which a Ra server does not read in this file"
        remedy = "let its owner write on, until it removes the file, before a Ra server gets the directory"
        yield CheckProblem(OwnerRule.LOG_CUT, str(log.directory / CUT_FILE), what, remedy, note=True)


# Checks of a system's write-ahead log, alone and against the segments: pure.


def wal_files(system: SystemFacts) -> Iterator[CheckProblem]:
    """Names, numbers, headers."""
    if system.wal_lost:
        what = f"{META_FILE} lies there, and no write-ahead log file: it is lost, or elsewhere (Ra's wal_data_dir)"
        yield CheckProblem(
            OwnerRule.WAL_FILES, str(system.directory), what, "name its directory with --wal-dir, or restore it"
        )
    read = {wal.path.name for wal in system.wal}
    parent = system.wal[0].path.parent if system.wal else system.directory
    for name in system.wal_names:
        if name not in read and not _is_numbered(name):
            what = "its name has no place among the write-ahead log files"
            remedy = "write 16 digits and .wal, or move the file out of the directory if no log needs its entries"
            yield CheckProblem(OwnerRule.WAL_FILES, str(parent / name), what, remedy)
    for older, newer in pairwise(system.wal):
        # Newer files of an owner go before one that holds records of a log that it could not open.
        if wal_number(newer.path.name) != wal_number(older.path.name) + 1 and not older.is_held:
            what = f"no file lies between it and {newer.path.name}, so entries that were acknowledged may be lost"
            yield CheckProblem(
                OwnerRule.WAL_FILES, str(older.path), what, "restore the missing file, or the system from a copy"
            )
    for wal in system.wal:
        if wal.damage is not None and not isinstance(wal.damage, DamagedWalError):
            yield CheckProblem(OwnerRule.WAL_FILES, str(wal.path), str(wal.damage), "no owner starts before that")


def _is_numbered(name: str) -> bool:
    try:
        wal_number(name)
    except ValueError:
        return False
    return True


def wal_records(system: SystemFacts) -> Iterator[CheckProblem]:
    """Torn and damaged records."""
    for wal in system.wal:
        if isinstance(wal.damage, DamagedWalError):
            yield CheckProblem(OwnerRule.WAL_RECORDS, str(wal.path), str(wal.damage), "no owner starts before that")
        elif wal.tail is not None and system.is_stopped and wal is system.wal[-1]:
            what = f"the record at offset {wal.tail.offset} is torn ({wal.tail.reason}), though its server was stopped"
            remedy = "a server that stops leaves no torn record: check the disk, and compare with another member"
            yield CheckProblem(OwnerRule.WAL_RECORDS, str(wal.path), what, remedy)
        elif wal.tail is not None:
            what = f"the record at offset {wal.tail.offset} does not count: {wal.tail.reason}"
            remedy = "it was being written when its owner stopped, or is now: nothing was acknowledged of it"
            yield CheckProblem(OwnerRule.WAL_RECORDS, str(wal.path), what, remedy, note=True)


def writers(system: SystemFacts) -> Iterator[CheckProblem]:
    """Ids are names of logs' directories. Whether those are there is asked of a whole system only."""
    logs = {log.name for log in system.logs}
    for wal in system.wal:
        for writer in wal.writers:
            name = writer.log
            if not name or "/" in name or "\0" in name or name in (".", ".."):
                what = f"a writer's id is {name!a}, which is no name of a directory"
                yield CheckProblem(OwnerRule.WAL_WRITERS, str(wal.path), what, "its entries are lost: fix the owner")
            elif name not in logs and wal.path.parent == system.directory:
                what = f"it holds {writer.records} records of {name!a}, a log that has no directory"
                remedy = "that is right if the log was deleted: the owner drops them at its next start"
                yield CheckProblem(OwnerRule.WAL_WRITERS, str(wal.path), what, remedy, note=True)
            elif wal.is_held:
                what = f"{writer.records} records of {name!a} wait in it: its owner could not open the log"
                remedy = "remove the cause, or restore the log's files, then start the owner again"
                yield CheckProblem(OwnerRule.WAL_WRITERS, str(wal.path), what, remedy, note=True)


def marker(system: SystemFacts) -> Iterator[CheckProblem]:
    """The owner's word that its logs may be compacted while it writes them."""
    if system.marker is Marker.FOREIGN:
        parent = system.wal[0].path.parent if system.wal else system.directory
        what = f"it is no marker that is known here: {system.marker_fault}"
        remedy = "no log of the system is compacted while it is there: fix the owner, which writes it"
        yield CheckProblem(OwnerRule.OWNER_MARKER, str(parent / MARKER_FILE), what, remedy)


def same_entry(log: LogFacts) -> Iterator[CheckProblem]:
    """An index of a term has the same payload in a segment and in the write-ahead log."""
    waiting = log.waiting or {}
    if not waiting:
        return
    for ref in log.state.refs:
        segment = log.state.segment(ref.name)
        for row in log.state.readable(ref).tolist():
            pending = waiting.get(int(segment.idx[row]))
            if pending is None or not log.counts(int(segment.idx[row])) or pending.term != int(segment.term[row]):
                continue
            crc = int(segment.crc[row])
            if pending.length != int(segment.length[row]) or (crc and crc != pending.crc):
                what = (
                    f"the payload of index {segment.idx[row]}, term {pending.term}, is another in the write-ahead log"
                )
                remedy = "fix the owner: an overwrite has a higher term; compare the entry with another member's"
                yield CheckProblem(OwnerRule.SAME_ENTRY, str(segment.path), what, remedy)
                break


# Checks of snapshots, of what they declare live, and of whether it is there: pure.

_COPY = "restore the log from a copy or from another member"


def snapshot_files(log: LogFacts) -> Iterator[CheckProblem]:
    """Newer snapshots than the one in force that are not valid, and one in force that is of another cluster."""
    force = log.snapshots[-1] if log.snapshots else None
    if force is not None and log.stranger:
        remedy = "do not start the server before the snapshot is restored from a copy or from another member"
        yield CheckProblem(OwnerRule.SNAPSHOT_FILES, str(force.data), log.stranger, remedy)
    for error in log.rejected:
        what = str(error)
        remedy = f"the one at index {force.index} is in force: delete the newer" if force else "restore it from a copy"
        yield CheckProblem(OwnerRule.SNAPSHOT_FILES, error.file, what, remedy)


def live_indexes(log: LogFacts) -> Iterator[CheckProblem]:
    """The snapshot in force says what is live. One that it replaced is deleted, file by file."""
    for snapshot in log.snapshots:
        path = str(snapshot.path)
        if snapshot is not log.snapshots[-1]:
            if snapshot.live is None:
                what = f"the snapshot at index {snapshot.index} does not say any more what is live"
                remedy = f"it is replaced by the one at index {log.snapshots[-1].index}, and its owner deletes it"
                yield CheckProblem(OwnerRule.LIVE_INDEXES, path, what, remedy, note=True)
        elif snapshot.live_error is not None:
            yield CheckProblem(
                OwnerRule.LIVE_INDEXES, path, str(snapshot.live_error), "its owner computes it from the state"
            )
        elif snapshot.live is None:
            what = f"the snapshot at index {snapshot.index} has no `indexes`: what is live is unknown, not empty"
            remedy = "restore the file from a copy, or state what is live with --live or `whenIndexesMissing`"
            yield CheckProblem(OwnerRule.LIVE_INDEXES, path, what, remedy, ReadWindow.W2)


def only_shrinks(log: LogFacts) -> Iterator[CheckProblem]:
    """Of each two snapshots that are there."""
    for older, newer in pairwise(log.snapshots):
        yield from revived(older, newer)


def revived(older: LogSnapshot, newer: LogSnapshot) -> Iterator[CheckProblem]:
    """Report an entry that a newer snapshot declares live and the older one did not."""
    if older.live is None or newer.live is None:
        return
    again = newer.live.clip(0, older.index).without(older.live)
    if again:
        what = f"index {again.smallest} is live, which was dead at the snapshot of index {older.index}: it may be gone"
        remedy = "fix the owner: what was dead below a snapshot stays dead; restore the entry from another member"
        yield CheckProblem(OwnerRule.LIVE_ONLY_SHRINKS, str(newer.path), what, remedy)


def live_entries(log: LogFacts) -> Iterator[CheckProblem]:
    """Every live entry is in a segment or in the write-ahead log."""
    live = log.demanded
    if not live:
        return
    waiting = LiveSet.from_indexes(log.waiting or ())
    held = [segment.idx[live.mask(segment.idx)] for segment in log.state.segments]
    missing = live.without(waiting)
    if held and missing:
        missing = missing.without(LiveSet.from_indexes(np.unique(np.concatenate(held))))
    if not missing:
        return
    what = f"{len(missing)} live entries (first index {missing.smallest}) are in no segment and no write-ahead log file"
    source = next((ref.name for ref in log.state.refs if ref.first <= missing.smallest <= ref.last), None)
    if source is None:
        yield CheckProblem(OwnerRule.LIVE_ENTRIES, str(log.directory), what, _COPY)
    else:
        # A compaction of Ra finds the segment by its range, and fails half-way for want of the record.
        yield CheckProblem(OwnerRule.LIVE_ENTRIES, str(log.directory / source), what, _COPY, ReadWindow.W7)


def hidden(log: LogFacts) -> Iterator[CheckProblem]:
    """Entries that segments hold and no reader gets, though no leader has dropped them."""
    bound = min(log.waiting or (), default=MAX_INDEX)
    row, live = log.row, log.demanded
    above = np.uint64(0 if row.snapshot_index is None else row.snapshot_index + 1)

    def needed(indexes: U64Array) -> BoolArray:
        # From the first one that waits on, a reader asks the write-ahead log; below the snapshot, what is live counts.
        wanted = indexes >= above
        if live is not None:
            wanted |= live.mask(indexes)
        end = bound if log.cut is None else min(bound, log.cut.first)
        return wanted & (indexes < np.uint64(end))

    state = log.state
    lost = live is not None and in_no_segment(state.segments, live).without(LiveSet.from_indexes(log.waiting or ()))
    dead = find_dead(state, state.live) if state.live is not None and not lost else {}
    for entry in hidden_entries(state, needed, cut=None if log.cut is None else log.cut.first):
        rule = OwnerRule.SAME_ENTRY if entry.replaced else OwnerRule.ENTRIES_ABOVE
        if not entry.replaced and live is not None and entry.indexes[0] < above:
            rule = OwnerRule.LIVE_ENTRIES
        remedy = f"if {entry.by} is an old file under a new name, move it out of the log's directory; else {_COPY}"
        if entry.by in dead:
            remedy = (
                "nothing of that file is needed: `compactor segments compact` marks it, and `sweep --apply` deletes it "
                "after the grace"
            )
        yield CheckProblem(rule, str(state.directory / entry.by), str(entry), remedy)


def entries_above(log: LogFacts) -> Iterator[CheckProblem]:
    """Indexes above the snapshot: a gap is the trace of a sparse write, unless a segment is missing there."""
    above = 0 if log.row.snapshot_index is None else log.row.snapshot_index + 1
    waiting = Seq.from_indexes(log.waiting or ())
    refs = [ref for ref in log.state.refs if log.counts(ref.first)]
    for ref in refs:
        yield from _holes(log, ref, above, waiting)
    for older, newer in pairwise(ref for ref in refs if ref.last >= above):
        if newer.first > older.last + 1 and not waiting.overlaps(older.last + 1, newer.first - 1):
            yield _gap(log, older, newer)
    ends = [refs[-1].last] if refs and log.counts(refs[-1].last) else []
    if waiting.first is not None and ends and waiting.first > max(ends[0], above - 1) + 1:
        low, high = max(ends[0], above - 1) + 1, waiting.first - 1
        what = f"indexes {low}-{high} are neither in segments nor in the write-ahead log"
        yield CheckProblem(OwnerRule.ENTRIES_ABOVE, str(log.directory), what, _SPARSE, note=True)


_SPARSE = "that is right if the entry behind the gap was a sparse write, as of a snapshot's installation"


def _holes(log: LogFacts, ref: SegmentRef, above: int, waiting: Seq) -> Iterator[CheckProblem]:
    """Indexes above the snapshot that one file steps over."""
    indexes = log.state.segment(ref.name).idx[log.state.readable(ref)]
    indexes = indexes[indexes >= np.uint64(max(above - 1, 0))]
    for place in np.flatnonzero(indexes[1:] - indexes[:-1] > np.uint64(1)).tolist():
        low, high = int(indexes[place]) + 1, int(indexes[place + 1]) - 1
        if low >= above and log.counts(low) and not waiting.overlaps(low, high):
            what = f"no entry of indexes {low}-{high}, above the snapshot, is there, between others of the file"
            yield CheckProblem(OwnerRule.ENTRIES_ABOVE, str(log.directory / ref.name), what, _SPARSE, note=True)


def _gap(log: LogFacts, older: SegmentRef, newer: SegmentRef) -> CheckProblem:
    numbers = segment_number(older.name), segment_number(newer.name)
    what = f"no entry of indexes {older.last + 1}-{newer.first - 1}, above the snapshot, is there"
    if numbers[1] > numbers[0] + 1:
        what += f", and no segment between {older.name} and {newer.name}"
        return CheckProblem(OwnerRule.ENTRIES_ABOVE, str(log.directory), what, _COPY)
    return CheckProblem(OwnerRule.ENTRIES_ABOVE, str(log.directory), what, _SPARSE, note=True)
