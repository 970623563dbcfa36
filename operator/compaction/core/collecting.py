"""Pauses of Python's cyclic garbage collector, where many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Recovery without pauses for garbage collection (docs/design/catalogs.md#versions, segment-wal.md#recovery).


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


# Python's cyclic garbage collector, paused where a great many objects are made that all stay.
#
# It runs again and again while their number grows, and goes through all of them each time: a third of the time that
# it takes to plan a million blocks. Nothing of what is made there refers to itself, so there is nothing to be found.

_MANY: Final = 50_000
"""Objects made in a pause from which on they are spared. What other code has frozen stays frozen."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Switched on again at the end by the pause that switched it off; inside of another pause, or where it is off
    anyway, this does nothing. With several threads the first to end switches it on for all: later than asked for by
    none.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > _MANY and not gc.get_freeze_count():
            # Hands what was made to the oldest generation as it is; else the first thing that the collector did would
            # be to go through all of it, twice.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
