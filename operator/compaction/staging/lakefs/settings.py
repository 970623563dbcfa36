"""How and when sealed tokens are merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

GRACE: Final = 6 * 3600.0
"""Seconds from a swap until old tokens are dropped: servers do not read a branch again after a listing, and a garbage
collection that misses rows deletes objects. Longer than the longest of both.
"""


DROPS_PER_SECOND: Final = 20_000
"""Rows that cleaning deletes in a second at most: servers use the same table meanwhile."""


class MergeStep(Enum):
    """What a merge does at the moment."""

    WAITING = "waiting for late writes"
    WRITING = "writing the merged token"
    PROVING = "comparing it with the sealed tokens"
    SWAPPING = "swapping it in"


def _never() -> bool:
    return False


def _silently(_step: MergeStep, _rows: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """Times in seconds.

    quiet: from the last read of a branch until its tokens are scanned; longer than the longest request of a server, so
        that late writes have landed.
    yields: a branch that changed within this time is left to those who use it.
    grace: from the swap until old tokens may be dropped.
    least_tokens: fewer sealed tokens are not merged. seals: seal the staging token first, where it has rows.
    seal_every: from one seal of ours to the next; writers give up after three new tokens.
    lease: of the merger. stop: asked before each step; True ends the merge. progress: each step, and how many rows are
        written so far.
    """

    quiet: float = 30.0
    yields: float = 60.0
    grace: float = GRACE
    least_tokens: int = 2
    seals: bool = False
    seal_every: float = 60.0
    lease: float = 300.0
    stop: Callable[[], bool] = _never
    progress: Callable[[MergeStep, int], None] = _silently

    def __post_init__(self) -> None:
        if self.least_tokens < 1 or min(self.quiet, self.yields, self.grace, self.seal_every) < 0:
            raise ValueError("least_tokens below 1 or a time below 0; correct the settings of the merge")
        if self.lease <= 2 * self.quiet:
            raise ValueError("a lease that ends within twice the quiet period; make it longer")

    def shown_by(self, progress: Callable[[MergeStep, int], None]) -> MergeSettings:
        """The same settings with a progress."""
        return replace(self, progress=progress)
