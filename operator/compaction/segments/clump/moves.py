"""The map that the owner of a log needs after live entries were re-written: which entry is a copy of which.

`<first new index, 20 digits>.moves` in the log's directory, one per new segment, never changed once it has its name.
Lines of JSON: an object (the receipt, see `MoveReceipt`), then `[old_low, old_high, new_low]` per run, ascending in
both (old_low..old_high are now new_low..new_low + old_high - old_low), and last `{"crc32": "<8 hex digits>"}` over all
bytes before that line. docs/segment-logs.md is its specification.

Invariant: a map in force never lies. The entry at a new index has the payload of the old one, byte for byte; so a map
may be applied at any time after its entries are in the log, and as often as one likes. It is in force unless its
`.clump` file exists: then a commit is under way or died, and it is in force only if its segment is in place.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from compaction.segments.directory import lock
from compaction.segments.directory.fs import storage_error, storage_errors
from compaction.segments.directory.lock import replace_file
from compaction.segments.errors import CorruptMovesError, CorruptSegmentError, SegmentIsLinkError
from compaction.segments.format.names import clump_name, moves_name, parse_moves
from compaction.segments.format.segment_file import pread_up_to, read_segment
from compaction.segments.model import MAX_INDEX, SEGMENT_NAME, SegmentIndex, U64Array, data_start
from compaction.segments.snapshot.live_indexes import LiveSet

FORMAT: Final = "compaction.moves"
VERSION: Final = 1
TEMPORARY_FILE: Final = "compaction.moves.tmp"
MAX_MOVES_BYTES: Final = 256 << 20
_LATEST: Final = 253_402_300_799.0


@dataclass(frozen=True, slots=True)
class MoveReceipt:
    """Proof of one map: `entries` live at or below snapshot `snapshot_index` are now first..last, with `term`.

    `output`: the segment that holds them (`index_digest`: sha256 of its header and index area), both empty when the
    log's owner appended the entries itself. `fingerprint`: of the copies, equal when read from the old entries (under
    the new index and term) and when read back. `ranges_before`, `ranges_after`: of the live set, before and after the
    whole commit, the copies included.
    """

    job: str
    token: int
    holder: str
    snapshot_index: int
    snapshot_term: int
    first: int
    last: int
    term: int
    entries: int
    payload_bytes: int
    ranges_before: int
    ranges_after: int
    fingerprint: str
    seconds: float
    committed_at: float
    output: str = ""
    output_bytes: int = 0
    index_digest: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """One map: runs old[i]..old[i] + count[i] - 1 that became new[i]..., ascending in both; u64 arrays."""

    receipt: MoveReceipt
    old: U64Array
    count: U64Array
    new: U64Array

    @classmethod
    def contiguous(cls, receipt: MoveReceipt, old: LiveSet) -> Moves:
        """All of `old`, in order, one behind the other from `receipt.first` on."""
        starts, ends = old.bounds
        count = ends - starts + np.uint64(1)
        new = np.full(starts.shape, receipt.first, dtype=np.uint64)
        new[1:] += np.cumsum(count[:-1])
        return cls(receipt=receipt, old=starts, count=count, new=new)

    @classmethod
    def of_pairs(cls, receipt: MoveReceipt, old: U64Array, new: U64Array) -> Moves:
        """Single moves, ascending in both, joined to runs where both sides are neighbours."""
        step = np.uint64(1)
        opens = np.ones(old.shape, dtype=np.bool_)
        opens[1:] = (old[1:] - old[:-1] != step) | (new[1:] - new[:-1] != step)
        at = np.flatnonzero(opens)
        count = np.diff(np.append(at, old.size)).astype(np.uint64)
        return cls(receipt=receipt, old=old[at], count=count, new=new[at])

    @property
    def old_set(self) -> LiveSet:
        return LiveSet(self.old, self.old + self.count - np.uint64(1))

    @property
    def new_set(self) -> LiveSet:
        return LiveSet(self.new, self.new + self.count - np.uint64(1))

    def resolve(self, index: int) -> int | None:
        """Return the index to which an old index was moved; None when it was not moved. O(log runs)."""
        at = int(np.searchsorted(self.old, np.uint64(index), side="right")) - 1
        if at < 0 or index - int(self.old[at]) >= int(self.count[at]):
            return None
        return int(self.new[at]) + index - int(self.old[at])

    def __len__(self) -> int:
        return int(self.count.sum())


@dataclass(frozen=True, slots=True)
class _Header:
    """The first line of the file."""

    format: str
    version: int
    receipt: MoveReceipt


_HEADER: Final = TypeAdapter(_Header)
_RUNS: Final = TypeAdapter(list[tuple[int, int, int]])


def encode_moves(moves: Moves) -> bytes:
    """The whole file."""
    lines = [json.dumps({"format": FORMAT, "version": VERSION, "receipt": asdict(moves.receipt)})]
    ends = moves.old + moves.count - np.uint64(1)
    runs = zip(moves.old.tolist(), ends.tolist(), moves.new.tolist(), strict=True)
    lines.extend(f"[{low},{high},{new}]" for low, high, new in runs)
    body = "".join(f"{line}\n" for line in lines).encode()
    return body + b'{"crc32": "%08x"}\n' % zlib.crc32(body)


def decode_moves(data: bytes, *, file: str) -> Moves:
    """The map in a file's bytes. CorruptMovesError names `file` and what is wrong."""
    cut = data.rfind(b"\n", 0, len(data) - 1) + 1
    body, checksum = data[:cut], data[cut:]
    if not body or checksum != b'{"crc32": "%08x"}\n' % zlib.crc32(body):
        raise CorruptMovesError(file, "its last line is not the checksum of the lines before")
    head, _, rest = body.partition(b"\n")
    try:
        header = _HEADER.validate_json(head)
        runs = _RUNS.validate_json(b"[" + rest.rstrip(b"\n").replace(b"\n", b",") + b"]")
    except ValidationError as error:
        first = error.errors()[0]
        raise CorruptMovesError(file, f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}") from error
    if (header.format, header.version) != (FORMAT, VERSION):
        raise CorruptMovesError(file, f"version {header.version} of {header.format[:40]!r} is not known")
    if not _possible(header.receipt):
        raise CorruptMovesError(file, "its receipt has a number, a token or a time that cannot be one")
    moves = _of_runs(header.receipt, runs, file)
    if fault := _fault(moves, runs):
        raise CorruptMovesError(file, fault)
    return moves


