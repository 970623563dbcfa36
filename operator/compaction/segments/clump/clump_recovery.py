"""Settles a commit of re-written entries that died: finished or undone on positive evidence only, else kept.

`n.clump` exists from the first step of the commit to its last, as a whole file. Between the crash and now the log's
owner may have appended, taken a snapshot or compacted, so it is not names that decide but what a reader finds at the
new indexes:

* `n.segment` has the very header, index area and size of `n.clump`, or (the owner has compacted it since) what the log
  provides of the new indexes is what `n.clump` holds: committed. The live set is published, if the snapshot still is
  the one that the map speaks of and every copy can be read; then the name is removed. The map stays in force.
* Otherwise it is undone if old entries are live and every live one can be read, or if a snapshot above the new indexes
  has made all of it obsolete. The map goes first and `n.clump` last: a map without its entries never stands alone.
* Neither: `n.clump` may hold the only copies (its segment was lost when a directory was restored). It stays, and the
  log is reported.

Idempotent, and safe against a crash at any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from compaction.segments.clump.moves import Moves, index_digest, load_moves
from compaction.segments.commit import evidence
from compaction.segments.directory import fs, lock
from compaction.segments.directory.lock import replace_file
from compaction.segments.errors import CorruptMovesError, CorruptSegmentError, SegmentLogError
from compaction.segments.format.names import moves_name, parse_clump
from compaction.segments.format.segment_file import read_segment
from compaction.segments.model import SegmentIndex
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.snapshot.directories import INDEXES_FILE, find_snapshots
from compaction.segments.snapshot.live_indexes import LiveSet, encode_indexes

INDEXES_TEMPORARY: Final = "compaction.indexes.tmp"
"""In the log's directory, not in the snapshot's: nothing of ours is ever seen there but the file itself."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The entries that a reader finds at the new indexes: the number of copies, and the number of others."""

    copies: int
    others: int


def settle_clump(directory: Path, name: str, *, held: lock.HeldLock | None) -> bool | str:
    """Finish (True) or discard (False) the commit that left the `.clump` file `name`; or why it can be neither, and
    then nothing is changed. OSError passes through.

    CorruptMovesError: it was committed and its map cannot be read, so it is unknown what was moved; nothing is changed.
    """
    if held is not None:
        held.verify()
    output = parse_clump(name)
    assert output is not None, f"{name} is no .clump file"
    marker, segment = _parsed(directory / name), _parsed(directory / output)
    if marker is None:
        discard_clump(directory, name)
        return False
    in_place = segment is not None and _same(marker, segment)
    moves = _map(directory, first=marker.first) if in_place else _own_map(directory, name, marker)
    if moves is None:
        # Died before the map was written; or it was swept, because a newer snapshot made all of it obsolete.
        fs.unlink_if_present(directory / name)
        fs.sync_directory(directory)
        return False
    try:
        log = open_log(directory)
    except SegmentLogError as error:
        return f"cannot determine whether the log provides its content: {error}"
    found = _found(log, marker)
    if in_place or (found.copies and not found.others):
        return _finish(directory, name, marker, moves, log, found, held=held)
    if why := _why_needed(log, marker, moves):
        return why
    discard_clump(directory, name)
    return False


def _finish(
    directory: Path,
    name: str,
    marker: SegmentIndex,
    moves: Moves,
    log: LogState,
    found: _Found,
    *,
    held: lock.HeldLock | None,
) -> bool | str:
    """Publish the live set and remove the name; not if an entry would be in neither place."""
    if _speaks_of(log, moves) and found.copies < marker.count:
        missing = marker.count - found.copies
        return f"{missing} of its {marker.count} entries are not read from the log, where their old ones are to die"
    output = parse_clump(name)
    if output is not None and (directory / output).exists():
        # The commit point may not be durable yet: it must be, before the old entries die.
        fs.sync_file(directory / output)
    fs.sync_directory(directory)
    publish_live(directory, [moves], held=held)
    fs.unlink_if_present(directory / name)
    fs.sync_directory(directory)
    return True


