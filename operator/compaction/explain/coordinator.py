"""The sentences of `why` about the coordinator: without one nothing happens at all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from compaction.explain.coordination import Leadership, coordination
from compaction.explain.explanation import Telling
from compaction.leases.record import Lease

_START: Final = "Start the operator: compactor operator --namespace NAMESPACE"


def tell_coordinator(
    telling: Telling, leases: Sequence[Lease] | None, now: datetime, *, namespace: str, seen: bool
) -> None:
    """Say it when nobody coordinates.

    Args:
        leases: those of the object's namespace; None when they may not be read.
        seen: whether an operator has ever looked at the object.
    """
    found = coordination(leases, namespace, now, complete=False)
    if found.is_missing:
        telling.now(found.sentence(now))
        telling.next("Nothing happens until an operator leads; workers that run finish what they have.")
        telling.todo(_START)
    elif found.state is Leadership.UNKNOWN and not seen:
        telling.now("No operator has looked at it yet.")
        telling.next("The first look follows when an operator runs that watches the namespace.")
        telling.todo(_START)