def _possible(receipt: MoveReceipt) -> bool:
    numbers = (
        receipt.token - 1,
        receipt.snapshot_index,
        receipt.snapshot_term,
        receipt.first,
        receipt.last,
        receipt.term,
        receipt.entries,
        receipt.payload_bytes,
        receipt.ranges_before,
        receipt.ranges_after,
        receipt.output_bytes,
    )
    # Written so that NaN is refused as well.
    times = (receipt.seconds, receipt.committed_at)
    return all(0 <= number <= MAX_INDEX for number in numbers) and all(0 <= time <= _LATEST for time in times)


def _of_runs(receipt: MoveReceipt, runs: list[tuple[int, int, int]], file: str) -> Moves:
    for number, (low, high, new) in enumerate(runs):
        if not 0 <= low <= high < new <= MAX_INDEX - (high - low):
            raise CorruptMovesError(file, f"line {number + 2} is not a run of old indexes and a larger new one")
    table = np.array(runs, dtype=np.uint64).reshape(-1, 3)
    return Moves(receipt=receipt, old=table[:, 0], count=table[:, 1] - table[:, 0] + np.uint64(1), new=table[:, 2])


def _fault(moves: Moves, runs: list[tuple[int, int, int]]) -> str | None:
    """Return the fault in a map beside its form, in words; None when there is none."""
    receipt, step = moves.receipt, np.uint64(1)
    if not runs or sum(high - low + 1 for low, high, _ in runs) != receipt.entries:
        return f"its runs do not hold {receipt.entries} entries"
    ends, new_ends = moves.old + moves.count - step, moves.new + moves.count - step
    if np.any(moves.old[1:] <= ends[:-1]) or np.any(moves.new[1:] <= new_ends[:-1]):
        return "its runs are not ascending, each index once"
    if (int(moves.new[0]), int(new_ends[-1])) != (receipt.first, receipt.last):
        return f"its runs do not begin at {receipt.first} and end at {receipt.last}"
    if int(ends[-1]) > receipt.snapshot_index or receipt.first <= receipt.snapshot_index:
        return f"it does not lead from below snapshot {receipt.snapshot_index} to above it"
    if receipt.output and SEGMENT_NAME.fullmatch(receipt.output) is None:
        return "its output is not the name of a segment"
    return None


