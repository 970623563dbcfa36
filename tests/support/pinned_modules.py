"""What the tests take from public Go modules: pinned by the go.mod and go.sum of a wrapper of ours, made once on a
machine, and kept beside the programs of the control plane.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compaction.local.processes.process import cache_directory, exclusive
from compaction.local.programs.binaries import cache_lock, install_set


@dataclass(frozen=True, slots=True)
class PinnedModule:
    """`path` of the module; `wrapper`: the directory whose go.mod requires it."""

    path: str
    wrapper: Path

    @property
    def version(self) -> str:
        required = re.search(rf"{re.escape(self.path)} (\S+)", (self.wrapper / "go.mod").read_text())
        assert required is not None, f"{self.wrapper / 'go.mod'} does not require {self.path}"
        return required[1]

    def __str__(self) -> str:
        """As Go names it, with its version."""
        return f"{self.path}@{self.version}"


def kept(name: str) -> Path:
    """Where the cache keeps what is made under this name, which carries every version inside."""
    return cache_directory(os.environ) / "control-plane" / name


def made_once(place: Path, make: Callable[[Path, Path], None], *, what: str, report: Callable[[str], None]) -> Path:
    """`place`, which `make` fills where it is not there yet: it is given an empty directory, and the cache.

    What is there is taken without the lock of the cache, under which another process may build something for minutes.

    Raises:
        BinaryError: from `make`; nothing is left.
    """
    if place.exists():
        return place
    cache = cache_directory(os.environ)
    with exclusive(cache_lock(cache), what=what, report=report):
        if not place.exists():
            install_set(place, lambda made: make(made, cache))
    return place
