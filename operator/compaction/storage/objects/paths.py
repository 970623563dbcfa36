"""Which paths an object may have, in every store alike."""

from __future__ import annotations

import re
from typing import Final

from compaction.storage.errors import ObjectPathError

MAX_PATH: Final = 900
"""Bytes; S3 has 1024 for the root and the path together."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_STAGED: Final = re.compile(r"#[0-9]+\Z", re.ASCII)


def is_staged(path: str) -> bool:
    """Whether a file of a local folder is one that is being written, or was when the writer died."""
    return _STAGED.search(path) is not None


def check_path(path: str, *, folder: bool = False) -> str:
    """Return the path of an object (or of a folder, which may be the root, ""). Raises ObjectPathError."""
    if folder and not path:
        return path
    if any(part in {"", ".", ".."} for part in path.split("/")):
        raise ObjectPathError(path[:MAX_PATH], "parts of a path are neither empty nor . or ..")
    if _CONTROL.search(path):
        raise ObjectPathError(ascii(path[:MAX_PATH]), "a path holds no control characters and no backslash")
    if len(path.encode()) > MAX_PATH or any(len(part.encode()) > 255 for part in path.split("/")):
        raise ObjectPathError(path[:MAX_PATH], f"longer than {MAX_PATH} bytes, or 255 in one part")
    if is_staged(path):
        raise ObjectPathError(path, "names that end in # and digits are those of unfinished writes")
    return path
