"""The sentences of `why` about the coordinator: without one nothing happens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from compaction.core.explain.coordination import Leadership, coordination
from compaction.core.explain.explanation import ExplanationBuilder
from compaction.leases.record import Lease

_WITHOUT: Final = "Nothing is planned or assigned until an operator leads; running workers finish their jobs."
_FIRST: Final = "The first scan follows when an operator watches the namespace."


def tell_coordinator(
    telling: ExplanationBuilder,
    leases: Sequence[Lease] | None,
    now: datetime,
    *,
    namespace: str,
    seen: bool,
    without: str = _WITHOUT,
    first: str = _FIRST,
) -> None:
    """Report that no operator coordinates.

    Args:
        leases: those of the object's namespace; None when they may not be read.
        seen: whether an operator has ever observed the object.
        without, first: what follows while none coordinates, and when the first one does.
    """
    found = coordination(leases, namespace, now, complete=False)
    if found.is_missing:
        telling.state(found.sentence(now))
        telling.next(without)
        telling.actions(f"Start the operator: compactor operator --namespace {namespace}")
    elif found.state is Leadership.UNKNOWN and not seen:
        telling.state("No operator has observed it yet.")
        telling.next(first)
        telling.actions(f"Start the operator: compactor operator --namespace {namespace}")
