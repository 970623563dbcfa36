"""Permissions that hold: as root nothing is forbidden, so the block runs under an account that is nobody's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
THROUGH = stat.S_IXGRP | stat.S_IXOTH


@contextmanager
def as_nobody(root: Path, *, forbidden: Path | None = None, read_only: bool = False) -> Iterator[None]:
    """Everything below `root` belongs to nobody, who runs the block; afterwards all can be read and written again.

    `forbidden`: what has no permission left; `read_only`: nothing may be written. Under an account that is not root
    already the block runs as it is.
    """
    privileged = os.geteuid() == 0
    closed = [parent for parent in root.parents if parent.stat().st_mode & THROUGH != THROUGH] if privileged else []
    modes = {parent: stat.S_IMODE(parent.stat().st_mode) for parent in closed}
    for path in (root, *root.rglob("*")):
        if privileged:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        if read_only and not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)
    for parent, mode in modes.items():
        parent.chmod(mode | THROUGH)
    if forbidden is not None:
        forbidden.chmod(0)
    if privileged:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if privileged:
            os.seteuid(0)
        for parent, mode in modes.items():
            parent.chmod(mode)
        _open_again(root)


def _open_again(root: Path) -> None:
    if root.exists():
        root.chmod(0o755)
        for path in root.iterdir():
            if path.is_dir() and not path.is_symlink():
                _open_again(path)
            elif path.is_file() and not path.is_symlink():
                path.chmod(0o644)
