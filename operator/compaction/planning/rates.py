"""Shares of `limits.bytesPerSecond`: who may start, and how fast it may go.

Invariants (tests/planning/test_rates.py): what is granted never exceeds the limit, unless the limit was lowered under
running jobs; when nothing runs, a job may start.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """The limit of a policy, what its running jobs have of it, and what the next job gets (bytes per second)."""

    limit: int
    granted: int
    share: int

    @property
    def room(self) -> int:
        """How many more jobs may start."""
        return max(0, self.limit - self.granted) // self.share


def share_of(limit: int, *, jobs: int) -> int:
    """The share of each of so many jobs that could run at once: at least 1."""
    return max(1, limit // max(1, jobs))
