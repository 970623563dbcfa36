"""The limits of one operator over all its policies, what a policy demands of them, and what it is allowed.

A policy's reconcile sees its allowance and says its demand; `core/reconcile/shared_limits.py` makes one of the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.core.planning.sharing import Grant


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """Limits over all policies together; None is no limit. `bytes_per_second` is what all rewrites read and write."""

    max_workers: int | None = None
    bytes_per_second: int | None = None

    @property
    def any(self) -> bool:
        """True when there is anything to share out."""
        return self.max_workers is not None or self.bytes_per_second is not None


NO_LIMITS = OperatorLimits()


@dataclass(frozen=True, slots=True)
class LimitDemand:
    """What a policy could use now, running jobs included, and what it has.

    `bytes_per_second` None is as much as there is; `granted` is what its running jobs were promised.
    """

    workers: int = 0
    holds: int = 0
    bytes_per_second: int | None = 0
    granted: int = 0

    @property
    def wants_work(self) -> bool:
        """True when the policy has jobs that run or could."""
        return self.workers > 0


NO_DEMAND = LimitDemand()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a policy may have of the operator's limits; a grant is None where there is no limit."""

    limits: OperatorLimits = NO_LIMITS
    workers: Grant | None = None
    bytes: Grant | None = None

    def workers_within(self, own: int) -> int:
        """How many workers may run, where the policy itself allows `own`."""
        return own if self.workers is None else min(own, self.workers.may_hold)

    def surplus(self, holds: int) -> int:
        """How many of so many workers have to be released."""
        return 0 if self.workers is None else max(0, holds - self.workers.may_keep)


NO_ALLOWANCE = Allowance()
