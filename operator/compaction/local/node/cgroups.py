"""Control groups of a node: one parent in every hierarchy, made before and removed after.

Standard library only: the keeper, which outlives everything else of the node, removes them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 20.0
POLL_SECONDS = 0.1


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The hierarchies of version 1 (one per controller); empty where only the unified one is mounted."""
    return sorted(path for path in root.iterdir() if path.is_dir() and (path / "cgroup.clone_children").exists())


def create(name: str) -> None:
    """The parent `name` in every hierarchy. A cpuset starts without processors; it gets those of its parent."""
    for hierarchy in hierarchies():
        parent = hierarchy / name
        parent.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (parent / setting).exists():
                (parent / setting).write_text((hierarchy / setting).read_text())


def remaining(name: str) -> list[Path]:
    """The parents that are still there, also in the unified hierarchy, where the container runtime makes some too."""
    return [path / name for path in sorted(ROOT.iterdir()) if (path / name).is_dir()]


def remove(name: str, *, timeout: float = REMOVE_SECONDS) -> list[Path]:
    """Remove the groups of a node whose processes are gone; what is left after `timeout` seconds, deepest first.

    The kernel refuses to remove a group for a moment after its last process died.
    """
    deadline = time.monotonic() + timeout
    while parents := remaining(name):
        for parent in parents:
            for directory, _, _ in os.walk(parent, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError:
                    continue
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return remaining(name)
