"""The machine's state in a snapshot, as bytes: what its owner continues with (docs/design/segment-snapshots.md)."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from compaction.exceptions import CorruptSnapshotError
from compaction.stores.segments.snapshot.directories import DATA_FILE, MAGIC, VERSION, LogSnapshot

_HEADER: Final = struct.Struct(">4sBII")
_CHECKED: Final = 9
"""The checksum is of everything from this byte on."""


def read_state(snapshot: LogSnapshot) -> bytes:
    """The state in `snapshot.dat`, its checksum verified.

    Raises:
        CorruptSnapshotError: the file is not what was found when the snapshot was loaded. OSError passes through.
    """
    path = snapshot.path / DATA_FILE
    data = path.read_bytes()
    if len(data) < _HEADER.size:
        raise CorruptSnapshotError(str(path), f"it is cut off after {len(data)} bytes")
    magic, version, crc, length = _HEADER.unpack_from(data)
    if (magic, version, crc) != (MAGIC, VERSION, zlib.crc32(memoryview(data)[_CHECKED:])):
        raise CorruptSnapshotError(str(path), "its header or its checksum is wrong")
    begin = _HEADER.size + int(length)
    if begin > len(data):
        raise CorruptSnapshotError(str(path), f"metadata of {length} bytes is cut off")
    return data[begin:]
