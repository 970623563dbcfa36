"""Snapshots of a log: their directories, the file `snapshot.dat`, and the one that counts."""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from compaction.errors import CompactionError
from compaction.segments.directory import fs
from compaction.segments.directory.fs import regular_identity
from compaction.segments.errors import CorruptIndexesError, CorruptSnapshotError, LogChangedError, TermFormatError
from compaction.segments.format import etf
from compaction.segments.snapshot.live_indexes import LiveSet, decode_indexes, encode_indexes

# The file `snapshot.dat`: whose snapshot it is, and the machine's state.
#
# The format: docs/design/segment-snapshots.md#snapshotdat.
#
# `RASN`, u8 version 1, u32 crc32 of the rest, u32 meta length, meta (external term of a map with index, term,
# cluster, machine_version), then the machine's state, opaque here. Symbolic links are not followed, so nothing
# outside the log is read.

MAGIC: Final = b"RASN"
VERSION: Final = 1
DATA_FILE: Final = "snapshot.dat"
_HEADER: Final = struct.Struct(">4sBI")
_META_LENGTH: Final = struct.Struct(">I")
_CHUNK: Final = 1 << 20
# A meta map holds an index, a term, a version and the cluster's member list: kilobytes. The bound keeps memory finite
# on hostile files.
MAX_META_BYTES: Final = 1 << 20
_SPARSE_FROM: Final = 64 << 20
# Errors of opening a link or a file when a directory, or no link, is asked for.
NO_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
NOT_FOLLOWED: Final = "it is a symbolic link, which is not followed"


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class SnapshotOrigin:
    """The cluster and the state machine that a snapshot is of.

    A Ra server believes it: one whose cluster it is not in puts it out of its own cluster.

    `cluster`: as Ra keeps it, a map from (name, node) of each member to its options (before Ra 3 a list of them).
    `machine_version`: of the state machine that made the state.
    """

    cluster: etf.Term
    machine_version: int

    @classmethod
    def of_members(cls, members: tuple[tuple[str, str], ...], machine_version: int) -> SnapshotOrigin:
        """`members`: (name, node) of each."""
        return cls({(etf.Atom(name), etf.Atom(node)): {} for name, node in members}, machine_version)

    @property
    def members(self) -> tuple[etf.Term, ...] | None:
        """The id of each member; None when the cluster is in no known form."""
        return tuple(self.cluster) if isinstance(self.cluster, dict | list) else None


NO_CLUSTER: Final = SnapshotOrigin.of_members((("log", "nonode@nohost"),), 0)
"""Of a log that is in no cluster of Ra's."""


def read_snapshot_meta(path: Path) -> SnapshotMeta:
    """Index and term of a snapshot.dat after checking magic, version and the CRC of the whole file (in chunks)."""
    meta = _read_meta(path)
    index, term = meta.get(etf.Atom("index")), meta.get(etf.Atom("term"))
    if isinstance(index, int) and isinstance(term, int) and index >= 0 and term >= 0:
        return SnapshotMeta(index=index, term=term)
    raise CorruptSnapshotError(str(path), "its metadata is not a map with index and term")


def read_origin(path: Path) -> SnapshotOrigin | None:
    """Return the origin that a snapshot.dat names; None when it does not name one in a known form.

    Errors as `read_snapshot_meta`.
    """
    meta = _read_meta(path)
    cluster, version = meta.get(etf.Atom("cluster")), meta.get(etf.Atom("machine_version"))
    if isinstance(cluster, dict | list) and isinstance(version, int):
        return SnapshotOrigin(cluster, version)
    return None


def _read_meta(path: Path) -> dict[etf.Term, etf.Term]:
    try:
        with open_regular(path) as file:
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
    except NotAFileError as error:
        raise CorruptSnapshotError(str(path), error.reason) from error


def _refuse_holes(found: os.stat_result, path: Path) -> None:
    """Checking a file of terabytes that holds nothing takes hours: no snapshot is compressed a thousandfold."""
    held = found.st_blocks * 512
    if found.st_size > _SPARSE_FROM and held * 1000 < found.st_size:
        raise CorruptSnapshotError(str(path), f"it claims {found.st_size} bytes, of which {held} are on the disk")


class NotAFileError(Exception):
    """A directory, FIFO, device or symbolic link where a regular file is expected."""

    def __init__(self, reason: str = "it is not a file") -> None:
        super().__init__(reason)
        self.reason = reason


def open_regular(path: Path) -> BinaryIO:
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
        if error.errno not in NO_DIRECTORY:
            # The file was opened relative to a descriptor, so the error names only the last part of the path.
            error.filename = str(path)
            raise
        linked = path.parent.is_symlink() or path.is_symlink()
        raise NotAFileError(NOT_FOLLOWED if linked else "it is not a file") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotAFileError
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


