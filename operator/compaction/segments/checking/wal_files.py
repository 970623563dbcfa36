"""Checks of a system's write-ahead log, alone and against the segments: pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from compaction.segments.checking.facts import LogFacts, SystemFacts
from compaction.segments.checking.rules import Problem, Rule
from compaction.segments.directory.marker import MARKER_FILE, Marker
from compaction.segments.directory.owner import META_FILE
from compaction.segments.errors import DamagedWalError
from compaction.segments.wal.files import wal_number


def files(system: SystemFacts) -> Iterator[Problem]:
    """Names, numbers, headers."""
    if system.wal_lost:
        what = f"{META_FILE} lies there, and no write-ahead log file: it is lost, or elsewhere (Ra's wal_data_dir)"
        yield Problem(Rule.WAL_FILES, str(system.directory), what, "name its directory with --wal-dir, or restore it")
    read = {wal.path.name for wal in system.wal}
    parent = system.wal[0].path.parent if system.wal else system.directory
    for name in system.wal_names:
        if name not in read and not _is_numbered(name):
            what = "its name has no place among the write-ahead log files"
            remedy = "write 16 digits and .wal, or move the file out of the directory if no log needs its entries"
            yield Problem(Rule.WAL_FILES, str(parent / name), what, remedy)
    for older, newer in pairwise(system.wal):
        # Newer files of an owner go before one that holds records of a log that it could not open.
        if wal_number(newer.path.name) != wal_number(older.path.name) + 1 and not older.is_held:
            what = f"no file lies between it and {newer.path.name}, so entries that were acknowledged may be lost"
            yield Problem(Rule.WAL_FILES, str(older.path), what, "restore the missing file, or the system from a copy")
    for wal in system.wal:
        if wal.damage is not None and not isinstance(wal.damage, DamagedWalError):
            yield Problem(Rule.WAL_FILES, str(wal.path), str(wal.damage), "no owner starts before that")


def _is_numbered(name: str) -> bool:
    try:
        wal_number(name)
    except ValueError:
        return False
    return True


def records(system: SystemFacts) -> Iterator[Problem]:
    """Torn and damaged records."""
    for wal in system.wal:
        if isinstance(wal.damage, DamagedWalError):
            yield Problem(Rule.WAL_RECORDS, str(wal.path), str(wal.damage), "no owner starts before that")
        elif wal.tail is not None and system.is_stopped and wal is system.wal[-1]:
            what = f"the record at offset {wal.tail.offset} is torn ({wal.tail.reason}), though its server was stopped"
            remedy = "a server that stops leaves no torn record: check the disk, and compare with another member"
            yield Problem(Rule.WAL_RECORDS, str(wal.path), what, remedy)
        elif wal.tail is not None:
            what = f"the record at offset {wal.tail.offset} does not count: {wal.tail.reason}"
            remedy = "it was being written when its owner stopped, or is now: nothing was acknowledged of it"
            yield Problem(Rule.WAL_RECORDS, str(wal.path), what, remedy, note=True)


def writers(system: SystemFacts) -> Iterator[Problem]:
    """Ids are names of logs' directories. Whether those are there is asked of a whole system only."""
    logs = {log.name for log in system.logs}
    for wal in system.wal:
        for one in wal.writers:
            name = one.log
            if not name or "/" in name or "\0" in name or name in (".", ".."):
                what = f"a writer's id is {name!a}, which is no name of a directory"
                yield Problem(Rule.WAL_WRITERS, str(wal.path), what, "its entries are lost: fix the owner")
            elif name not in logs and wal.path.parent == system.directory:
                what = f"it holds {one.records} records of {name!a}, a log that has no directory"
                remedy = "that is right if the log was deleted: the owner drops them at its next start"
                yield Problem(Rule.WAL_WRITERS, str(wal.path), what, remedy, note=True)
            elif wal.is_held:
                what = f"{one.records} records of {name!a} wait in it: its owner could not open the log"
                remedy = "remove the cause, or restore the log's files, then start the owner again"
                yield Problem(Rule.WAL_WRITERS, str(wal.path), what, remedy, note=True)


def marker(system: SystemFacts) -> Iterator[Problem]:
    """The owner's word that its logs may be compacted while it writes them."""
    if system.marker is Marker.FOREIGN:
        parent = system.wal[0].path.parent if system.wal else system.directory
        what = f"it is no marker that is known here: {system.marker_fault}"
        remedy = "no log of the system is compacted while it is there: fix the owner, which writes it"
        yield Problem(Rule.OWNER_MARKER, str(parent / MARKER_FILE), what, remedy)


def same_entry(log: LogFacts) -> Iterator[Problem]:
    """An index of a term has the same payload in a segment and in the write-ahead log."""
    waiting = log.waiting or {}
    if not waiting:
        return
    for ref in log.state.refs:
        segment = log.state.segment(ref.name)
        for row in log.state.readable(ref).tolist():
            one = waiting.get(int(segment.idx[row]))
            if one is None or not log.counts(int(segment.idx[row])) or one.term != int(segment.term[row]):
                continue
            crc = int(segment.crc[row])
            if one.length != int(segment.length[row]) or (crc and crc != one.crc):
                what = f"the payload of index {segment.idx[row]}, term {one.term}, is another in the write-ahead log"
                remedy = "fix the owner: an overwrite has a higher term; compare the entry with another member's"
                yield Problem(Rule.SAME_ENTRY, str(segment.path), what, remedy)
                break
