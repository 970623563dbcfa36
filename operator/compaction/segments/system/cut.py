"""Where a log ends although its files hold more: after an installation that was interrupted or has replaced its tail.

The formats of the write-ahead log and of segments have no record that takes entries away; a later write hides them,
but until then a restart would bring them back. `<log>/log.cut` says which entries are no part of the log: those from
index `first` on, in write-ahead log files with a number below `before` (None: in every file that is there), and in
segments until a newer entry is in them. 4 bytes `CCUT`, u8 version 1, u32 crc32 of the rest, u64 first, u64 before
(2**64 - 1 for None), big-endian (docs/design/segment-install.md#cut).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from compaction.segments.directory import fs
from compaction.segments.directory.access import replace_file
from compaction.segments.errors import InvalidCutError
from compaction.segments.model import MAX_INDEX

CUT_FILE: Final = "log.cut"
_TEMPORARY: Final = "log.cut.tmp"
_MAGIC: Final = b"CCUT"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sBI")
_BODY: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class LogCut:
    """Entries from `first` on, in files with a number below `before` (None: in all of them), do not count."""

    first: int
    before: int | None

    def covers(self, index: int, file: int) -> bool:
        """Whether the entry of this index, in the write-ahead log file of this number, does not count."""
        return index >= self.first and (self.before is None or file < self.before)

    def above(self, snapshot_index: int | None) -> LogCut:
        """The cut of a log with this snapshot, which covers everything up to its index."""
        if snapshot_index is None or self.first > snapshot_index:
            return self
        return replace(self, first=snapshot_index + 1)


def encode_cut(cut: LogCut) -> bytes:
    body = _BODY.pack(cut.first, MAX_INDEX if cut.before is None else cut.before)
    return _HEADER.pack(_MAGIC, _VERSION, zlib.crc32(body)) + body


def decode_cut(data: bytes, *, file: str) -> LogCut:
    """InvalidCutError names `file`."""
    if len(data) != _HEADER.size + _BODY.size:
        raise InvalidCutError(file, f"it has {len(data)} bytes, not {_HEADER.size + _BODY.size}")
    magic, version, crc = _HEADER.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise InvalidCutError(file, f"it begins with {data[:5]!r}, not {_MAGIC + bytes((_VERSION,))!r}")
    if zlib.crc32(data[_HEADER.size :]) != crc:
        raise InvalidCutError(file, "its checksum does not match its content")
    first, before = _BODY.unpack_from(data, _HEADER.size)
    return LogCut(first, None if before == MAX_INDEX else before)


def read_cut(directory: Path) -> LogCut | None:
    """The cut of the log in `directory`; None without any. InvalidCutError; OSError passes through."""
    path = directory / CUT_FILE
    try:
        with path.open("rb") as file:
            data = file.read(_HEADER.size + _BODY.size + 1)
    except FileNotFoundError:
        return None
    return decode_cut(data, file=str(path))


def write_cut(directory: Path, cut: LogCut) -> None:
    """Replace the cut of a log, durably. OSError passes through."""
    replace_file(directory / _TEMPORARY, directory / CUT_FILE, encode_cut(cut), access=None, held=None)
    fs.sync_directory(directory)


def discard_temporary(directory: Path) -> None:
    """Delete the cut that was being written when its process ended. OSError passes through."""
    fs.unlink_if_present(directory / _TEMPORARY)


def remove_cut(directory: Path) -> None:
    """Everything that the files hold counts again, durably. OSError passes through."""
    if fs.unlink_if_present(directory / CUT_FILE):
        fs.sync_directory(directory)
