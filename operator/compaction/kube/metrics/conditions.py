"""The conditions of policies as gauges, so that an alert can say that a policy needs action.

One series for each status that a condition can have, 1 for the one it has and 0 for the others, as cert-manager
and Flux export theirs: an expression over one status never loses its series when the status changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from compaction.api.conditions import Condition, get_condition
from compaction.api.enums import ConditionStatus, ConditionType
from compaction.kube.informer.cache import ObjectKey

_STATUSES: Final = {
    ConditionType.READY: tuple(ConditionStatus),
    ConditionType.RECONCILING: (ConditionStatus.TRUE, ConditionStatus.FALSE),
    ConditionType.STALLED: (ConditionStatus.TRUE, ConditionStatus.FALSE),
}
"""Ready may be anything; the others are absent unless they are True."""


class ConditionMetrics:
    """`compaction_policy_condition` and `compaction_policy_reason`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.condition = Gauge(
            "compaction_policy_condition",
            "1 for the status that a condition of the policy has, 0 for the others",
            ["namespace", "policy", "condition", "status"],
            registry=registry,
        )
        self.reason = Gauge(
            "compaction_policy_reason",
            "1 for the reason of the policy's condition Ready, 0 for those it had before",
            ["namespace", "policy", "reason"],
            registry=registry,
        )
        self._set: dict[ObjectKey, tuple[Condition, ...]] = {}
        self._reasons: dict[ObjectKey, set[str]] = {}

    def set(self, policy: ObjectKey, conditions: Iterable[Condition]) -> None:
        """Show these conditions; the same ones again cost nothing."""
        told = tuple(conditions)
        if self._set.get(policy) == told:
            return
        self._set[policy] = told
        for kind, statuses in _STATUSES.items():
            found = get_condition(told, kind)
            absent = ConditionStatus.UNKNOWN if kind is ConditionType.READY else ConditionStatus.FALSE
            status = found.status if found is not None else absent
            for one in statuses:
                self.condition.labels(*policy, kind.value, one.value).set(one is status)
        ready = get_condition(told, ConditionType.READY)
        known = self._reasons.setdefault(policy, set())
        if ready is not None:
            known.add(ready.reason)
        for reason in known:
            self.reason.labels(*policy, reason).set(ready is not None and reason == ready.reason)

    def forget(self, policy: ObjectKey) -> None:
        """Drop the series of a deleted policy."""
        if self._set.pop(policy, None) is None:
            return
        for kind, statuses in _STATUSES.items():
            for one in statuses:
                self.condition.remove(*policy, kind.value, one.value)
        for reason in self._reasons.pop(policy, ()):
            self.reason.remove(*policy, reason)
