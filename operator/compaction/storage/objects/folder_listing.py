"""All files below a folder, as the library that keeps objects in folders lists them; and on where that one gives up.

The library follows links to folders and ends at one that leads in a circle, or at a name that is no text, without
listing what else there is. Here such an entry is passed over and named: nothing is lost by it, because what a circle
leads to is listed where it lies, and an object never has such a name.
"""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Iterator, MutableMapping
from datetime import UTC, datetime, timedelta
from os import listdir, stat_result
from pathlib import Path
from typing import Final, NamedTuple

from compaction.storage.errors import ObjectAccessError, ObjectStoreUnavailableError
from compaction.storage.objects.paths import is_staged

_NO_NAME: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_GONE: Final = (FileNotFoundError, NotADirectoryError)
FolderId = tuple[int, int]
"""Device and inode."""


class ListedFile(NamedTuple):
    """A file as `ObjectInfo` has it."""

    path: str
    size: int
    etag: str
    modified: datetime


def files_below(root: Path, prefix: str, skipped: MutableMapping[str, str]) -> Iterator[ListedFile]:
    """The files below `root/prefix`, by their paths below `root`, in no order that counts. `skipped` is called with
    every entry that is passed over, and why.

    Raises ObjectAccessError, ObjectStoreUnavailableError: a folder cannot be read, and is named.
    """
    parts = prefix.split("/") if prefix else []
    above = [_folder_id(root.joinpath(*parts[:count])) for count in range(len(parts) + 1)]
    open_folders = [(prefix, frozenset(one for one in above if one is not None))]
    while open_folders:
        folder, holding = open_folders.pop()
        for name in _names(root / folder, folder):
            path = f"{folder}/{name}" if folder else name
            if _NO_NAME.search(name):
                skipped[ascii(path)] = "no object can have this name"
                continue
            found = _stat(root, path, skipped)
            if found is None:
                continue
            if stat.S_ISREG(found.st_mode):
                if not is_staged(path):
                    yield _listed(path, found)
            elif stat.S_ISDIR(found.st_mode):
                mine = (found.st_dev, found.st_ino)
                if mine in holding:
                    skipped[path] = "a symbolic link leads back to a folder that holds it"
                else:
                    open_folders.append((path, holding | {mine}))


def _folder_id(folder: Path) -> FolderId | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _names(folder: Path, path: str) -> list[str]:
    try:
        return listdir(folder)
    except _GONE:
        return []
    except OSError as error:
        raise _refused(path or str(folder), error) from None


def _stat(root: Path, path: str, skipped: MutableMapping[str, str]) -> stat_result | None:
    try:
        return (root / path).stat()
    except _GONE:
        return None  # deleted meanwhile, or a link to nothing
    except OSError as error:
        if error.errno == errno.ELOOP:
            skipped[path] = "a symbolic link leads to itself"
            return None
        raise _refused(path, error) from None


def _refused(path: str, error: OSError) -> ObjectAccessError | ObjectStoreUnavailableError:
    if isinstance(error, PermissionError):
        return ObjectAccessError(path, "access denied (permission)")
    return ObjectStoreUnavailableError(path, f"the folder refused: {error.strerror}")


def _listed(path: str, found: stat_result) -> ListedFile:
    micros = found.st_mtime_ns // 1000
    etag = f'"{found.st_ino:x}-{micros:x}-{found.st_size:x}"'
    return ListedFile(path, found.st_size, etag, _EPOCH + timedelta(microseconds=micros))