def encode_snapshot(*, index: int, term: int, state: bytes, origin: SnapshotOrigin = NO_CLUSTER) -> bytes:
    """A whole snapshot.dat; `state` is the machine state's external term."""
    meta = etf.encode(
        {
            etf.Atom("index"): index,
            etf.Atom("term"): term,
            etf.Atom("cluster"): origin.cluster,
            etf.Atom("machine_version"): origin.machine_version,
        }
    )
    body = _META_LENGTH.pack(len(meta)) + meta + state
    return _HEADER.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def read_state(path: Path) -> bytes:
    """The state in the file, its checksum verified.

    Raises:
        CorruptSnapshotError: the file is not what was found when the snapshot was loaded. OSError passes through.
    """
    data = path.read_bytes()
    if len(data) < _HEADER.size + _META_LENGTH.size:
        raise CorruptSnapshotError(str(path), f"it is cut off after {len(data)} bytes")
    if _HEADER.unpack_from(data) != (MAGIC, VERSION, zlib.crc32(memoryview(data)[_HEADER.size :])):
        raise CorruptSnapshotError(str(path), "its header or its checksum is wrong")
    (length,) = _META_LENGTH.unpack_from(data, _HEADER.size)
    begin = _HEADER.size + _META_LENGTH.size + int(length)
    if begin > len(data):
        raise CorruptSnapshotError(str(path), f"metadata of {length} bytes is cut off")
    return data[begin:]


# Snapshot directories of a log: which snapshot counts, and what is live at or below it.
#
# The format: docs/design/segment-snapshots.md.
#
# `<log>/snapshots/<TERM>_<IDX>/{snapshot.dat, indexes}`, TERM and IDX 16 upper-case hexadecimal digits.
#
# A missing `indexes` file means UNKNOWN, never empty: Ra does not write it for an empty set, but a crash between the
# two files leaves the same picture, and taking it for empty loses every live entry
# (docs/design/segment-commit.md#windows-of-the-reference, W2).
#
# The owner deletes its older snapshots whenever it likes, and not at once: a reading that found something missing or
# torn counts only if nothing changed while it was made. Symbolic links are not followed, so nothing outside the log
# is read.

SNAPSHOTS: Final = "snapshots"
INDEXES_FILE: Final = "indexes"
_NAME: Final = re.compile(r"([0-9A-F]{16})_([0-9A-F]{16})", re.ASCII)
# 256 MiB of `indexes` is more than 20 million scattered indexes; the bound keeps memory finite on hostile files.
MAX_INDEXES_BYTES: Final = 256 << 20
# An owner completes a snapshot every few seconds at most; a look takes milliseconds.
LOOKS: Final = 5

_Listing = dict[str, tuple[tuple[int, ...] | None, ...]]


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The newest valid snapshot. `live` None: unknown, either missing (`live_error` None) or corrupt (`live_error`)."""

    index: int
    term: int
    live: LiveSet | None
    path: Path
    live_error: CorruptIndexesError | None = None

    @property
    def data(self) -> Path:
        """Its `snapshot.dat`."""
        return self.path / DATA_FILE


@dataclass(frozen=True, slots=True)
class SnapshotSearch:
    """The newest valid snapshot, and what was wrong with newer ones."""

    newest: LogSnapshot | None
    rejected: tuple[CorruptSnapshotError, ...]


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
        if error.errno not in NO_DIRECTORY:
            raise
        raise CorruptSnapshotError(str(root), NOT_FOLLOWED if root.is_symlink() else "it is not a directory") from error
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
        # The snapshot itself is valid, so it is in force; only its live set is unknown.
        return LogSnapshot(index=meta.index, term=meta.term, live=None, path=path, live_error=error)
    return LogSnapshot(index=meta.index, term=meta.term, live=live, path=path)


def _read_live(path: Path, *, snapshot_index: int) -> LiveSet | None:
    try:
        with open_regular(path) as file:
            # Not the bound itself: a read reserves memory for all that it asks for.
            data = file.read(min(os.fstat(file.fileno()).st_size, MAX_INDEXES_BYTES) + 1)
    except FileNotFoundError:
        # Missing is another state than damaged, with a policy of its own (`IndexesMissing`).
        return None
    except NotAFileError as error:
        raise CorruptIndexesError(str(path), error.reason) from error
    if len(data) > MAX_INDEXES_BYTES:
        raise CorruptIndexesError(str(path), f"it is larger than {MAX_INDEXES_BYTES} bytes")
    live = decode_indexes(data, file=str(path))
    if live and live.largest > snapshot_index:
        raise CorruptIndexesError(str(path), f"live index {live.largest} is above snapshot index {snapshot_index}")
    return live


def write_snapshot(
    directory: Path,
    *,
    index: int,
    term: int,
    live: LiveSet | None,
    state: bytes | None = None,
    origin: SnapshotOrigin = NO_CLUSTER,
    sync: bool = True,
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
    data = encode_snapshot(index=index, term=term, state=etf.encode([]) if state is None else state, origin=origin)
    _write_file(path / DATA_FILE, data, sync=sync)
    if sync:
        for parent in (path, path.parent, directory):
            fs.sync_directory(parent)
    return LogSnapshot(index=index, term=term, live=live, path=path)


def _write_file(path: Path, data: bytes, *, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def make_durable(directory: Path) -> None:
    """Make the snapshots of the log in `directory` durable as they are visible now. OSError passes through.

    What is visible its owner may not have synced yet. After a power failure, the entries that a compaction dropped by a
    snapshot which went with it would be live, and nowhere.
    """
    root = directory / SNAPSHOTS
    try:
        names = sorted(_list(root))
    except CorruptSnapshotError:
        # Nothing goes by it: values that were given won over it.
        return
    for name in names:
        # One that is gone was replaced by a newer one, which its owner synced before.
        with suppress(FileNotFoundError, NotADirectoryError):
            for file in (DATA_FILE, INDEXES_FILE):
                if regular_identity(root / name / file):
                    fs.sync_file(root / name / file)
            fs.sync_directory(root / name)
    if root.is_dir():
        fs.sync_directory(root)
