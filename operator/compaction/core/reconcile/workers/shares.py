"""Who has a share of the bytes per second, and may still write with it.

A share may be in use for longer than its attempt is known to run. So an attempt that ends without a report (its worker
went silent, its Lease or its job was deleted) keeps its share for one more duration of its lease: its worker has
stopped by then, whatever it could not learn. A share that was decided on counts from that moment: a write without an
answer may have happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compaction.api.enums import JobState
from compaction.core.reconcile.jobs.job import token_of
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.memory import HeldShare, ShareMemory, frozen
from compaction.core.reconcile.observations import JobLease, PolicySnapshot

Attempt = tuple[str, int]
"""A job and its token."""


def noted(
    shares: ShareMemory, steps: Iterable[JobStep], snapshot: PolicySnapshot, *, lease_seconds: float
) -> ShareMemory:
    """Who has a share now. `lease_seconds` is what attempts have that ended before this term."""
    now = snapshot.now.monotonic
    held: dict[Attempt, HeldShare] = {}
    for key, lease in running(steps).items():
        known = shares.held.get(key)
        if lease.bytes_per_second is not None:
            decided = known.bytes_per_second if known is not None else 0
            held[key] = HeldShare(max(lease.bytes_per_second, decided), lease.duration)
    reported = _reported(snapshot)
    for key, share in shares.held.items():
        until = share.until if share.until is not None else now + share.duration
        if key not in held and key not in reported and until > now:
            held[key] = replace(share, until=until)
    known_at = now + lease_seconds if shares.known_at is None else shares.known_at
    return ShareMemory(frozen(held), known_at)


def granted_to(step: JobStep, shares: ShareMemory) -> int | None:
    """The bytes per second that a running job may read and write: what was decided, or its Lease says; its status
    repeats it.
    """
    held = shares.held.get((step.name, token_of(step.status)))
    if held is not None:
        return held.bytes_per_second
    return step.status.attempts[-1].bytes_per_second if step.status.attempts else None


def lingering(shares: ShareMemory) -> int:
    """Bytes per second of attempts that have ended without a report and may still write."""
    return sum(share.bytes_per_second for share in shares.held.values() if share.until is not None)


def next_free(shares: ShareMemory, *, now: float) -> float | None:
    """Seconds until more is known to be free; None when nothing is waited for."""
    moments = [share.until for share in shares.held.values() if share.until is not None]
    if len(moments) < len(shares.held) and shares.known_at is not None:
        moments.append(shares.known_at)
    return min((at - now for at in moments if at > now), default=None)


def running(steps: Iterable[JobStep]) -> dict[Attempt, JobLease]:
    """The Leases of the attempts that run."""
    found = ((step.name, token_of(step.status), step) for step in steps if step.state is JobState.IN_PROGRESS)
    return {(name, token): step.lease for name, token, step in found if step.lease is not None}


def _reported(snapshot: PolicySnapshot) -> set[Attempt]:
    """Attempts whose worker has left its last word: nothing of them writes any more."""
    leases = [view.lease for view in snapshot.jobs if view.lease is not None] + list(snapshot.stray_leases)
    return {
        (lease.identity.name, lease.report.token if lease.report is not None else lease.token)
        for lease in leases
        if lease.report is not None or lease.report_error
    }
