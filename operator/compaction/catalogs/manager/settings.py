"""What all processes of one catalog must agree on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """`delay`: milliseconds from an update's timestamp to its activation, in which it reaches every process.
    `max_skew`: most milliseconds that the clocks of two processes are apart. `partitions`: of a zone that names no
    number. `slowest_append`: most milliseconds from reading the clock to the log's answer (`wait_complete`).

    ValueError for a negative time or no partition.
    """

    delay: int = 500
    max_skew: int = 500
    partitions: int = 25
    slowest_append: int = 1_000

    def __post_init__(self) -> None:
        if min(self.delay, self.max_skew, self.slowest_append) < 0 or self.partitions < 1:
            raise ValueError(f"a catalog needs times from 0 and a partition at least: {self}")
