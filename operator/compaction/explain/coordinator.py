"""Who coordinates, as far as the Leases in the policy's namespace tell. For people only: nothing is decided on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from compaction.api.names import COORDINATOR_LEASE
from compaction.explain.explanation import Telling
from compaction.leases.record import Lease

SILENT_AFTER: Final = 4
"""So many lease durations without a renewal, by the writer's own clock, and nobody seems to be there."""
_START: Final = "Start the operator: compactor operator --namespace NAMESPACE"


def tell_coordinator(telling: Telling, leases: Sequence[Lease] | None, now: datetime, *, seen: bool) -> None:
    """Say it when nobody coordinates, because then nothing happens at all.

    Args:
        leases: those of the namespace; None when they may not be read.
        seen: whether an operator has ever looked at the object.
    """
    lease = next((one for one in leases or () if one.name == COORDINATOR_LEASE), None)
    if lease is None:
        if not seen:
            telling.now("No operator has looked at it yet.")
            telling.next("The first look follows when an operator runs that watches the namespace.")
            telling.todo(_START)
        return
    record = lease.record
    if record.holder is None:
        telling.now("Nobody coordinates: the last operator has released its Lease.")
    elif record.renew_time is not None and now - record.renew_time > _patience(record.duration_seconds):
        silent = telling.age(record.renew_time)
        telling.now(f"Nobody seems to coordinate: {record.holder} renewed its Lease {silent} ago, by its own clock.")
    else:
        return
    telling.next("Nothing happens until an operator leads; workers that run finish what they have.")
    telling.todo(_START)


def _patience(duration_seconds: int | None) -> timedelta:
    return timedelta(seconds=SILENT_AFTER * (duration_seconds or 15))
