"""New files that the log's owner must be able to read: whom they belong to, and how one replaces another."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from compaction.segments.directory import fs, lock
from compaction.segments.errors import LogNotWritableError


def inherit_access(fd: int, source: Path) -> None:
    """Owner, group and mode of `source`, for the open file: the log's owner must be able to read the new file.

    Giving a file away needs privileges. Without them it is enough that the owner can read it through its group or as
    anybody; otherwise LogNotWritableError.
    """
    model, mine = os.stat(source), os.fstat(fd)
    mode = stat.S_IMODE(model.st_mode)
    uid, gid = mine.st_uid, mine.st_gid
    for new_uid, new_gid in ((model.st_uid, model.st_gid), (mine.st_uid, model.st_gid)):
        if (uid, gid) != (new_uid, new_gid):
            with suppress(PermissionError):
                fs.set_owner(fd, uid=new_uid, gid=new_gid)
                uid, gid = new_uid, new_gid
                break
    readable = uid == model.st_uid or (gid == model.st_gid and mode & stat.S_IRGRP) or mode & stat.S_IROTH
    if not readable:
        reason = f"a rewritten copy cannot be given to its owner (uid {model.st_uid}, gid {model.st_gid})"
        raise LogNotWritableError(str(source), reason)
    fs.set_mode(fd, mode)


def replace_file(
    temporary: Path, target: Path, data: bytes, *, access: Path | None, held: lock.HeldLock | None
) -> None:
    """Put `data` under the name `target`, atomically and durably but for the directory, which the caller syncs.

    `access`: the file whose owner, group and mode the new one gets; None for those of its directory. `held` is asked
    right before the name changes.
    OSError passes through: the old file, or none, then stands under the name.
    """
    fs.unlink_if_present(temporary)
    try:
        fd = fs.create(temporary) if access is None else fs.create(temporary, mode=0o600)
        try:
            if access is not None:
                inherit_access(fd, access)
            else:
                lock.give_to_owner(fd, target.parent)
            fs.write(fd, [data])
            fs.sync(fd)
        finally:
            os.close(fd)
        if held is not None:
            held.verify()
        fs.rename(temporary, target)
    except OSError:
        with suppress(OSError):
            fs.unlink_if_present(temporary)
        raise
