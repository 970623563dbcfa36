"""Memory that was freed stays with the process for what comes next, where the allocator is glibc's."""

from __future__ import annotations

from typing import Final

import numpy as np

_MOST: Final = 30 << 20
"""glibc's thresholds follow allocations of up to 32 MiB."""


def keep_freed(size: int) -> None:
    """Have the allocator keep up to about twice `size` bytes of freed memory, instead of asking the system for the same
    pages again and again: a tenth of the CPU time where clearing pages is dear, as in virtual machines.

    glibc raises its thresholds to the largest allocation that was ever freed (mallopt(3), M_MMAP_THRESHOLD); elsewhere
    this does nothing. The memory is not touched.
    """
    np.empty(min(size, _MOST), np.uint8)
