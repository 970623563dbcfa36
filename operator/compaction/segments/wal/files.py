"""The files of a write-ahead log in a system's directory: names, creation, the writers snapshot, the clean stop.

A file is created under another name, with its header, synced and renamed; so no file of this name is without a header.
`compaction.stopped` is there from a clean stop to the next start, and says where each file ended: only without it may
the last record be torn (docs/design/segment-wal.md#damage).
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from compaction.segments.directory import fs
from compaction.segments.directory.lock import HeldLock, replace_file
from compaction.segments.errors import (
    InvalidStopError,
    InvalidWalFormatError,
    TermFormatError,
    WalChangedAfterStopError,
)
from compaction.segments.format import etf
from compaction.segments.format.segment_file import pread_up_to
from compaction.segments.wal.codec import HEADER, Standing, WriterState

WAL_SUFFIX: Final = ".wal"
TEMPORARY_SUFFIX: Final = ".tmp"
WRITERS_FILE: Final = "writers.snapshot"
STOP_FILE: Final = "compaction.stopped"
_STOP_TEMPORARY: Final = "compaction.stopped.tmp"
_LARGEST_STOP: Final = 1 << 20
_NAME: Final = re.compile(r"([0-9]{16})\.wal", re.ASCII)


def wal_name(number: int) -> str:
    """`0000000000000007.wal` for 7. ValueError when the number does not fit in 16 digits."""
    if not 0 <= number < 10**16:
        raise ValueError(f"write-ahead log file number {number} does not fit in 16 digits")
    return f"{number:016d}{WAL_SUFFIX}"


def wal_number(name: str) -> int:
    """ValueError for a name of another form."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a write-ahead log file")
    return int(match[1])


def wal_files(directory: Path) -> list[Path]:
    """The write-ahead log files of a system, oldest first."""
    return [directory / name for name in sorted(os.listdir(directory)) if _NAME.fullmatch(name)]


def create_wal(directory: Path, number: int) -> int:
    """A new file with its header; returns its descriptor, positioned behind the header.

    Its name is durable once the directory is synced, which the caller does before it acknowledges anything in it.
    """
    path = directory / wal_name(number)
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    fs.unlink_if_present(temporary)
    fd = fs.create(temporary)
    try:
        fs.write(fd, [HEADER])
        fs.sync(fd)
        fs.rename(temporary, path)
    except BaseException:
        # The file stays under its temporary name, which the next call for this number removes.
        os.close(fd)
        raise
    return fd


def open_wal(path: Path) -> int:
    """A file for reading, by its descriptor. InvalidWalFormatError: it is no regular file; OSError passes through."""
    # O_NONBLOCK: a FIFO under such a name must not hang the reader.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if path.is_symlink():
            raise InvalidWalFormatError(str(path), "it is a symbolic link, which is not followed") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidWalFormatError(str(path), "it is not a regular file")
    return fd


def encode_writers(writers: Mapping[bytes, WriterState]) -> bytes:
    """The writers snapshot: a map from each log's id to `{in_seq | out_of_seq, LastIndex}`, as Ra keeps it."""
    pairs: dict[etf.Term, etf.Term] = {
        writer: (etf.Atom(state.standing), state.last) for writer, state in sorted(writers.items())
    }
    return etf.encode(pairs)


def decode_writers(data: bytes, *, file: str) -> dict[bytes, WriterState]:
    """InvalidWalFormatError for anything but a map of that form."""
    try:
        term = etf.decode(data)
    except TermFormatError as error:
        raise InvalidWalFormatError(file, str(error)) from error
    if not isinstance(term, dict):
        raise InvalidWalFormatError(file, "it is not a map of writers")
    return dict(_writer(key, value, file) for key, value in term.items())


def _writer(key: etf.Term, value: etf.Term, file: str) -> tuple[bytes, WriterState]:
    match key, value:
        case bytes(), (etf.Atom(name=name), int(last)) if name in set(Standing) and last >= -1:
            return key, WriterState(last, Standing(name))
    raise InvalidWalFormatError(file, f"it holds something else than writers with their last index: {ascii(key)[:80]}")


def write_writers(directory: Path, writers: Mapping[bytes, WriterState]) -> None:
    """Replace the writers snapshot; its name is durable once the directory is synced, which the caller does."""
    path = directory / WRITERS_FILE
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    replace_file(temporary, path, encode_writers(writers), access=None, held=None)


def read_writers(directory: Path) -> dict[bytes, WriterState]:
    """The writers that the snapshot names; none without one."""
    path = directory / WRITERS_FILE
    try:
        return decode_writers(path.read_bytes(), file=str(path))
    except FileNotFoundError:
        return {}


class WalEnd(NamedTuple):
    """The end of a file. `whole`: bytes up to the end of its last whole record; `size`: all of them.

    The two differ where a process was killed in a write and its successor has not emptied the file.
    """

    whole: int
    size: int


def write_stop(directory: Path, ends: Mapping[str, WalEnd], *, held: HeldLock) -> None:
    """Say, durably, that the system was stopped with these files, by name, each synced. `held`: the system's lock.

    LockLostError: it is no longer held. OSError passes through.
    """
    data = json.dumps({name: end._asdict() for name, end in ends.items()}, indent=1).encode()
    replace_file(directory / _STOP_TEMPORARY, directory / STOP_FILE, data, access=None, held=held)
    fs.sync_directory(directory)


def remove_stop(directory: Path) -> None:
    """Durable once the directory is synced, which the caller does before anything is written."""
    fs.unlink_if_present(directory / STOP_FILE)


def read_stop(directory: Path) -> dict[str, WalEnd]:
    """The files of a system that was stopped cleanly; none where it runs, was killed, or never was ours.

    InvalidStopError; OSError passes through.
    """
    path = directory / STOP_FILE
    try:
        fd = open_wal(path)
    except FileNotFoundError:
        return {}
    except InvalidWalFormatError as error:
        raise InvalidStopError(str(path), error.reason) from error
    try:
        said = json.loads(pread_up_to(fd, _LARGEST_STOP, 0))
        found = {name: WalEnd(**end) for name, end in said.items() if wal_number(name) >= 0}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # TypeError, AttributeError: JSON of another shape; ValueError: no JSON, or no name of such a file.
        raise InvalidStopError(str(path), "it does not say where each file ended") from error
    finally:
        os.close(fd)
    if not found or any(type(value) is not int for end in found.values() for value in end):
        raise InvalidStopError(str(path), "it does not say where each file ended")
    return found


def lost_since_stop(directory: Path) -> list[WalChangedAfterStopError]:
    """Files that were there when the system was stopped cleanly, and are gone. InvalidStopError; OSError passes
    through.
    """
    stopped = read_stop(directory)
    present = {path.name for path in wal_files(directory)}
    # A newer file is that of an owner that does not know the record, as Ra does not: it empties the others. The second
    # reading is for an owner that has started meanwhile: it removes the record before any file goes.
    if not stopped or max(present, default="") > max(stopped) or read_stop(directory) != stopped:
        return []
    record = str(directory / STOP_FILE)
    return [
        WalChangedAfterStopError(
            str(directory / name), 0, f"it is gone, and had {end.size} bytes when its system was stopped", record
        )
        for name, end in sorted(stopped.items())
        if name not in present
    ]
