"""Facts of a directory and of its write-ahead log, read without a lock while an owner writes and a compactor
compacts.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from compaction.errors import CompactionError
from compaction.segments.checking.facts import Content, LogFacts, SystemFacts, WalFacts, WriterFacts
from compaction.segments.clump.moves import read_moves
from compaction.segments.commit import fence, recovery
from compaction.segments.directory.fs import fault_of, regular_identity, regular_segments, storage_errors
from compaction.segments.directory.owner import (
    WAL_SUFFIX,
    Mark,
    Writers,
    is_ra_directory,
    read_marker,
    signs_in,
    system_of,
)
from compaction.segments.errors import (
    CorruptFenceError,
    CorruptMovesError,
    CorruptSnapshotError,
    DamagedWalError,
    InvalidCutError,
    InvalidStopError,
    InvalidWalFormatError,
    NotALogDirectoryError,
    SegmentLogError,
)
from compaction.segments.format import etf, names
from compaction.segments.memtable import LogEntry, MemTables
from compaction.segments.model import HEADER_BYTES, SegmentIndex, torn_from
from compaction.segments.reading.view import LogState, SegmentFiles, is_log_directory, limit_refs, read_segments
from compaction.segments.snapshot.directories import (
    NO_CLUSTER,
    SNAPSHOTS,
    LogSnapshot,
    SnapshotSearch,
    find_snapshots,
    load_snapshot,
    parse_snapshot_name,
    read_origin,
)
from compaction.segments.system.content import LogCut, read_cut
from compaction.segments.system.rules import LogRow
from compaction.segments.wal.codec import WalRecord
from compaction.segments.wal.files import WalEnd, lost_since_stop, open_wal, read_stop, wal_files, wal_number
from compaction.segments.wal.wal_reader import WalReader

# Facts of write-ahead log files, and what of them their logs need: read without a lock, while an owner writes.

_READS: Final = 5
"""Readings of a file that seems damaged and grows: its end is being written."""


class WaitingEntries:
    """The entries in the write-ahead log files of some logs, put together as a recovery does it."""

    def __init__(self, rows: Mapping[bytes, LogRow], cuts: Mapping[bytes, LogCut]) -> None:
        """`rows`: of the logs, by id. What lies below a row's smallest live index, or behind a cut, is dropped."""
        self._rows = rows
        self._cuts = cuts
        self._tables = {uid: MemTables() for uid in rows}
        self.writers: set[bytes] = set()

    def add(self, record: WalRecord, number: int) -> None:
        """The next record of the files, oldest first, in the file of this number."""
        self.writers.add(record.writer)
        row, cut = self._rows.get(record.writer), self._cuts.get(record.writer)
        if cut is not None and cut.covers(record.index, number):
            return
        if row is not None and record.index >= row.smallest_live:
            tables = self._tables[record.writer]
            if record.truncate:
                tables.remove_below(record.index)
            tables.insert(LogEntry(record.index, record.term, record.payload))

    def of(self, uid: bytes) -> dict[int, Content]:
        """The entries that a reader gets from the files, by index."""
        tables = self._tables[uid]
        found = {index: tables.lookup(index) for index in tables.visible()}
        return {
            index: Content(entry.term, len(entry.payload), zlib.crc32(entry.payload))
            for index, entry in found.items()
            if entry is not None
        }


def read_wal_files(
    directory: Path, *, on_record: Callable[[WalRecord, int], None], before: Mapping[str, WalFacts] | None = None
) -> tuple[WalFacts, ...]:
    """Facts of all files, oldest first, also of those that are gone since a clean stop; one that goes while they are
    read is left out, with those before it: their entries are in segments.

    `on_record`: gets every record in order with the number of its file, also those before damage. `before`: facts of an
    earlier reading by name.
    """
    listed = wal_files(directory)
    read = [_read_wal(path, (before or {}).get(path.name), on_record) for path in listed]
    found = [facts for facts in read if facts is not None]
    if len(found) < len(listed):
        # The oldest is deleted first: what was read before a file that went is gone as well, and would stand apart from
        # the rest as if one between them were lost. A file with records of a log that could not be opened stays.
        there = {path.name for path in wal_files(directory)}
        found = [facts for facts in found if facts.path.name in there]
    try:
        found += [_unreadable(Path(lost.file), lost) for lost in lost_since_stop(directory)]
    except InvalidStopError:
        # Each file that is there says so.
        if not found:
            raise
    return tuple(sorted(found, key=lambda facts: facts.path.name))


def _unreadable(path: Path, error: SegmentLogError) -> WalFacts:
    return WalFacts(path, size=0, whole=0, mark=0, records=0, writers=(), damage=error)


