"""Recovery without pauses for garbage collection (docs/design/catalogs.md#versions, segment-wal.md#recovery)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Run a block that builds many objects and no cycles: the collector would visit all that are there again and again,
    which takes as long as building them, and find nothing. It is as it was afterwards.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
