"""The file `snapshot.dat`: whose snapshot it is, and the machine's state.

The format: docs/design/segment-snapshots.md#snapshotdat.

`RASN`, u8 version 1, u32 crc32 of the rest, u32 meta length, meta (external term of a map with index, term, cluster,
machine_version), then the machine's state, opaque here. Symbolic links are not followed, so nothing outside the log is
read.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from compaction.segments.errors import CorruptSnapshotError, TermFormatError
from compaction.segments.format import etf

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
# What opening a link or a file says when a directory, or no link, is asked for.
NO_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
NOT_FOLLOWED: Final = "it is a symbolic link, which is not followed"


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class SnapshotOrigin:
    """Whose snapshot it is. A Ra server believes it: one whose cluster it is not in puts it out of its own cluster.

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
    """Whose snapshot a snapshot.dat is; None when it does not say it in a known form.

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
