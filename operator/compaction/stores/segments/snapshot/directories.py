"""Snapshot directories of a log: which snapshot counts, and what is live at or below it.

The format: docs/design/segment-snapshots.md.

`<log>/snapshots/<TERM>_<IDX>/{snapshot.dat, indexes}`, TERM and IDX 16 upper-case hexadecimal digits.
snapshot.dat: `RASN`, u8 version 1, u32 crc32 of the rest, u32 meta length, meta (external term of a map with index,
term, cluster, machine_version), then the machine's state, opaque here.

A missing `indexes` file means UNKNOWN, never empty: Ra does not write it for an empty set, but a crash between the two
files leaves the same picture, and taking it for empty loses every live entry
(docs/design/segment-commit.md#windows-of-the-reference, W2).

The owner deletes its older snapshots whenever it likes, and not at once: a reading that found something missing or torn
counts only if nothing changed while it was made. Symbolic links are not followed, so nothing outside the log is read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from compaction.exceptions import (
    CompactionError,
    CorruptIndexesError,
    CorruptSnapshotError,
    LogChangedError,
    TermFormatError,
)
from compaction.stores.segments.format import etf
from compaction.stores.segments.snapshot.seq import LiveSet, decode_indexes, encode_indexes

MAGIC: Final = b"RASN"
VERSION: Final = 1
SNAPSHOTS: Final = "snapshots"
DATA_FILE: Final = "snapshot.dat"
INDEXES_FILE: Final = "indexes"
_HEADER: Final = struct.Struct(">4sBI")
_META_LENGTH: Final = struct.Struct(">I")
_NAME: Final = re.compile(r"([0-9A-F]{16})_([0-9A-F]{16})", re.ASCII)
_CHUNK: Final = 1 << 20
# A meta map holds an index, a term, a version and the cluster's member list: kilobytes. The bounds keep memory finite
# on hostile files; 256 MiB of `indexes` is more than 20 million scattered indexes.
MAX_META_BYTES: Final = 1 << 20
MAX_INDEXES_BYTES: Final = 256 << 20
_SPARSE_FROM: Final = 64 << 20
# An owner completes a snapshot every few seconds at most; a look takes milliseconds.
LOOKS: Final = 5
# What opening a link or a file says when a directory, or no link, is asked for.
_NO_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
_NOT_FOLLOWED: Final = "it is a symbolic link, which is not followed"

_Listing = dict[str, tuple[tuple[int, ...] | None, ...]]


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The newest valid snapshot. `live` None: unknown, either missing (`live_error` None) or corrupt (`live_error`)."""

    index: int
    term: int
    live: LiveSet | None
    path: Path
    live_error: CorruptIndexesError | None = None


@dataclass(frozen=True, slots=True)
class SnapshotSearch:
    """The newest valid snapshot, and what was wrong with newer ones."""

    newest: LogSnapshot | None
    rejected: tuple[CorruptSnapshotError, ...]


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    index: int
    term: int


def snapshot_name(*, term: int, index: int) -> str:
    """Directory name, term first: names sort by term, then index."""
    return f"{term:016X}_{index:016X}"


def parse_snapshot_name(name: str) -> SnapshotMeta | None:
    """Term and index in a snapshot directory's name; None for any other name."""
    match = _NAME.fullmatch(name)
    return SnapshotMeta(index=int(match[2], 16), term=int(match[1], 16)) if match else None


def newest_snapshot(directory: Path) -> LogSnapshot | None:
    """The newest valid snapshot of the log in `directory`, or None."""
    return find_snapshots(directory).newest


def find_snapshots(directory: Path) -> SnapshotSearch:
    """Newest (by name) snapshot whose snapshot.dat is valid; newer invalid ones are named in `rejected`.

    Raises:
        CorruptSnapshotError: `snapshots` is a symbolic link (never followed), or not a directory.
        LogChangedError: the owner replaced its snapshots at every reading.
    """
    root = directory / SNAPSHOTS
    for _ in range(LOOKS):
        listing = _list(root)
        search = _search(root, sorted(listing, reverse=True))
        # Whole means consistent, even if a newer one was completed meanwhile. Anything else may be a snapshot that its
        # owner deletes because a newer one exists, or one that it has not finished: then something has changed.
        whole = search.newest is not None and search.newest.live is not None and not search.rejected
        if whole or _list(root) == listing:
            return search
    raise LogChangedError(str(directory))


