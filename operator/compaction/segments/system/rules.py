"""Which writes, truncations and snapshots a log takes: pure checks that raise what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compaction.segments.errors import InvalidEntryError, LogGapError, WriteRefusedError
from compaction.segments.memtable.table import LogEntry, LogPosition
from compaction.segments.model import MAX_INDEX
from compaction.segments.snapshot.data_file import SnapshotOrigin
from compaction.segments.snapshot.directories import MAX_INDEXES_BYTES
from compaction.segments.snapshot.seq import LiveSet
from compaction.segments.system.row import LogRow
from compaction.segments.wal.codec import MAX_PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """`state`: what the log's machine stores, opaque; an external term where Ra is to read it.

    `live`: the indexes at or below `index` whose entries the machine still needs. `origin` None: that of the log's
    newest snapshot.
    """

    index: int
    term: int
    state: bytes
    live: LiveSet
    origin: SnapshotOrigin | None = None


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Another member's snapshot. `applied`: the last index that is known to be part of every member's log.

    `indexes_bytes`, `data_bytes`: sizes of its two files.
    """

    index: int
    term: int
    applied: int | None
    indexes_bytes: int
    data_bytes: int


def check_entries(entries: Sequence[LogEntry]) -> int:
    """Bytes of their payloads. InvalidEntryError unless indexes are consecutive and files can hold the entries."""
    if not entries:
        raise InvalidEntryError("an append has at least one entry")
    following, total = entries[0].index, 0
    for index, term, payload in entries:
        size = len(payload)
        if not 0 < size <= MAX_PAYLOAD_BYTES:
            raise InvalidEntryError(f"index {index}: a payload has 1..{MAX_PAYLOAD_BYTES} bytes, not {size}")
        # The last index of all stays free: the one behind a log's last must be a number too.
        if not (0 <= index < MAX_INDEX and 0 <= term <= MAX_INDEX):
            raise InvalidEntryError(f"index {index}, term {term}: both are unsigned 64-bit numbers")
        if index != following:
            raise InvalidEntryError(f"index {index} does not follow index {following - 1} in one append")
        following += 1
        total += size
    return total


def check_append(directory: Path, first: int, *, last: int | None, row: LogRow) -> None:
    """LogGapError, WriteRefusedError."""
    if row.end is not None and first <= row.end.index:
        raise WriteRefusedError(str(directory), f"index {first} is not above the snapshot's index {row.end.index}")
    if last is not None and first > last + 1:
        raise LogGapError(str(directory), first, last + 1)


def check_sparse(directory: Path, index: int, previous: int | None, *, last: int | None, truncated: int | None) -> None:
    """WriteRefusedError unless `previous` is the log's last index and no truncated entry lies in the gap."""
    if previous != last:
        raise WriteRefusedError(str(directory), f"index {index} follows {previous}, but the log's last index is {last}")
    if last is not None and index <= last:
        raise WriteRefusedError(str(directory), f"index {index} is not above its previous index {last}")
    if truncated is not None and index > truncated:
        reason = f"the gap before index {index} would bring entries back that were truncated: write {truncated} first"
        raise WriteRefusedError(str(directory), reason)


def check_truncate(directory: Path, index: int, row: LogRow) -> None:
    """WriteRefusedError when entries at or below the snapshot would go."""
    end = None if row.end is None else row.end.index
    if index < 0 or (end is not None and index <= end):
        raise WriteRefusedError(str(directory), f"a truncation at {index} reaches below the snapshot's index {end}")


def check_install(directory: Path, request: InstallRequest, row: LogRow, last: LogPosition | None) -> None:
    """WriteRefusedError, with what does not fit."""
    index, applied = request.index, request.applied
    if not (0 <= index < MAX_INDEX and 0 <= request.term <= MAX_INDEX):
        raise WriteRefusedError(str(directory), f"index {index}, term {request.term}: both are unsigned 64-bit numbers")
    if row.snapshot_index is not None and index <= row.snapshot_index:
        raise WriteRefusedError(str(directory), f"a snapshot at {index} is not above the one at {row.snapshot_index}")
    if applied is not None and index <= applied:
        raise WriteRefusedError(str(directory), f"a snapshot at {index} is not above the applied index {applied}")
    if applied is not None and (last is None or applied > last.index):
        end = "it is empty" if last is None else f"its last index is {last.index}"
        raise WriteRefusedError(str(directory), f"index {applied} is not in the log: {end}")
    if not 0 < request.indexes_bytes <= MAX_INDEXES_BYTES or request.data_bytes <= 0:
        raise WriteRefusedError(
            str(directory),
            f"files of {request.indexes_bytes} and {request.data_bytes} bytes are no snapshot: neither is empty, "
            f"indexes has at most {MAX_INDEXES_BYTES} bytes",
        )


def check_snapshot(directory: Path, request: SnapshotRequest, row: LogRow, written: LogPosition | None) -> None:
    """WriteRefusedError, with what does not fit."""
    index, live = request.index, request.live
    if row.snapshot_index is not None and index <= row.snapshot_index:
        raise WriteRefusedError(str(directory), f"a snapshot at {index} is not above the one at {row.snapshot_index}")
    if row.end is not None and index < row.end.index:
        # One that failed: the directory may show it, as the newest.
        raise WriteRefusedError(str(directory), f"a snapshot at {index} is below the one at {row.end.index}")
    if written is None or index > written.index:
        last = "nothing" if written is None else f"index {written.index}"
        raise WriteRefusedError(str(directory), f"a snapshot at {index} covers entries that are not durable: {last} is")
    if live and live.largest > index:
        raise WriteRefusedError(str(directory), f"live index {live.largest} is above the snapshot's index {index}")
    for before in (row, row.coming):
        if before is None or before.snapshot_index is None or before.live is None:
            continue
        if revived := live.clip(0, before.snapshot_index).without(before.live):
            raise WriteRefusedError(
                str(directory),
                f"index {revived.smallest} is live, which it was not at the snapshot of index "
                f"{before.snapshot_index}: its entry may be gone",
            )