def load_moves(path: Path) -> Moves:
    """The map in one file. FileNotFoundError passes through; CorruptMovesError, LogNotReadableError, StoreIOError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        # A map that is missing is an answer for the callers, not an error of the disk.
        raise
    except OSError as error:
        raise storage_error(error, path.parent) from error
    try:
        with storage_errors(path.parent):
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise CorruptMovesError(str(path), "it is not a regular file")
            data = pread_up_to(fd, MAX_MOVES_BYTES + 1, 0)
    finally:
        os.close(fd)
    if len(data) > MAX_MOVES_BYTES:
        raise CorruptMovesError(str(path), f"it is larger than {MAX_MOVES_BYTES} bytes")
    moves = decode_moves(data, file=str(path))
    if parse_moves(path.name) != moves.receipt.first:
        raise CorruptMovesError(str(path), f"it is about the entries from index {moves.receipt.first} on")
    return moves


def moves_files(directory: Path) -> list[str]:
    """Names of the maps in a log directory, in the order of their creation."""
    with storage_errors(directory):
        return sorted(name for name in os.listdir(directory) if parse_moves(name) is not None)


def read_moves(directory: Path) -> tuple[Moves, ...]:
    """All maps in force, oldest first: what the owner of a log applies, in this order, to what its snapshot says.

    Safe to call at any time, before recovery and without the lock. Errors as `load_moves`, but a file that is gone
    was swept: its snapshot is not in force any more.
    """
    found = []
    for name in moves_files(directory):
        try:
            moves = load_moves(directory / name)
        except FileNotFoundError:
            continue
        if in_force(directory, moves):
            found.append(moves)
    return tuple(found)


def resolve(maps: Iterable[Moves], index: int) -> int:
    """Return the index of an entry after all maps, oldest first; `index` itself when it was not moved."""
    for moves in maps:
        moved = moves.resolve(index)
        index = index if moved is None else moved
    return index


def in_force(directory: Path, moves: Moves) -> bool:
    """Return whether the map's entries are in the log.

    A map whose commit died before its commit point is not in force.
    """
    output = moves.receipt.output
    if not output or not os.path.lexists(directory / clump_name(output)):
        return True
    return is_in_place(directory, moves)


def is_in_place(directory: Path, moves: Moves) -> bool:
    """Positive evidence of a commit: the segment under the output's name has the header and index that the map names.

    By content, not by inode: it holds in a restored copy of the directory as well.
    """
    path = directory / moves.receipt.output
    try:
        segment = read_segment(path)
        if segment.identity.size != moves.receipt.output_bytes:
            return False
        return index_digest(segment) == moves.receipt.index_digest
    except (FileNotFoundError, SegmentIsLinkError, CorruptSegmentError):
        return False


def index_digest(segment: SegmentIndex) -> str:
    """sha256 of a segment file's header and index area, as they are on the disk."""
    fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return hashlib.sha256(pread_up_to(fd, data_start(segment.version, segment.max_count), 0)).hexdigest()
    finally:
        os.close(fd)


def write_moves(directory: Path, moves: Moves, *, held: lock.HeldLock, access: Path) -> None:
    """Put a map under its name; the caller syncs the directory. OSError passes through.

    `access`: the file whose owner may read it.
    """
    target = directory / moves_name(moves.receipt.first)
    replace_file(directory / TEMPORARY_FILE, target, encode_moves(moves), access=access, held=held)