def _list(root: Path) -> _Listing:
    """The snapshot directories by name, and what identifies their files; nothing when there is no `snapshots`."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    except OSError as error:
        if error.errno not in _NO_DIRECTORY:
            raise
        raise CorruptSnapshotError(
            str(root), _NOT_FOLLOWED if root.is_symlink() else "it is not a directory"
        ) from error
    try:
        names = [name for name in os.listdir(fd) if _NAME.fullmatch(name)]
        files = ("", f"/{DATA_FILE}", f"/{INDEXES_FILE}")
        return {name: tuple(_identity(root, name + file, dir_fd=fd) for file in files) for name in names}
    finally:
        os.close(fd)


def _identity(root: Path, name: str, *, dir_fd: int) -> tuple[int, ...] | None:
    try:
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        error.filename = f"{root}/{name}"
        raise
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _search(root: Path, names: list[str]) -> SnapshotSearch:
    """The first valid one of `names`, newest first."""
    rejected: list[CorruptSnapshotError] = []
    for name in names:
        try:
            snapshot = load_snapshot(root / name)
        except CorruptSnapshotError as error:
            rejected.append(error)
            continue
        return SnapshotSearch(newest=snapshot, rejected=tuple(rejected))
    return SnapshotSearch(newest=None, rejected=tuple(rejected))


def load_snapshot(path: Path) -> LogSnapshot:
    """The snapshot in directory `path`. CorruptSnapshotError when snapshot.dat is not valid."""
    named = parse_snapshot_name(path.name)
    meta = read_snapshot_meta(path / DATA_FILE)
    if named != meta:
        raise CorruptSnapshotError(str(path / DATA_FILE), f"it is of index {meta.index}, term {meta.term}")
    try:
        live = _read_live(path / INDEXES_FILE, snapshot_index=meta.index)
    except CorruptIndexesError as error:
        return LogSnapshot(index=meta.index, term=meta.term, live=None, path=path, live_error=error)
    return LogSnapshot(index=meta.index, term=meta.term, live=live, path=path)


def _read_live(path: Path, *, snapshot_index: int) -> LiveSet | None:
    try:
        with _open_regular(path) as file:
            # Not the bound itself: a read reserves memory for all that it asks for.
            data = file.read(min(os.fstat(file.fileno()).st_size, MAX_INDEXES_BYTES) + 1)
    except FileNotFoundError:
        return None
    except _NotAFileError as error:
        raise CorruptIndexesError(str(path), error.reason) from error
    if len(data) > MAX_INDEXES_BYTES:
        raise CorruptIndexesError(str(path), f"it is larger than {MAX_INDEXES_BYTES} bytes")
    live = decode_indexes(data, file=str(path))
    if live and live.largest > snapshot_index:
        raise CorruptIndexesError(str(path), f"live index {live.largest} is above snapshot index {snapshot_index}")
    return live


def read_snapshot_meta(path: Path) -> SnapshotMeta:
    """Index and term of a snapshot.dat after checking magic, version and the CRC of the whole file (in chunks)."""
    meta = _read_meta(path)
    index, term = meta.get(etf.Atom("index")), meta.get(etf.Atom("term"))
    if isinstance(index, int) and isinstance(term, int) and index >= 0 and term >= 0:
        return SnapshotMeta(index=index, term=term)
    raise CorruptSnapshotError(str(path), "its metadata is not a map with index and term")


def read_members(path: Path) -> int | None:
    """How many members a snapshot.dat says that the log's cluster has; None when it does not say it in a known form:
    a map by member (Ra 3), or a list of members (before).
    """
    cluster = _read_meta(path).get(etf.Atom("cluster"))
    return len(cluster) if isinstance(cluster, dict | list) else None


def _read_meta(path: Path) -> dict[etf.Term, etf.Term]:
    try:
        with _open_regular(path) as file:
            _refuse_holes(os.fstat(file.fileno()), path)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or header[:4] != MAGIC:
                raise CorruptSnapshotError(str(path), f"it does not begin with {MAGIC!r} and a header")
            _, version, crc = _HEADER.unpack(header)
            if version != VERSION:
                raise CorruptSnapshotError(str(path), f"version {version} is not supported ({VERSION} is)")
            actual = 0
            while chunk := file.read(_CHUNK):
                actual = zlib.crc32(chunk, actual)
            if actual != crc:
                raise CorruptSnapshotError(str(path), f"checksum {actual:08x} of the content, {crc:08x} in the header")
            file.seek(_HEADER.size)
            return _decode_meta(file.read(_META_LENGTH.size + MAX_META_BYTES), path)
    except FileNotFoundError as error:
        raise CorruptSnapshotError(str(path), "the file is missing") from error
    except _NotAFileError as error:
        raise CorruptSnapshotError(str(path), error.reason) from error


def _refuse_holes(found: os.stat_result, path: Path) -> None:
    """Checking a file of terabytes that holds nothing takes hours: no snapshot is compressed a thousandfold."""
    held = found.st_blocks * 512
    if found.st_size > _SPARSE_FROM and held * 1000 < found.st_size:
        raise CorruptSnapshotError(str(path), f"it claims {found.st_size} bytes, of which {held} are on the disk")


class _NotAFileError(Exception):
    """A directory, FIFO, device or symbolic link where a regular file is expected."""

    def __init__(self, reason: str = "it is not a file") -> None:
        super().__init__(reason)
        self.reason = reason


def _open_regular(path: Path) -> BinaryIO:
    """Open for reading, following no link in the last two parts of the path; O_NONBLOCK so that a FIFO cannot hang
    the reader.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        parent = os.open(path.parent, flags | os.O_DIRECTORY)
        try:
            fd = os.open(path.name, flags | os.O_NONBLOCK, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY:
            error.filename = str(path)
            raise
        linked = path.parent.is_symlink() or path.is_symlink()
        raise _NotAFileError(_NOT_FOLLOWED if linked else "it is not a file") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _NotAFileError
    return os.fdopen(fd, "rb")


def _decode_meta(data: bytes, path: Path) -> dict[etf.Term, etf.Term]:
    length = _META_LENGTH.unpack_from(data)[0] if len(data) >= _META_LENGTH.size else 0
    body = data[_META_LENGTH.size : _META_LENGTH.size + length]
    if len(body) < length or length == 0:
        raise CorruptSnapshotError(str(path), f"metadata of {length} bytes is cut off or larger than {MAX_META_BYTES}")
    try:
        meta = etf.decode(body)
    except TermFormatError as error:
        raise CorruptSnapshotError(str(path), f"its metadata cannot be decoded: {error}") from error
    if not isinstance(meta, dict):
        raise CorruptSnapshotError(str(path), "its metadata is not a map with index and term")
    return meta


def encode_snapshot(
    *,
    index: int,
    term: int,
    state: bytes,
    cluster: tuple[tuple[str, str], ...] = (("log", "nonode@nohost"),),
    machine_version: int = 0,
) -> bytes:
    """A whole snapshot.dat; `state` is the machine state's external term, `cluster` the (name, node) of each member."""
    # As Ra 3 keeps its members: a map from server id to that member's options.
    members: dict[etf.Term, etf.Term] = {(etf.Atom(name), etf.Atom(node)): {} for name, node in cluster}
    meta = etf.encode(
        {
            etf.Atom("index"): index,
            etf.Atom("term"): term,
            etf.Atom("cluster"): members,
            etf.Atom("machine_version"): machine_version,
        }
    )
    body = _META_LENGTH.pack(len(meta)) + meta + state
    return _HEADER.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def write_snapshot(
    directory: Path, *, index: int, term: int, live: LiveSet | None, state: bytes | None = None, sync: bool = True
) -> LogSnapshot:
    """Write a snapshot of the log in `directory`; `live` None leaves the `indexes` file out (unknown).

    An empty set is written out, because a missing file would not mean empty. Each file and both directories are synced.
    """
    if live and live.largest > index:
        raise CompactionError(f"{directory}: live index {live.largest} is above the snapshot's index {index}")
    path = directory / SNAPSHOTS / snapshot_name(term=term, index=index)
    path.mkdir(parents=True, exist_ok=True)
    # indexes first: a crash in between leaves a directory without snapshot.dat, which no reader takes for a snapshot.
    if live is not None:
        _write_file(path / INDEXES_FILE, encode_indexes(live), sync=sync)
    data = encode_snapshot(index=index, term=term, state=etf.encode([]) if state is None else state)
    _write_file(path / DATA_FILE, data, sync=sync)
    if sync:
        for parent in (path, path.parent, directory):
            sync_directory(parent)
    return LogSnapshot(index=index, term=term, live=live, path=path)


def _write_file(path: Path, data: bytes, *, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make renames, links and new names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
