"""The coordinator's low watermark: readers may use the catalog from there on
(docs/design/catalog-compaction.md#the-watermark-of-the-coordinator).
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.hybrid import MINIMUM, hybrid, physical


@dataclass(frozen=True, slots=True)
class WatermarkRule:
    """Milliseconds: how often the watermark moves, how long versions stay readable, how far clocks may differ."""

    update_interval: int
    data_availability: int
    max_skew: int


def moved(watermark: int, rule: WatermarkRule, now: int) -> int:
    """The watermark at `now` (milliseconds since the epoch): it only grows, also when the clock jumps back."""
    age = rule.data_availability + rule.max_skew
    candidate = hybrid(now - age) if now > age else MINIMUM
    return max(watermark, candidate)


def due_in(watermark: int, rule: WatermarkRule, now: int) -> int:
    """Milliseconds until the watermark may move by an interval, 0 when it may now; one is due at once without one."""
    if watermark == UNDEFINED:
        return 0
    reached = physical(watermark) + rule.data_availability + rule.max_skew
    return max(0, reached + rule.update_interval - now)