def _read_wal(path: Path, before: WalFacts | None, on_record: Callable[[WalRecord, int], None]) -> WalFacts | None:
    facts: WalFacts | None = None
    records: list[WalRecord] = []
    stopped: WalEnd | None = None
    unknown: InvalidStopError | None = None
    try:
        # Before the file, which may grow until its system is stopped, and never after.
        stopped = read_stop(path.parent).get(path.name)
    except InvalidStopError as error:
        # The records are read all the same; this fault is reported if the file has no worse one.
        unknown = error
    for _ in range(_READS):
        try:
            with open(open_wal(path), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            # Its owner flushed it to segments and deleted it since it was listed.
            return None
        except InvalidWalFormatError as error:
            return _unreadable(path, error)
        # Damage in a file that does not grow is no record that is being written now.
        if facts is not None and facts.size == len(data):
            break
        records, facts = _facts(path, data, before, stopped)
        if facts.damage is None:
            break
    for record in records:
        on_record(record, wal_number(path.name))
    return replace(facts, damage=unknown) if facts is not None and facts.damage is None else facts


def _facts(
    path: Path, data: bytes, before: WalFacts | None, stopped: WalEnd | None
) -> tuple[list[WalRecord], WalFacts]:
    records: list[WalRecord] = []
    writers: dict[bytes, list[WalRecord]] = {}
    damage: SegmentLogError | None = None
    tail, whole, is_held = None, 0, False
    try:
        reader = WalReader(data, file=str(path), stopped=stopped)
        try:
            for record in reader:
                records.append(record)
                writers.setdefault(record.writer, []).append(record)
        finally:
            # Of a damaged file as well: the records before the damage count.
            whole, tail, is_held = reader.end, reader.tail, reader.is_held
    except (DamagedWalError, InvalidWalFormatError) as error:
        damage = error
    return records, WalFacts(
        path=path,
        size=len(data),
        whole=whole,
        mark=zlib.crc32(memoryview(data)[:whole]),
        records=len(records),
        writers=tuple(_writer(uid, own) for uid, own in writers.items()),
        tail=tail,
        damage=damage,
        kept=None if before is None else zlib.crc32(memoryview(data)[: before.whole]) == before.mark,
        is_held=is_held,
    )


def _writer(uid: bytes, records: list[WalRecord]) -> WriterFacts:
    return WriterFacts(
        writer=uid,
        records=len(records),
        first=min(record.index for record in records),
        last=records[-1].index,
        term=records[-1].term,
        truncations=sum(record.truncate for record in records),
        payload_bytes=sum(len(record.payload) for record in records),
    )


# Facts of a directory, read without a lock and without a change, while an owner writes and a compactor compacts.
#
# The order makes one picture of many moments: first the snapshots, then the write-ahead log, then the segments, then
# the snapshots again. An entry only ever goes from the write-ahead log into segments, so none is missed; and what is
# live both before and after must have been there all the time.

CONFIG_FILE: Final = "config"
_ATOM: Final = rb"('(?:[^'\\]|\\.)*'|[a-z][\w@]*)"
_SERVER_ID: Final = re.compile(rb"\bid\s*=>\s*\{\s*" + _ATOM + rb"\s*,\s*" + _ATOM + rb"\s*\}")


def is_log(directory: Path) -> bool:
    """Return whether the directory is one log, not a system of logs, in which a log may have any name."""
    return is_log_directory(directory) or ((directory / SNAPSHOTS).is_dir() and not _wal_names(directory))


def read_facts(
    directory: Path,
    before: SystemFacts | None = None,
    *,
    described: LogSnapshot | None = None,
    wal_directory: Path | None = None,
) -> SystemFacts:
    """The facts of a system of logs, or of one log; of a log in a system also what the system's files hold of it.

    `before`: an earlier reading of the same directory; what did not change is not read again. `described`: counts as
    the snapshot of the one log, whatever its directory holds. `wal_directory`: where the write-ahead log lies, if
    not in the system's directory.

    Raises:
        NotALogDirectoryError: neither a log nor a system of logs.
        LogChangedError: files were replaced at every reading.
        LogNotReadableError, StoreIOError
    """
    with storage_errors(directory):
        if is_log(directory):
            given = {} if described is None else {directory: SnapshotSearch(newest=described, rejected=())}
            return _read(directory, [directory], system_of(directory), before, given, wal_directory)
        if not directory.is_dir():
            raise NotALogDirectoryError(str(directory), "it is not a directory")
        found = _wal_names(directory)
        logs = _log_directories(directory)
        if not found and not any(is_log(log) for log in logs):
            reason = "it holds no segment, no write-ahead log (*.wal), and no directory with segments"
            raise NotALogDirectoryError(str(directory), reason)
        return _read(directory, logs, directory, before, {}, wal_directory)


def _log_directories(directory: Path) -> list[Path]:
    with os.scandir(directory) as entries:
        return sorted(
            directory / e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
        )


def _wal_names(system: Path) -> tuple[str, ...]:
    with os.scandir(system) as entries:
        return tuple(sorted(e.name for e in entries if e.name.endswith(WAL_SUFFIX) and e.is_file()))


def _read(
    directory: Path,
    logs: Iterable[Path],
    system: Path,
    before: SystemFacts | None,
    given: Mapping[Path, SnapshotSearch],
    wal_directory: Path | None,
) -> SystemFacts:
    searches: dict[Path, SnapshotSearch] = {}
    cuts: dict[Path, tuple[LogCut | None, InvalidCutError | None]] = {}
    failed: dict[Path, LogFacts] = {}
    # Snapshots and cuts first: they say which records of the write-ahead log count.
    for log in logs:
        with _bounded(log, failed, alone=log == directory):
            searches[log], cuts[log] = given.get(log) or _search(log), _cut(log)
    rows = {os.fsencode(log.name): LogRow.of(search.newest) for log, search in searches.items()}
    valid = {os.fsencode(log.name): cut for log, (cut, _) in cuts.items() if cut is not None}
    waiting = WaitingEntries(rows, {uid: cut.above(rows[uid].snapshot_index) for uid, cut in valid.items()})
    known = {wal.path.name: wal for wal in before.wal} if before is not None else {}
    beside = wal_directory or system
    wal = read_wal_files(beside, on_record=waiting.add, before=known)
    old = {log.name: log for log in before.logs} if before is not None else {}
    found: dict[Path, LogFacts] = {}
    for log, search in searches.items():
        with _bounded(log, failed, alone=log == directory):
            facts = _log(log, search, waiting, old.get(log.name), given.get(log), cuts[log])
            if facts is not None:
                found[log] = facts
    marker, fault = read_marker(system)
    signs = signs_in(system, wals=())
    names = _wal_names(beside)
    return SystemFacts(
        directory=directory,
        logs=tuple(facts for _, facts in sorted((found | failed).items())),
        wal=wal,
        wal_names=names,
        marker=marker,
        marker_fault=fault,
        is_stopped=signs.mark is Mark.CLOSED and signs.writers is Writers.NONE,
        wal_lost=signs.mark is not Mark.ABSENT and not names,
    )


@contextmanager
def _bounded(log: Path, failed: dict[Path, LogFacts], *, alone: bool) -> Iterator[None]:
    """Whatever one log of several raises is that log's error, and its siblings are read."""
    try:
        yield
    except Exception as error:
        if alone:
            raise
        state = LogState(log, segments=(), links={}, refs=(), orphans=(), snapshot_index=None, live=None)
        failed[log] = LogFacts(state, errors=(fault_of(error, log),))


def _log(
    log: Path,
    search: SnapshotSearch,
    waiting: WaitingEntries,
    before: LogFacts | None,
    given: SnapshotSearch | None,
    cut: tuple[LogCut | None, InvalidCutError | None],
) -> LogFacts | None:
    """None when the directory is gone: its log was deleted."""
    uid = os.fsencode(log.name)
    known = _known(before) if before is not None else None
    try:
        found = tuple(sorted(os.listdir(log)))
        files = _segments(log, known)
        after = given or _search(log)
        snapshots = _valid_snapshots(log, after) if given is None else (after.newest,) if after.newest else ()
    except FileNotFoundError:
        return None
    segments, torn = _without_torn_end(files.segments, covered=uid in waiting.writers)
    refs, orphans = limit_refs(segments)
    newest = search.newest
    state = LogState(
        directory=log,
        segments=segments,
        links=files.links,
        refs=refs,
        orphans=orphans,
        snapshot_index=newest.index if newest else None,
        live=newest.live if newest else None,
        snapshot=newest,
        unreadable=frozenset(error.file for error in files.errors),
    )
    blocked, errors = _compactor(log, found)
    return LogFacts(
        state=state,
        names=found,
        links=_targets(log, files.links),
        errors=files.errors,
        cut_off=_cut_off(log),
        torn=torn,
        snapshots=snapshots,
        rejected=after.rejected,
        waiting=waiting.of(uid),
        covered=uid in waiting.writers,
        half_done=tuple(name for name in found if names.needs_recovery([name])),
        blocked=blocked,
        compactor_errors=errors,
        cut=None if cut[0] is None else cut[0].above(state.snapshot_index),
        cut_error=cut[1],
        stranger=_stranger(log, snapshots[-1]) if snapshots and given is None else "",
    )


def _stranger(log: Path, newest: LogSnapshot) -> str:
    """See `LogFacts`. The log's `config` is Ra's, text that says which server this is; one without it says nothing."""
    if not is_ra_directory(system_of(log)):
        return ""
    try:
        origin = read_origin(newest.data)
    except CorruptSnapshotError:
        # Being replaced: the next reading names what is damaged.
        return ""
    found = _SERVER_ID.search((log / CONFIG_FILE).read_bytes()) if (log / CONFIG_FILE).is_file() else None
    own = found and tuple(etf.Atom(part.decode(errors="replace").strip("'")) for part in found.groups())
    members = origin.members if origin is not None else None
    if not members or (origin == NO_CLUSTER and own not in members):
        return "it names no cluster and no machine version of this log's Ra server"
    if own is not None and own not in members:
        return f"the server's own id, {own[0].name} on {own[1].name}, is not in the cluster that it names"
    return ""


def _cut(log: Path) -> tuple[LogCut | None, InvalidCutError | None]:
    try:
        return read_cut(log), None
    except InvalidCutError as error:
        return None, error


def _known(before: LogFacts) -> dict[str, SegmentIndex]:
    """Return the records that were read of each segment, by name, with the torn end of the newest."""
    known = {segment.name: segment for segment in before.state.segments}
    return known if before.torn is None else known | {before.torn.name: before.torn}


def _without_torn_end(
    segments: tuple[SegmentIndex, ...], *, covered: bool
) -> tuple[tuple[SegmentIndex, ...], SegmentIndex | None]:
    """The newest segment without slots that an interrupted flush left, which may name any index; and as it is.

    `covered`: the write-ahead log holds records of the log, so there may have been a flush.
    """
    newest = segments[-1] if segments else None
    row = None if newest is None else torn_from(newest)
    if newest is not None and row is None and newest.is_holed:
        row = newest.count
    if newest is None or row is None or not covered:
        return segments, None
    whole = replace(
        newest,
        idx=newest.idx[:row],
        term=newest.term[:row],
        offset=newest.offset[:row],
        length=newest.length[:row],
        crc=newest.crc[:row],
        behind_hole=newest.behind_hole[:0],
    )
    return (*segments[:-1], whole), newest


def _cut_off(log: Path) -> str:
    """The newest segment, if its header is not whole."""
    name = max(regular_segments(log), default="")
    found = regular_identity(log / name) if name else None
    return name if found is not None and found.size < HEADER_BYTES else ""


def _search(log: Path) -> SnapshotSearch:
    try:
        return find_snapshots(log)
    except CorruptSnapshotError as error:
        # As data, for the rule of that file: the other rules are checked all the same.
        return SnapshotSearch(newest=None, rejected=(error,))


def _segments(log: Path, known: Mapping[str, SegmentIndex] | None) -> SegmentFiles:
    try:
        return read_segments(log, known=known)
    except NotALogDirectoryError:
        # A log may hold no segment yet: its entries wait in the write-ahead log.
        return SegmentFiles((), {}, ())


def _valid_snapshots(log: Path, search: SnapshotSearch) -> tuple[LogSnapshot, ...]:
    """The newest, and older ones that are still there; oldest first."""
    if search.newest is None:
        return ()
    older = []
    for name in sorted(os.listdir(log / SNAPSHOTS)):
        if parse_snapshot_name(name) is not None and name < search.newest.path.name:
            # One without its data is being deleted, data first.
            with suppress(CorruptSnapshotError, FileNotFoundError):
                older.append(load_snapshot(log / SNAPSHOTS / name))
    return (*older, search.newest)


def _targets(log: Path, links: Iterable[str]) -> dict[str, str]:
    """Base names, also of links that Ra wrote with its whole path; those that lead elsewhere as they are."""
    targets = {}
    for name in links:
        with suppress(OSError):
            parent, base = os.path.split(os.readlink(log / name))
            inside = os.path.realpath(log / parent) == os.path.realpath(log)
            targets[name] = base if inside else os.path.join(parent, base)
    return targets


def _kept(log: Path) -> set[str]:
    """Return the files that a recovery would keep.

    Of a commit that goes on meanwhile, one reading alone says too much.
    """
    return {f"{kept.name}: {kept.reason}" for item in recovery.outlook(log) for kept in item.kept}


def _compactor(log: Path, found: Iterable[str]) -> tuple[tuple[str, ...], tuple[CompactionError, ...]]:
    """Return the files that a recovery could not settle, and the errors of unreadable files of the compactor."""
    blocked: list[str] = []
    errors: list[CompactionError] = []
    try:
        if is_log_directory(log):
            blocked += sorted(_kept(log) & _kept(log))
        else:
            fence.read(log)
    except CorruptFenceError as error:
        errors.append(error)
    except SegmentLogError as error:
        # What it cannot parse is named by the rule of that file.
        blocked += [str(error)] if any(names.needs_recovery([name]) for name in found) else []
    try:
        read_moves(log)
    except CorruptMovesError as error:
        errors.append(error)
    return tuple(blocked), tuple(errors)
