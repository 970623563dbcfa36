"""Bytes per second that end with a job go to the jobs that run on, once no other job could start with them.

Invariant (tests/reconcile/test_raises.py): what Leases of attempts that may still write (`shares.py`) name together is
never raised above the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compaction.core.planning.rates import Rates, topped_up, worth_raising
from compaction.core.reconcile.actions import RaiseShare
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.memory import Memory, ShareMemory, frozen
from compaction.core.reconcile.workers import shares
from compaction.core.reconcile.workers.assigning import AssignmentResult, soonest


def raised(
    assigned: AssignmentResult, steps: Iterable[JobStep], memory: Memory, *, jobs_to_come: bool, now: float
) -> tuple[tuple[RaiseShare, ...], AssignmentResult, Memory]:
    """The shares to write, beside what was assigned, and what that and the memory are then. `jobs_to_come`: jobs are
    created now.
    """
    raises: tuple[RaiseShare, ...] = ()
    before = after = memory.shares
    if assigned.rates is not None:
        idle = assigned.idle and not jobs_to_come and not memory.planning.unmade.jobs
        raises, after = _raises(before, steps, assigned.rates, now=now, may_raise=idle)
    more = sum(after.held[key].bytes_per_second - share.bytes_per_second for key, share in before.held.items())
    assigned = replace(
        assigned,
        granted=assigned.granted + more if assigned.granted is not None else None,
        demand=replace(assigned.demand, granted=assigned.demand.granted + more),
        seconds=soonest(assigned.seconds, shares.next_free(after, now=now)),
    )
    return raises, assigned, replace(memory, shares=after)


def _raises(
    held: ShareMemory, steps: Iterable[JobStep], rates: Rates, *, now: float, may_raise: bool
) -> tuple[tuple[RaiseShare, ...], ShareMemory]:
    """What was decided before is written in any case, until the Lease shows it."""
    running = {key: lease for key, lease in shares.running(steps).items() if key in held.held}
    before = [held.held[key].bytes_per_second for key in running]
    known = held.known_at is not None and held.known_at <= now
    beside = rates.beside(shares.lingering(held))
    worth = may_raise and known and worth_raising(beside.left, beside.limit)
    after = dict(zip(running, topped_up(before, beside.left) if worth else before, strict=True))
    raises = (
        RaiseShare(one.identity, after[key]) for key, one in running.items() if one.bytes_per_second != after[key]
    )
    given = {
        key: replace(share, bytes_per_second=after.get(key, share.bytes_per_second)) for key, share in held.held.items()
    }
    return tuple(raises), replace(held, held=frozen(given))