def _why_needed(log: LogState, marker: SegmentIndex, moves: Moves) -> str:
    """Return why the copies of a commit that did not happen must stay; empty when they can go."""
    if log.live is None or log.snapshot_index is None:
        return "the live set of the log is unknown"
    old = moves.old_set.intersection(log.live)
    readable = [log.segment(ref.name).idx[log.readable(ref)] for ref in log.refs]
    lost = old.without(LiveSet.from_indexes(np.concatenate(readable))) if readable else old
    if lost:
        return f"it holds a copy of entry {lost.smallest}, which no segment of the log provides"
    missing = evidence.not_provided(log, marker)
    if missing.size and (not old or int(missing[0]) <= log.snapshot_index):
        return f"it holds entry {int(missing[0])}, which no segment of the log provides under its new index or its old"
    return ""


def _found(log: LogState, marker: SegmentIndex) -> _Found:
    """Compares, byte for byte, what is read at the indexes of `marker` with what it holds."""
    copies = others = 0
    for ref in log.refs:
        segment, rows = log.segment(ref.name), log.readable(ref)
        idx = segment.idx[rows]
        rows = rows[(idx >= np.uint64(marker.first)) & (idx <= np.uint64(marker.last))]
        if not rows.size:
            continue
        # Its indexes are consecutive.
        mine = (segment.idx[rows] - np.uint64(marker.first)).astype(np.int64)
        terms = bool(np.all(segment.term[rows] == marker.term[mine]))
        if terms and evidence.same_payloads(marker, mine, segment, rows):
            copies += int(rows.size)
        else:
            others += int(rows.size)
    return _Found(copies, others)


def _speaks_of(log: LogState, moves: Moves) -> bool:
    """Return whether the snapshot in force is the one under which entries were moved, and has old ones live still."""
    if log.snapshot is None or log.live is None:
        return False
    receipt = moves.receipt
    own = (log.snapshot.index, log.snapshot.term) == (receipt.snapshot_index, receipt.snapshot_term)
    return own and log.live.without(moves.old_set) != log.live


def _parsed(path: Path) -> SegmentIndex | None:
    """A segment file; None when there is none of its own under the name."""
    try:
        return read_segment(path)
    except (FileNotFoundError, CorruptSegmentError):
        return None


def _same(index: SegmentIndex, other: SegmentIndex) -> bool:
    """By content, not by inode: a copy of the directory must come to the same end."""
    return index.identity.size == other.identity.size and index_digest(index) == index_digest(other)


def _map(directory: Path, *, first: int) -> Moves:
    path = directory / moves_name(first)
    try:
        return load_moves(path)
    except FileNotFoundError as error:
        raise CorruptMovesError(str(path), "it is missing, and its entries are in the log") from error


def _own_map(directory: Path, name: str, marker: SegmentIndex) -> Moves | None:
    """The map under the name that this commit's would have, if it is this commit's: another one is needed.

    CorruptMovesError: it cannot be read, and may be this commit's.
    """
    try:
        moves = load_moves(directory / moves_name(marker.first))
    except FileNotFoundError:
        return None
    ours = moves.receipt.output == parse_clump(name) and moves.receipt.index_digest == index_digest(marker)
    return moves if ours else None


def discard_clump(directory: Path, name: str) -> None:
    """Undo a commit that did not reach its commit point. OSError passes through.

    CorruptMovesError: the map that may be this commit's cannot be read; nothing is removed.
    """
    marker = _parsed(directory / name)
    if marker is not None and _own_map(directory, name, marker) is not None:
        fs.unlink_if_present(directory / moves_name(marker.first))
        fs.sync_directory(directory)
    fs.unlink_if_present(directory / name)
    fs.sync_directory(directory)


def publish_live(directory: Path, maps: Sequence[Moves], *, held: lock.HeldLock | None) -> None:
    """Take the old indexes of maps of one commit out of the live set of the snapshot that they were moved under.

    Nothing is done when the owner has taken another snapshot since: that one says itself what is live. Nor when the
    live set cannot be read any more: it is unknown then, and the log refused until a user states what is live.
    """
    newest, receipt = find_snapshots(directory).newest, maps[0].receipt
    if newest is None or newest.live is None:
        return
    if (newest.index, newest.term) != (receipt.snapshot_index, receipt.snapshot_term):
        return
    old = [moves.old_set.bounds for moves in maps]
    moved = LiveSet(np.concatenate([low for low, _ in old]), np.concatenate([high for _, high in old]))
    left = newest.live.without(moved)
    if left == newest.live:
        return
    target = newest.path / INDEXES_FILE
    replace_file(directory / INDEXES_TEMPORARY, target, encode_indexes(left), access=target, held=held)
    fs.sync_directory(newest.path)
    fs.sync_directory(directory)
