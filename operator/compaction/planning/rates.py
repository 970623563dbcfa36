"""Shares of `limits.bytesPerSecond`: who may start, and how fast it may go.

Invariants (tests/planning/test_rates.py): what is granted never exceeds the limit, unless the limit was lowered under
running jobs; when nothing runs, a job may start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Rates:
    """The limit of a policy, what its running jobs have of it, and what the next job gets (bytes per second).

    `ceiling`: what they may have together for now, where others still hold what is this policy's; None is the limit.
    """

    limit: int
    granted: int
    share: int
    ceiling: int | None = None

    @property
    def room(self) -> int:
        """How many more jobs may start."""
        limit = self.limit if self.ceiling is None else min(self.limit, self.ceiling)
        return max(0, limit - self.granted) // self.share

    def after(self, started: int) -> Rates:
        """The same when so many more jobs have got their shares."""
        return replace(self, granted=self.granted + self.share * started)


def share_of(limit: int, *, jobs: int) -> int:
    """The share of each of so many jobs that could run at once: at least 1."""
    return max(1, limit // max(1, jobs))
