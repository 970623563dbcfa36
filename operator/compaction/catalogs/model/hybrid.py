"""Hybrid timestamps: 64-bit integers, 48 bits of physical milliseconds over 16 bits of a logical counter
(docs/design/catalogs.md#hybrid-timestamps).
"""

from __future__ import annotations

from typing import Final

LOGICAL_BITS: Final = 16
MINIMUM: Final = 1
"""The smallest timestamp. Zero means that there is none."""
MAXIMUM: Final = 2**63 - 1
MAX_PHYSICAL: Final = MAXIMUM >> LOGICAL_BITS
MAX_LOGICAL: Final = (1 << LOGICAL_BITS) - 1


def hybrid(milliseconds: int, logical: int = 0) -> int:
    """The timestamp of `milliseconds` since the epoch and a counter. ValueError when no timestamp holds them."""
    if not (0 <= milliseconds <= MAX_PHYSICAL and 0 <= logical <= MAX_LOGICAL and milliseconds + logical):
        raise ValueError(f"no hybrid timestamp has {milliseconds} ms and the counter {logical}")
    return milliseconds << LOGICAL_BITS | logical


def physical(timestamp: int) -> int:
    """Milliseconds since the epoch."""
    return timestamp >> LOGICAL_BITS


def logical(timestamp: int) -> int:
    """The counter within the millisecond, 0 to 65535."""
    return timestamp & MAX_LOGICAL


def later(timestamp: int, milliseconds: int) -> int:
    """`timestamp` moved by `milliseconds`, its counter kept. ValueError when the result is no timestamp."""
    moved = timestamp + (milliseconds << LOGICAL_BITS)
    if not MINIMUM <= moved <= MAXIMUM:
        raise ValueError(f"{timestamp} moved by {milliseconds} ms is no hybrid timestamp")
    return moved


def next_millisecond(timestamp: int) -> int:
    """The first whole millisecond that is not before `timestamp`: until then a clock without a counter has to wait."""
    return -(-timestamp >> LOGICAL_BITS)
