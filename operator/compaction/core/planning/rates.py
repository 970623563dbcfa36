"""Shares of `limits.bytesPerSecond`: who may start, and how fast it may go.

Invariants (tests/planning/test_rates.py): what is granted never exceeds the limit, unless the limit was lowered under
running jobs; when nothing runs, a job may start; while a job could run, less than a tenth of the limit is granted to
none, and while jobs run and no other could start, less than a twentieth. A share is never cut: those that start later
divide what is left, however much that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_WORTH: Final = 10
"""A job starts with less than a fair share when at least this part of the limit is left: else it would lie idle."""

_WORTH_RAISING: Final = 20
"""Running jobs get what is left when it is at least this part of the limit: each raise is a write for each of them."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The limit of a policy, and what its running jobs have of it (bytes per second).

    `share`: of each job if all that could run began now. `coming`: how many could start beside those that run.
    `ceiling`: what they may have together for now, where others still hold what is this policy's; None is the limit.
    """

    limit: int
    granted: int
    share: int
    coming: int = 1
    ceiling: int | None = None

    @property
    def left(self) -> int:
        """What is granted to no job."""
        limit = self.limit if self.ceiling is None else min(self.limit, self.ceiling)
        return max(0, limit - self.granted)

    @property
    def room(self) -> int:
        """How many more jobs may start."""
        whole = self.left // self.share
        # What others still hold does not lie idle: a job that began with a little of it would keep that to its end.
        lies_idle = self.limit - self.granted == self.left
        # Of a limit of nothing (a policy that had no job when the operator's limit was divided) a tenth is nothing.
        return whole or int(lies_idle and self.left * _WORTH >= max(1, self.limit))

    @property
    def each(self) -> int:
        """What each of the next jobs gets: all that is left, divided between those that could start; at least 1."""
        return max(1, self.left // max(1, min(self.room, self.coming)))

    def beside(self, others: int) -> Rates:
        """The same where so many bytes per second more are granted, to what is no job of these."""
        return replace(self, granted=self.granted + others)

    def after(self, started: int) -> Rates:
        """The same when so many more jobs have got what is theirs."""
        return replace(self, granted=self.granted + self.each * started)


def share_of(limit: int, *, jobs: int) -> int:
    """The share of each of so many jobs that could run at once: at least 1."""
    return max(1, limit // max(1, jobs))


def worth_raising(left: int, limit: int) -> bool:
    """Whether what is left of a limit is enough to raise the shares of the jobs that run."""
    return left * _WORTH_RAISING >= max(1, limit)


def topped_up(granted: Sequence[int], left: int) -> tuple[int, ...]:
    """The shares of running jobs when `left` is divided between them: the smallest are raised first, none is cut."""
    level, lowest = 0, sorted(granted)
    whole = left
    for count, share in enumerate(lowest, 1):
        whole += share
        level = whole // count
        if count == len(lowest) or level <= lowest[count]:
            break
    return tuple(max(share, level) for share in granted)
