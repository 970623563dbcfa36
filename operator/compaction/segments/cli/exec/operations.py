"""All operations of a history on a system of logs: what each takes, and what carries it out (docs/segment-logs.md).

A new one is a function and its line in `OPERATIONS`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from compaction.api.text.safe import cut
from compaction.cli.histories.fields import BASE64
from compaction.cli.histories.running import PATIENCE, Later, Result
from compaction.cli.histories.texts import text_fields
from compaction.errors import RecordTextError
from compaction.segments.cli.exec.fields import Fields
from compaction.segments.cli.exec.session import Session
from compaction.segments.install.driver import install_snapshot
from compaction.segments.memtable.table import LogEntry, LogPosition
from compaction.segments.model import MAX_INDEX
from compaction.segments.system.compactions import OwnCompaction
from compaction.segments.system.log import Log
from compaction.segments.wal.files import wal_files, wal_name

MOST_READ: Final = 100_000
"""Entries that one `read` returns; `fold` takes any number."""
_HEAD: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Operation:
    """What carries an operation out, and the fields that it takes beside `op`."""

    run: Callable[[Session, Fields], Result | Later]
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


def carry_out(session: Session, name: str, given: Mapping[str, Any]) -> Result | Later:
    """Carry one operation out. RecordTextError: its fields are wrong, nothing was done; and all that logs raise."""
    operation, fields = OPERATIONS[name], Fields(given, f"operation {name}")
    fields.check(("op", *operation.fields))
    return operation.run(session, fields)


def open_(session: Session, fields: Fields) -> Result:
    """Open a log, or create it."""
    name = fields.text("log")
    live = fields.indexes("live") if fields.has("live") else None
    return _state_of(session.open(name, live=None if live is None else lambda: live))


def append(session: Session, fields: Fields) -> Later:
    """Write entries; the result comes when they are durable."""
    name, entries = fields.text("log"), fields.entries()
    return Later(session.log(name).append(entries, timeout=PATIENCE), _position)


def write_sparse(session: Session, fields: Fields) -> Later:
    """Write one entry that may leave a gap; the result comes when it is durable."""
    name, entry = fields.text("log"), fields.entry()
    previous = fields.index("previous") if fields.has("previous") else None
    return Later(session.log(name).write_sparse(entry, previous, timeout=PATIENCE), _position)


def truncate(session: Session, fields: Fields) -> Result:
    """Drop the entries from an index on."""
    name, index = fields.text("log"), fields.index("from")
    log = session.log(name)
    log.truncate(index)
    return {"last": _place(log.last)}


def read(session: Session, fields: Fields) -> Result:
    """Up to `amount` entries of a range, or of indexes, ascending; `more` if there are more."""
    name, amount = fields.text("log"), fields.number("amount", MOST_READ, least=1, most=MOST_READ)
    given = fields.indexes("indexes") if fields.has("indexes") else None
    if given is not None and (fields.has("from") or fields.has("to")):
        raise RecordTextError(f'{fields.what} has "indexes", or "from" and "to", not both')
    low, high = fields.index("from", 0), fields.index("to", MAX_INDEX)
    log = session.log(name)
    held = log.indexes(low, high)
    wanted = list(islice(held if given is None else held.intersection(given), amount + 1))
    return {"entries": [_shown(entry) for entry in log.read(wanted[:amount])], "more": len(wanted) > amount}


def indexes(session: Session, fields: Fields) -> Result:
    """Which entries the log holds and needs."""
    name, low, high = fields.text("log"), fields.index("from", 0), fields.index("to", MAX_INDEX)
    found = session.log(name).indexes(low, high)
    return {"indexes": str(found.as_set()), "count": len(found)}


def fold(session: Session, fields: Fields) -> Result:
    """Count, bytes and checksum of all entries from an index on: CRC-32 over index, term and payload of each."""
    name, first = fields.text("log"), fields.index("from", 0)
    count, size, crc = session.log(name).fold(_added, (0, 0, 0), first=first)
    return {"count": count, "bytes": size, "crc32": f"{crc:08x}"}


def snapshot(session: Session, fields: Fields) -> Later:
    """Write a snapshot; the result comes when it is durable and in force."""
    name, index, term = fields.text("log"), fields.index("index"), fields.index("term")
    state, live = fields.data("state", b""), fields.indexes("live")
    future = session.log(name).snapshot(index, term, state, live, origin=fields.origin())
    return Later(
        future, lambda made: {"index": made.index, "term": made.term, "live": len(live), "path": made.path.name}
    )


def compact(session: Session, fields: Fields) -> Later:
    """Compact a log, as its owner: dead segments go, sparse ones become fewer."""
    name = fields.text("log")
    session.log(name)
    return Later(session.system.compact(name), _compacted)


def install(session: Session, fields: Fields) -> Result:
    """Install the snapshot of one log in another, with its live entries, as between two members."""
    name, source, term = fields.text("log"), fields.text("from"), fields.index("term")
    applied = fields.index("applied") if fields.has("applied") else None
    target = session.log(name)
    made = install_snapshot(session.log(source), target, term=term, transfer=session.next_transfer(), applied=applied)
    return {"installed": made is not None, "last": _place(target.last)}


def roll(session: Session, _fields: Fields) -> Later:
    """Go on in a new file of the write-ahead log."""
    return Later(session.system.roll(), lambda number: {"wal": wal_name(number)})


def drain(session: Session, fields: Fields) -> Result:
    """Wait until all rolled files are in segments."""
    seconds = fields.seconds("timeout", PATIENCE)
    return {"drained": session.system.drain(seconds)}


def state(session: Session, fields: Fields) -> Result:
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


def close(session: Session, fields: Fields) -> Result:
    """Close a log, which takes no more writes; without `log` the system."""
    if fields.has("log"):
        session.log(fields.text("log")).close()
    else:
        session.close()
    return {}


def reopen(session: Session, _fields: Fields) -> Result:
    """Close the system, if it is open, and open it again, as a restart of its owner does."""
    session.close()
    session.start()
    return {"logs": session.system.uids}


OPERATIONS: Final[Mapping[str, Operation]] = {
    "open": Operation(open_, ("log", "live")),
    "append": Operation(append, ("log", "index", "term", "payload", "repeat", "entries")),
    "write_sparse": Operation(write_sparse, ("log", "index", "term", "payload", "previous")),
    "truncate": Operation(truncate, ("log", "from")),
    "read": Operation(read, ("log", "from", "to", "indexes", "amount")),
    "indexes": Operation(indexes, ("log", "from", "to")),
    "fold": Operation(fold, ("log", "from")),
    "snapshot": Operation(snapshot, ("log", "index", "term", "live", "state", "cluster", "machine_version")),
    "compact": Operation(compact, ("log",)),
    "install": Operation(install, ("log", "from", "term", "applied")),
    "roll": Operation(roll),
    "drain": Operation(drain, ("timeout",)),
    "state": Operation(state, ("log",)),
    "close": Operation(close, ("log",)),
    "reopen": Operation(reopen),
}


def _added(sum_: tuple[int, int, int], entry: LogEntry) -> tuple[int, int, int]:
    count, size, crc = sum_
    crc = zlib.crc32(entry.payload, zlib.crc32(_HEAD.pack(entry.index, entry.term), crc))
    return count + 1, size + len(entry.payload), crc


def _shown(entry: LogEntry) -> dict[str, Any]:
    return {"index": entry.index, "term": entry.term, **text_fields("payload", entry.payload, BASE64)}


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
