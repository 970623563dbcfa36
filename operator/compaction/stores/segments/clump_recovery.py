"""Settles a commit of re-written entries that died: finished on positive evidence only, else discarded.

`n.clump` exists from the first step of the commit to its last, as a whole file. It was committed if `n.segment` has the
very header, index area and size of it. Then the live set is published, if the snapshot still is the one that the map
speaks of, and the name removed. Otherwise the map goes first and `n.clump` last, so that a map without its entries
never stands alone. Idempotent, and safe against a crash at any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from compaction.exceptions import CorruptMovesError, CorruptSegmentError
from compaction.stores.segments import fs, lock
from compaction.stores.segments.access import replace_file
from compaction.stores.segments.clump_moves import Moves, index_digest, load_moves
from compaction.stores.segments.codec import read_segment
from compaction.stores.segments.model import SegmentIndex
from compaction.stores.segments.names import moves_name, parse_clump
from compaction.stores.segments.seq import LiveSet, encode_indexes
from compaction.stores.segments.snapshot import INDEXES_FILE, find_snapshots

INDEXES_TEMPORARY: Final = "compaction.indexes.tmp"
"""In the log's directory, not in the snapshot's: nothing of ours is ever seen there but the file itself."""


def settle_clump(directory: Path, name: str, *, held: lock.HeldLock | None) -> bool:
    """Finish (True) or discard (False) the commit that left the `.clump` file `name`. OSError passes through.

    CorruptMovesError: it was committed and its map cannot be read, so nobody knows what was moved; nothing is changed.
    """
    if held is not None:
        held.verify()
    output = parse_clump(name)
    assert output is not None, f"{name} is no .clump file"
    marker, segment = _parsed(directory / name), _parsed(directory / output)
    if marker is None or segment is None or not _same(marker, segment):
        discard_clump(directory, name)
        return False
    moves = _map(directory, first=marker.first)
    # The commit point may not be durable yet: it must be, before the old entries die.
    fs.sync_file(directory / output)
    fs.sync_directory(directory)
    publish_live(directory, [moves], held=held)
    fs.unlink_if_present(directory / name)
    fs.sync_directory(directory)
    return True


def _parsed(path: Path) -> SegmentIndex | None:
    """A segment file; None when there is none of its own under the name."""
    try:
        return read_segment(path)
    except (FileNotFoundError, CorruptSegmentError):
        return None


def _same(one: SegmentIndex, other: SegmentIndex) -> bool:
    """By content, not by inode: a copy of the directory must come to the same end."""
    return one.identity.size == other.identity.size and index_digest(one) == index_digest(other)


def _map(directory: Path, *, first: int) -> Moves:
    path = directory / moves_name(first)
    try:
        return load_moves(path)
    except FileNotFoundError as error:
        raise CorruptMovesError(str(path), "it is missing, and its entries are in the log") from error


def discard_clump(directory: Path, name: str) -> None:
    """Undo a commit that did not reach its commit point. OSError passes through.

    CorruptMovesError: the map that may be this commit's cannot be read; nothing is removed.
    """
    marker = _parsed(directory / name)
    if marker is not None and _is_of(directory, name, marker):
        fs.unlink_if_present(directory / moves_name(marker.first))
        fs.sync_directory(directory)
    fs.unlink_if_present(directory / name)
    fs.sync_directory(directory)


def _is_of(directory: Path, name: str, marker: SegmentIndex) -> bool:
    """Whether the map under the name that this commit's would have is this commit's: another one is needed."""
    try:
        receipt = load_moves(directory / moves_name(marker.first)).receipt
    except FileNotFoundError:
        return False
    return receipt.output == parse_clump(name) and receipt.index_digest == index_digest(marker)


def publish_live(directory: Path, maps: Sequence[Moves], *, held: lock.HeldLock | None) -> None:
    """Take the old indexes of maps of one commit out of the live set of the snapshot that they were moved under.

    Nothing is done when the owner has taken another snapshot since: that one says itself what is live. Nor when the
    live set cannot be read any more: it is unknown then, and the log refused until somebody says what is live.
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
