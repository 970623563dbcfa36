"""Parquet files that other programs have written: where they are in a store, and the id that such a file gets.

The id is made of the path and of the time of the object, so registering a file again finds it registered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from ulid import ULID

from compaction.stores.blocks.paths import SUFFIX, ULID_TEXT, parse_block_path
from compaction.stores.objects.paths import check_path
from compaction.stores.objects.store import ObjectInfo, ObjectStorage

OWN_FOLDER: Final = "_compaction/"
"""What lies here is ours, and no block."""
_TAIL_BYTES: Final = 10
_TIME_BYTES: Final = 6


def assigned_id(info: ObjectInfo) -> str:
    """The id of a file: the ULID that is its name, else one made of its path, as old as the object."""
    name = info.path.rpartition("/")[2].removesuffix(SUFFIX)
    if ULID_TEXT.fullmatch(name):
        return name
    milliseconds = max(0, int(info.modified.timestamp() * 1000))
    tail = hashlib.sha256(info.path.encode()).digest()[:_TAIL_BYTES]
    return str(ULID.from_bytes(milliseconds.to_bytes(_TIME_BYTES, "big") + tail))


def parquet_files(objects: ObjectStorage, folder: str) -> Iterator[ObjectInfo]:
    """All Parquet files below a folder of the store ("" for all of it), without what is ours. Raises ObjectError."""
    check_path(folder, folder=True)
    return (info for info in objects.list(folder) if is_parquet(info.path))


def is_parquet(path: str) -> bool:
    """Whether a path is that of a Parquet file that another program has finished, and none of ours."""
    if not path.endswith(SUFFIX) or path.startswith(OWN_FOLDER):
        return False
    # What other writers have not finished lies in folders such as _temporary; a tenant may begin with _ too.
    hidden = any(part.startswith((".", "_")) for part in path.split("/"))
    return not hidden or parse_block_path(path) is not None
