"""The conditions of objects as gauges, so that an alert can say that a policy or a catalog needs action.

One series for each status that a condition can have, 1 for the one it has and 0 for the others, as cert-manager
and Flux export theirs: an expression over one status never loses its series when the status changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from compaction.api.conditions import Condition, get_condition
from compaction.api.enums import ConditionStatus, ConditionType
from compaction.kube.informer.cache import CacheKey

_STATUSES: Final = {
    ConditionType.READY: tuple(ConditionStatus),
    ConditionType.RECONCILING: (ConditionStatus.TRUE, ConditionStatus.FALSE),
    ConditionType.STALLED: (ConditionStatus.TRUE, ConditionStatus.FALSE),
}
"""Ready may be anything; the others are absent unless they are True."""


class ConditionMetrics:
    """`compaction_policy_condition` and `compaction_policy_reason`; of catalogs with `noun="catalog"`."""

    def __init__(self, registry: CollectorRegistry, noun: str = "policy") -> None:
        self.condition = Gauge(
            f"compaction_{noun}_condition",
            f"1 for the status that a condition of the {noun} has, 0 for the others",
            ["namespace", noun, "condition", "status"],
            registry=registry,
        )
        self.reason = Gauge(
            f"compaction_{noun}_reason",
            f"1 for the reason of the {noun}'s condition Ready, 0 for those it had before",
            ["namespace", noun, "reason"],
            registry=registry,
        )
        self._set: dict[CacheKey, tuple[Condition, ...]] = {}
        self._reasons: dict[CacheKey, set[str]] = {}

    def set(self, key: CacheKey, conditions: Iterable[Condition]) -> None:
        """Show these conditions; the same ones again cost nothing."""
        shown = tuple(conditions)
        if self._set.get(key) == shown:
            return
        self._set[key] = shown
        for kind, statuses in _STATUSES.items():
            found = get_condition(shown, kind)
            absent = ConditionStatus.UNKNOWN if kind is ConditionType.READY else ConditionStatus.FALSE
            status = found.status if found is not None else absent
            for item in statuses:
                self.condition.labels(*key, kind.value, item.value).set(item is status)
        ready = get_condition(shown, ConditionType.READY)
        known = self._reasons.setdefault(key, set())
        if ready is not None:
            known.add(ready.reason)
        for reason in known:
            self.reason.labels(*key, reason).set(ready is not None and reason == ready.reason)

    def forget(self, key: CacheKey) -> None:
        """Drop the series of a deleted object."""
        if self._set.pop(key, None) is None:
            return
        for kind, statuses in _STATUSES.items():
            for status in statuses:
                self.condition.remove(*key, kind.value, status.value)
        for reason in self._reasons.pop(key, ()):
            self.reason.remove(*key, reason)
