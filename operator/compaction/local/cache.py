"""Where this machine keeps what is costly to make: programs, images, archives of Spark's classes.

The standard library only: `make setup` needs it while pip still fills the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "COMPACTION_CACHE"


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """`$COMPACTION_CACHE`, else `$XDG_CACHE_HOME/compaction-operator`, else `~/.cache/compaction-operator`."""
    environment = os.environ if environment is None else environment
    if environment.get(CACHE_VARIABLE):
        return Path(environment[CACHE_VARIABLE]).absolute()
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "compaction-operator"


def class_archives() -> Path:
    """The directory for archives of Spark's classes (worker/spark/class_archive)."""
    return cache_directory() / "spark"
