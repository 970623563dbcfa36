"""Conditions as gauges: the status a condition has is 1, the others 0, and nothing is left of a deleted policy."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from compaction.api.enums import PolicyReason
from compaction.api.policy.store import STANDING, conditions_for
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.registry import Metrics
from compaction.segments.reasons import SegmentReason

POLICY, OTHER = CacheKey("storage", "logs"), CacheKey("storage", "lake")


def stand(metrics: Metrics, policy: CacheKey, reason: PolicyReason) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    metrics.conditions.set(
        policy, conditions_for((), reason=reason, message="the particulars", observed_generation=1, now=now)
    )


def shown(metrics: Metrics, policy: CacheKey) -> dict[tuple[str, ...], float]:
    """The series of a policy: (condition, status) or (reason,) to the value."""
    return {
        tuple(value for name, value in sample.labels.items() if name not in ("namespace", "policy")): sample.value
        for family in metrics.registry.collect()
        if family.name.startswith(("compaction_policy_condition", "compaction_policy_reason"))
        for sample in family.samples
        if (sample.labels["namespace"], sample.labels["policy"]) == policy
    }


@pytest.mark.parametrize("reason", PolicyReason)
def test_each_condition_has_one_status_and_ready_one_reason(reason: PolicyReason) -> None:
    metrics = Metrics()
    stand(metrics, POLICY, reason)
    series, standing = shown(metrics, POLICY), STANDING[reason]
    assert [status for status in ("True", "False", "Unknown") if series["Ready", status]] == [standing.ready.value]
    for kind in ("Reconciling", "Stalled"):
        assert series[kind, "True"] == (standing.abnormal == kind)
        assert series[kind, "True"] + series[kind, "False"] == 1
    assert series[reason.value,] == 1


def test_a_former_reason_goes_to_zero_and_a_deleted_policy_leaves_nothing() -> None:
    metrics = Metrics()
    for reason in (PolicyReason.SENSING, SegmentReason.ROOT_NOT_FOUND, PolicyReason.SCHEDULED):
        stand(metrics, POLICY, reason)
        stand(metrics, OTHER, reason)
    assert shown(metrics, POLICY)["RootNotFound",] == 0
    assert shown(metrics, POLICY)["Scheduled",] == 1
    metrics.forget_policy(POLICY)
    assert shown(metrics, POLICY) == {}
    assert shown(metrics, OTHER)["Ready", "True"] == 1
    metrics.forget_policy(POLICY)


def test_a_policy_that_nobody_has_looked_at_is_not_ready_and_has_no_reason() -> None:
    metrics = Metrics()
    metrics.conditions.set(POLICY, ())
    assert shown(metrics, POLICY) == {
        ("Ready", "True"): 0,
        ("Ready", "False"): 0,
        ("Ready", "Unknown"): 1,
        ("Reconciling", "True"): 0,
        ("Reconciling", "False"): 1,
        ("Stalled", "True"): 0,
        ("Stalled", "False"): 1,
    }
