"""Writing snapshots of a log so that none is ever visible in part (docs/design/segment-wal.md#snapshots).

Both files are written and synced in a directory of another name; one rename makes them visible together. A reader, a
crash and the owner's next start see the old snapshot or the new one, never a state without its live indexes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from compaction.segments.directory import fs
from compaction.segments.directory.owner import is_ra_directory
from compaction.segments.errors import WriteRefusedError
from compaction.segments.snapshot.data_file import DATA_FILE, NO_CLUSTER, SnapshotOrigin, encode_snapshot, read_origin
from compaction.segments.snapshot.directories import (
    INDEXES_FILE,
    SNAPSHOTS,
    LogSnapshot,
    parse_snapshot_name,
    snapshot_name,
)
from compaction.segments.snapshot.seq import LiveSet, encode_indexes

PARTIAL: Final = "snapshot.partial"
"""Beside `snapshots`, not in it: there, Ra would take a complete one for the newest snapshot."""
INSTALL_PARTIAL: Final = "install.partial"
"""The same for a snapshot that arrives from another member."""


def origin_for(directory: Path, given: SnapshotOrigin | None, newest: LogSnapshot | None) -> SnapshotOrigin:
    """Whose snapshot the next one of the log in `directory` is: as given, else as its newest one says.

    WriteRefusedError: neither says it, and a Ra server owns the directory, which would find itself in no cluster.
    CorruptSnapshotError: the newest one has been damaged since it was found. OSError passes through.
    """
    if given is not None:
        return given
    found = read_origin(newest.data) if newest is not None else None
    if found is not None and (found != NO_CLUSTER or not is_ra_directory(directory.parent)):
        return found
    if is_ra_directory(directory.parent):
        said = "no snapshot says" if newest is None else f"{newest.data} does not say"
        reason = f"{said} which cluster and machine version the Ra server of this log has: give both with the snapshot"
        raise WriteRefusedError(str(directory), reason)
    return NO_CLUSTER


def write_partial(
    directory: Path, *, index: int, term: int, state: bytes, live: LiveSet, origin: SnapshotOrigin
) -> Path:
    """Write the files of a snapshot of the log in `directory`, durably; returns what `publish` makes visible. OSError
    passes through.
    """
    partial = directory / PARTIAL
    remove_tree(partial)
    fs.make_directory(partial)
    _write(partial / INDEXES_FILE, encode_indexes(live))
    _write(partial / DATA_FILE, encode_snapshot(index=index, term=term, state=state, origin=origin))
    return partial


def publish(partial: Path, *, index: int, term: int, live: LiveSet) -> LogSnapshot:
    """Make a snapshot whose two files are durable visible, durably. OSError passes through."""
    directory = partial.parent
    root = directory / SNAPSHOTS
    fs.sync_directory(partial)
    if not root.is_dir():
        fs.make_directory(root)
        fs.sync_directory(directory)
    path = root / snapshot_name(term=term, index=index)
    remove_tree(path)
    fs.rename(partial, path)
    fs.sync_directory(root)
    return LogSnapshot(index=index, term=term, live=live, path=path)


def discard_partials(directory: Path) -> None:
    """Delete what the log in `directory` was writing, or another member was sending, when its process ended."""
    remove_tree(directory / PARTIAL)
    remove_tree(directory / INSTALL_PARTIAL)


def write_indexes(snapshot: LogSnapshot, live: LiveSet) -> LogSnapshot:
    """Put a rebuilt live set into a snapshot that has none, or a damaged one: atomically and durably."""
    temporary = snapshot.path / f"{INDEXES_FILE}.partial"
    fs.unlink_if_present(temporary)
    _write(temporary, encode_indexes(live))
    fs.rename(temporary, snapshot.path / INDEXES_FILE)
    fs.sync_directory(snapshot.path)
    return LogSnapshot(index=snapshot.index, term=snapshot.term, live=live, path=snapshot.path)


def older_snapshots(directory: Path, current: LogSnapshot) -> list[Path]:
    """The snapshot directories that `current` replaces, oldest first."""
    root = directory / SNAPSHOTS
    names = sorted(name for name in os.listdir(root) if parse_snapshot_name(name) is not None)
    return [root / name for name in names if name < current.path.name]


def remove_tree(path: Path) -> None:
    """Delete a snapshot's directory; `snapshot.dat` first, without which nothing takes it for a snapshot."""
    try:
        names = sorted(os.listdir(path), key=lambda name: (name != DATA_FILE, name))
    except FileNotFoundError:
        return
    for name in names:
        fs.unlink_if_present(path / name)
    fs.remove_directory(path)


def _write(path: Path, data: bytes) -> None:
    fd = fs.create(path)
    try:
        fs.write(fd, [data])
        fs.sync(fd)
    finally:
        os.close(fd)
