"""`compactor segments debug exec`: a history of operations on a system of logs, with one line of result for each."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final

import click

from compaction.api.text.printing import cut
from compaction.cli import histories
from compaction.cli.histories import BASE64, PATIENCE, STDIN, STDIN_NAME, History, Later, Result, text_fields
from compaction.errors import RecordTextError
from compaction.segments.cli.options import max_bytes_option, max_entries_option
from compaction.segments.errors import (
    FlushFailedError,
    LiveSetSyntaxError,
    LogClosedError,
    LogNotReadableError,
    LogNotWritableError,
    StoreIOError,
    UnknownLogError,
    WalFailedError,
)
from compaction.segments.install.driver import install_snapshot
from compaction.segments.memtable import LogEntry, LogPosition
from compaction.segments.model import MAX_INDEX
from compaction.segments.snapshot.directories import SnapshotOrigin
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.compactions import OwnCompaction
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.files import wal_files, wal_name
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments

# The fields of an operation on a log: those of every history, entries and sets of indexes.

MAX_REPEATED: Final = 100_000
"""Entries that one `repeat` writes."""
_ENTRY: Final = ("index", "term", "payload", "payload" + BASE64)


@dataclass(frozen=True, slots=True)
class LogFields(histories.Fields):
    """The fields of one operation, or of one entry of it (`what`). Every method raises RecordTextError."""

    of_bytes: ClassVar = frozenset({"payload", "state"})

    def index(self, name: str, default: int | None = None) -> int:
        """An index or a term; without a default it must be there."""
        return self.number(name, default, most=MAX_INDEX)

    def entry(self) -> LogEntry:
        """`index`, `term` and `payload` of these fields themselves."""
        return LogEntry(self.index("index"), self.index("term"), self.data("payload"))

    def entries(self) -> list[LogEntry]:
        """The list `entries`, or the one entry of the fields themselves, `repeat` times with ascending indexes."""
        if "entries" in self.given:
            if given := sorted(self.given.keys() & {*_ENTRY, "repeat"}):
                raise RecordTextError(f'{self.what} has "entries" or "{given[0]}", not both')
            each = [LogFields(item, "an entry") for item in self.objects("entries")]
            for item in each:
                item.check(_ENTRY[:3])
            return [item.entry() for item in each]
        index, term, payload = self.entry()
        count = self.number("repeat", 1, least=1, most=MAX_REPEATED)
        return [LogEntry(index + position, term, payload) for position in range(count)]

    def indexes(self, name: str) -> LiveSet:
        """A set of indexes: text as `1-5,9`, or a list of numbers."""
        found = self.given.get(name)
        try:
            if isinstance(found, str):
                return LiveSet.parse(found)
            if isinstance(found, list) and all(type(item) is int and 0 <= item <= MAX_INDEX for item in found):
                return LiveSet.from_indexes(found)
        except LiveSetSyntaxError as error:
            raise RecordTextError(f'"{name}" of {self.what}: {error}') from None
        raise RecordTextError(f'{self.what} needs "{name}", indexes as "1-5,9" or as a list of numbers')

    def origin(self) -> SnapshotOrigin | None:
        """`cluster`, a list of members each with `name` and `node`, and `machine_version`; None without both."""
        if not self.has("cluster") and not self.has("machine_version"):
            return None
        if not (self.has("cluster") and self.has("machine_version")):
            raise RecordTextError(f'{self.what} has "cluster" and "machine_version", or neither')
        each = [LogFields(item, "a member of the cluster") for item in self.objects("cluster")]
        for item in each:
            item.check(("name", "node"))
        members = tuple((item.text("name"), item.text("node")) for item in each)
        return SnapshotOrigin.of_members(members, self.number("machine_version", most=MAX_INDEX))


# The state that the operations of a history share: the system of logs, and its logs, each opened once.


@dataclass(slots=True)
class LogSession:
    """A history that runs. Closes the system when the history ends, unless an operation has."""

    directory: Path
    limits: SystemLimits
    lock_timeout: float
    _system: LogSystem | None = None
    _transfers: int = 0
    _logs: dict[str, Log] = field(default_factory=dict)

    def start(self) -> None:
        """Open the system, as its owner. Errors as of `LogSystem`."""
        self._logs = {}
        self._system = LogSystem(self.directory, limits=self.limits, lock_timeout=self.lock_timeout)

    def next_transfer(self) -> int:
        """A number for an installation, larger than all before, of earlier processes too."""
        self._transfers = max(self._transfers + 1, time.time_ns())
        return self._transfers

    @property
    def system(self) -> LogSystem:
        """LogClosedError: an operation has closed it."""
        if self._system is None:
            raise LogClosedError(str(self.directory), "the system of logs is closed: reopen it")
        return self._system

    def open(self, name: str, *, live: Callable[[], LiveSet] | None = None) -> Log:
        """A log that is there, or a new one. `live`: what is live, where its snapshot does not say it."""
        rebuild = None if live is None else lambda _snapshot: live()
        log = self._logs[name] = self.system.open_log(name, rebuild_live=rebuild)
        return log

    def log(self, name: str) -> Log:
        """A log that is there. UnknownLogError: there is none; errors as of `LogSystem.open_log`."""
        system = self.system
        if name not in self._logs:
            if name not in system.uids:
                raise UnknownLogError(str(self.directory), name)
            self.open(name)
        return self._logs[name]

    def close(self) -> None:
        """Close the system; again is harmless."""
        system, self._system = self._system, None
        self._logs = {}
        if system is not None:
            system.close()


# All operations of a history on a system of logs: what each takes, and what carries it out (docs/segment-logs.md).
#
# A new one is a function and its line in `OPERATIONS`.

MOST_READ: Final = 100_000
"""Entries that one `read` returns; `fold` takes any number."""
_HEAD: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class LogOperation:
    """The function that carries an operation out, and the fields that it takes beside `op`."""

    run: Callable[[LogSession, LogFields], Result | Later]
    fields: tuple[str, ...] = ()


FLOWING: Final = frozenset({"append", "write_sparse"})
"""What may be in flight while the next one begins."""


def name_of(given: Mapping[str, Any]) -> str:
    """The name of an operation. RecordTextError: it has none that is known."""
    name = given.get("op")
    if not isinstance(name, str) or name not in OPERATIONS:
        raise RecordTextError(
            f'"op" is {cut(ascii(name), 80)}, which is no operation: write one of {", ".join(OPERATIONS)}'
        )
    return name


def carry_out(session: LogSession, name: str, given: Mapping[str, Any]) -> Result | Later:
    """Carry one operation out. RecordTextError: its fields are wrong, nothing was done; and all that logs raise."""
    operation, fields = OPERATIONS[name], LogFields(given, f"operation {name}")
    fields.check(("op", *operation.fields))
    return operation.run(session, fields)


def open_(session: LogSession, fields: LogFields) -> Result:
    """Open a log, or create it."""
    name = fields.text("log")
    live = fields.indexes("live") if fields.has("live") else None
    return _state_of(session.open(name, live=None if live is None else lambda: live))


def append(session: LogSession, fields: LogFields) -> Later:
    """Write entries; the result comes when they are durable."""
    name, entries = fields.text("log"), fields.entries()
    return Later(session.log(name).append(entries, timeout=PATIENCE), _position)


def write_sparse(session: LogSession, fields: LogFields) -> Later:
    """Write one entry that may leave a gap; the result comes when it is durable."""
    name, entry = fields.text("log"), fields.entry()
    previous = fields.index("previous") if fields.has("previous") else None
    return Later(session.log(name).write_sparse(entry, previous, timeout=PATIENCE), _position)


def truncate(session: LogSession, fields: LogFields) -> Result:
    """Drop the entries from an index on."""
    name, index = fields.text("log"), fields.index("from")
    log = session.log(name)
    log.truncate(index)
    return {"last": _place(log.last)}


def read(session: LogSession, fields: LogFields) -> Result:
    """Up to `amount` entries of a range, or of indexes, ascending; `more` if there are more."""
    name, amount = fields.text("log"), fields.number("amount", MOST_READ, least=1, most=MOST_READ)
    given = fields.indexes("indexes") if fields.has("indexes") else None
    if given is not None and (fields.has("from") or fields.has("to")):
        raise RecordTextError(f'{fields.what} has "indexes", or "from" and "to", not both')
    low, high = fields.index("from", 0), fields.index("to", MAX_INDEX)
    log = session.log(name)
    held = log.indexes(low, high)
    wanted = list(islice(held if given is None else held.intersection(given), amount + 1))
    return {
        "entries": [
            {"index": entry.index, "term": entry.term, **text_fields("payload", entry.payload, BASE64)}
            for entry in log.read(wanted[:amount])
        ],
        "more": len(wanted) > amount,
    }


def indexes(session: LogSession, fields: LogFields) -> Result:
    """Return the indexes of the entries that the log holds and needs."""
    name, low, high = fields.text("log"), fields.index("from", 0), fields.index("to", MAX_INDEX)
    found = session.log(name).indexes(low, high)
    return {"indexes": str(found.as_set()), "count": len(found)}


def fold(session: LogSession, fields: LogFields) -> Result:
    """Count, bytes and checksum of all entries from an index on: CRC-32 over index, term and payload of each."""
    name, first = fields.text("log"), fields.index("from", 0)
    count, size, crc = session.log(name).fold(_added, (0, 0, 0), first=first)
    return {"count": count, "bytes": size, "crc32": f"{crc:08x}"}


def snapshot(session: LogSession, fields: LogFields) -> Later:
    """Write a snapshot; the result comes when it is durable and in force."""
    name, index, term = fields.text("log"), fields.index("index"), fields.index("term")
    state, live = fields.data("state", b""), fields.indexes("live")
    future = session.log(name).snapshot(index, term, state, live, origin=fields.origin())
    return Later(
        future, lambda made: {"index": made.index, "term": made.term, "live": len(live), "path": made.path.name}
    )


def compact(session: LogSession, fields: LogFields) -> Later:
    """Compact a log, as its owner: dead segments go, sparse ones become fewer."""
    name = fields.text("log")
    session.log(name)
    return Later(session.system.compact(name), _compacted)


def install(session: LogSession, fields: LogFields) -> Result:
    """Install the snapshot of one log in another, with its live entries, as between two members."""
    name, source, term = fields.text("log"), fields.text("from"), fields.index("term")
    applied = fields.index("applied") if fields.has("applied") else None
    target = session.log(name)
    made = install_snapshot(session.log(source), target, term=term, transfer=session.next_transfer(), applied=applied)
    return {"installed": made is not None, "last": _place(target.last)}


def roll(session: LogSession, _fields: LogFields) -> Later:
    """Go on in a new file of the write-ahead log."""
    return Later(session.system.roll(), lambda number: {"wal": wal_name(number)})


def drain(session: LogSession, fields: LogFields) -> Result:
    """Wait until all rolled files are in segments."""
    seconds = fields.seconds("timeout", PATIENCE)
    return {"drained": session.system.drain(seconds)}


def state(session: LogSession, fields: LogFields) -> Result:
    """A log at this moment; without `log` the system."""
    if fields.has("log"):
        return _state_of(session.log(fields.text("log")))
    system = session.system
    tails = [{"file": path.name, "offset": tail.offset, "reason": tail.reason} for path, tail in system.tails.items()]
    return {
        "logs": system.uids,
        "broken": {name: str(error) for name, error in system.broken.items()},
        "wal": [path.name for path in wal_files(session.directory)],
        "tails": tails,
    }


def close(session: LogSession, fields: LogFields) -> Result:
    """Close a log, which takes no more writes; without `log` the system."""
    if fields.has("log"):
        session.log(fields.text("log")).close()
    else:
        session.close()
    return {}


def reopen(session: LogSession, _fields: LogFields) -> Result:
    """Close the system, if it is open, and open it again, as a restart of its owner does."""
    session.close()
    session.start()
    return {"logs": session.system.uids}


OPERATIONS: Final[Mapping[str, LogOperation]] = {
    "open": LogOperation(open_, ("log", "live")),
    "append": LogOperation(append, ("log", "index", "term", "payload", "repeat", "entries")),
    "write_sparse": LogOperation(write_sparse, ("log", "index", "term", "payload", "previous")),
    "truncate": LogOperation(truncate, ("log", "from")),
    "read": LogOperation(read, ("log", "from", "to", "indexes", "amount")),
    "indexes": LogOperation(indexes, ("log", "from", "to")),
    "fold": LogOperation(fold, ("log", "from")),
    "snapshot": LogOperation(snapshot, ("log", "index", "term", "live", "state", "cluster", "machine_version")),
    "compact": LogOperation(compact, ("log",)),
    "install": LogOperation(install, ("log", "from", "term", "applied")),
    "roll": LogOperation(roll),
    "drain": LogOperation(drain, ("timeout",)),
    "state": LogOperation(state, ("log",)),
    "close": LogOperation(close, ("log",)),
    "reopen": LogOperation(reopen),
}


def _added(sum_: tuple[int, int, int], entry: LogEntry) -> tuple[int, int, int]:
    count, size, crc = sum_
    crc = zlib.crc32(entry.payload, zlib.crc32(_HEAD.pack(entry.index, entry.term), crc))
    return count + 1, size + len(entry.payload), crc


def _position(position: LogPosition) -> Result:
    return {"index": position.index, "term": position.term}


def _place(position: LogPosition | None) -> Result | None:
    return None if position is None else _position(position)


def _compacted(done: OwnCompaction) -> Result:
    receipts = done.done.receipts
    return {
        "groups": len(receipts),
        "bytes_reclaimed": sum(receipt.bytes_reclaimed for receipt in receipts),
        "deleted": list(done.deleted),
        "failures": [str(failure) for failure in done.done.failures],
    }


def _state_of(log: Log) -> Result:
    found = log.state
    row = found.row
    snapshot = None if row.snapshot_index is None else {"index": row.snapshot_index, "term": row.snapshot_term}
    return {
        "last": _place(found.last),
        "last_written": _place(found.last_written),
        "snapshot": snapshot,
        "live": None if row.live is None else str(row.live),
        "segments": found.segments,
        "segment_bytes": found.segment_bytes,
        "unflushed": found.unflushed,
        "unflushed_bytes": found.unflushed_bytes,
    }


MAX_LINE_BYTES: Final = 256 << 20
_UNUSABLE: Final = (WalFailedError, FlushFailedError, LogNotReadableError, LogNotWritableError, StoreIOError, OSError)


@click.command("exec")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--stop-on-error", is_flag=True, help="End with the first operation that fails; the exit code is then 1.")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Maximum number of writes that wait for the disk; one sync acknowledges many. Results keep their order.",
)
@click.option(
    "--wal-bytes",
    type=click.IntRange(1),
    default=WalLimits().max_size,
    show_default=True,
    help="A file of the write-ahead log is rolled once it is larger.",
)
@click.option("--wal-entries", type=click.IntRange(1), help="A file is rolled once it holds as many entries.")
@max_entries_option
@max_bytes_option
@click.option(
    "--snapshot-grace",
    type=click.FloatRange(0),
    default=SystemLimits().snapshot_grace,
    show_default=True,
    metavar="SECONDS",
    help="For so long a replaced snapshot stays.",
)
@click.option(
    "--lock-timeout",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum time to wait while another process owns the system.",
)
@click.pass_context
def exec_command(
    context: click.Context,
    /,
    *,
    directory: Path,
    file: Path,
    stop_on_error: bool,
    in_flight: int,
    wal_bytes: int,
    wal_entries: int | None,
    max_entries: int,
    max_bytes: int,
    snapshot_grace: float,
    lock_timeout: float,
) -> None:
    """Carry out the operations in FILE (- is standard input) on the system of logs in DIR, as its owner: one JSON
    object per line, in order. DIR is created if its parent exists.

    For each a line of result is printed when it is done: {"line": 1, "op": "append", "ok": true, "index": 3, "term":
    1}. One that fails says "ok": false with the error and its message, and does not end the history. It may be killed
    at any time: what was acknowledged is durable, and of what was not, at most --in-flight operations more. Operations:
    docs/segment-logs.md.

    Exit codes: 0 all lines were carried out, with or without success; 1 the system could not be opened or written, or
    --stop-on-error; 2 a line is no operation (named on stderr): the history ends before it.

    Example: compactor segments debug exec system history.jsonl
    """
    limits = SystemLimits(
        wal=WalLimits(max_size=wal_bytes, max_entries=wal_entries),
        segments=NewSegments(max_count=max_entries, max_size=max_bytes),
        snapshot_grace=snapshot_grace,
    )
    session = LogSession(directory, limits, lock_timeout)
    history = History(name_of, lambda name, given: carry_out(session, name, given), _UNUSABLE, MAX_LINE_BYTES, FLOWING)
    with click.open_file(str(file), "rb") as lines:
        session.start()
        try:
            name = STDIN_NAME if str(file) == STDIN else str(file)
            code = history.run(lines, name=name, stop_on_error=stop_on_error, in_flight=in_flight)
        finally:
            session.close()
    context.exit(code)
