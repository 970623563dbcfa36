"""What views of all kinds have in common: ages, times, and whether a status is up to date."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from compaction.api.catalog.resource import CatalogCompaction
from compaction.api.catalog.status import CatalogCompactionStatus
from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType
from compaction.api.policy.resource import CompactionPolicy, CompactionPolicyStatus
from compaction.api.text.formatting import format_age
from compaction.api.text.times import format_timestamp
from compaction.cli.output import Column
from compaction.core.explain.coordination import Coordination

Data = dict[str, Any]
NAMESPACE: Final = Column("namespace", "Namespace")


def seconds_between(start: datetime | None, end: datetime | None) -> int | None:
    """Whole seconds, at least 0; None while one of the two is not known."""
    return None if start is None or end is None else max(0, int((end - start).total_seconds()))


def time_text(moment: datetime | None) -> str | None:
    """RFC 3339; None for what is not known."""
    return None if moment is None else format_timestamp(moment)


def age_text(seconds: int | None) -> str:
    """`2m10s`, or `-`."""
    return "-" if seconds is None else format_age(seconds)


def since_text(status: CompactionPolicyStatus | CatalogCompactionStatus, now: datetime) -> str:
    """` for 2m10s`: how long Ready has had its reason."""
    ready = get_condition(status.conditions, ConditionType.READY)
    if ready is None:
        return ""
    return f" for {format_age((now - (status.reason_since or ready.last_transition_time)) / timedelta(seconds=1))}"


def is_observed(one: CompactionPolicy | CatalogCompaction) -> bool:
    """Whether the status is of the spec as it is now."""
    return one.status.observed_generation >= one.metadata.generation


def coordinator_data(coordinator: Coordination, now: datetime) -> Data:
    """Who coordinates, in exact values."""
    return {
        "state": coordinator.state.value,
        "holder": coordinator.holder or None,
        "renewedSeconds": seconds_between(coordinator.renewed, now),
    }


def outdated_pairs(
    one: CompactionPolicy | CatalogCompaction, noun: str, coordinator: Coordination, now: datetime
) -> list[tuple[str, str]]:
    """Why what follows is of a former time."""
    pairs = [("Operator", coordinator.sentence(now))] if coordinator.is_missing else []
    if is_observed(one):
        return pairs
    observed, generation = one.status.observed_generation, one.metadata.generation
    if observed < 0:
        return [*pairs, ("Observed", f"never: no operator has observed the {noun} yet")]
    said = f"generation {observed} of {generation}: the operator has not seen the newest spec yet"
    return [*pairs, ("Observed", said)]
