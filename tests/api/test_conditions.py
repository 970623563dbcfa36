"""Conditions keep their order and their times, and generic tools conclude the right thing from them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from compaction.api.conditions import (
    Conditions,
    clear_failed,
    get_condition,
    is_true,
    remove_condition,
    set_complete,
    set_condition,
    set_failed,
    set_ready,
    set_reconciling,
    set_stalled,
)
from compaction.api.enums import ConditionStatus
from support.cluster.kstatus import KStatus, kstatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
SETTERS = (set_ready, set_reconciling, set_stalled, set_complete, set_failed)


def _types(conditions: Conditions) -> list[str]:
    return [condition.type for condition in conditions]


def test_the_transition_time_moves_only_with_the_status() -> None:
    first = set_condition((), type="Ready", status=False, reason="Sensing", observed_generation=1, now=NOW)
    same = set_condition(
        first, type="Ready", status=False, reason="Other", message="m", observed_generation=2, now=LATER
    )
    assert same[0].last_transition_time == NOW
    assert (same[0].reason, same[0].message, same[0].observed_generation) == ("Other", "m", 2)
    changed = set_condition(same, type="Ready", status=True, reason="Other", observed_generation=2, now=LATER)
    assert changed[0].last_transition_time == LATER


def test_unknown_is_a_status_too() -> None:
    unknown = set_condition(
        (), type="Ready", status=ConditionStatus.UNKNOWN, reason="Starting", observed_generation=1, now=NOW
    )
    assert not is_true(unknown, "Ready")
    assert get_condition(unknown, "Missing") is None
    assert remove_condition(unknown, "Ready") == ()


def test_conditions_of_others_stay() -> None:
    foreign = set_condition((), type="Audited", status=True, reason="ByHand", observed_generation=1, now=NOW)
    for setter in SETTERS:
        assert setter(foreign, reason="Word", observed_generation=1, now=NOW)[0] == foreign[0]


@given(st.lists(st.sampled_from(SETTERS), min_size=1, max_size=6))
def test_abnormal_conditions_are_there_only_while_true(steps: list) -> None:
    conditions: Conditions = ()
    for setter in steps:
        conditions = setter(conditions, reason="Word", observed_generation=3, now=NOW)
    types = _types(conditions)
    assert len(types) == len(set(types))
    assert "Ready" in types
    assert all(is_true(conditions, kind) for kind in ("Reconciling", "Stalled") if kind in types)
    assert not {"Reconciling", "Stalled"} <= set(types)
    assert is_true(conditions, "Ready") == (not {"Reconciling", "Stalled"} & set(types))


@given(st.sampled_from(SETTERS))
def test_repeating_a_step_changes_nothing(setter) -> None:
    once = setter((), reason="Word", message="text", observed_generation=3, now=NOW)
    assert setter(once, reason="Word", message="text", observed_generation=3, now=LATER) == once


def test_what_generic_tools_conclude() -> None:
    expected = dict(
        zip(
            SETTERS,
            (KStatus.CURRENT, KStatus.IN_PROGRESS, KStatus.FAILED, KStatus.CURRENT, KStatus.FAILED),
            strict=True,
        )
    )
    for setter, conclusion in expected.items():
        conditions = setter((), reason="Word", observed_generation=2, now=NOW)
        status = {"observedGeneration": 2, "conditions": [condition.to_object() for condition in conditions]}
        assert kstatus({"metadata": {"generation": 2}, "status": status}) is conclusion
        assert kstatus({"metadata": {"generation": 3}, "status": status}) is KStatus.IN_PROGRESS
        deleting = {"generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z"}
        assert kstatus({"metadata": deleting, "status": status}) is KStatus.TERMINATING


def test_an_object_nobody_has_seen_is_in_progress() -> None:
    assert kstatus({"metadata": {"generation": 1}, "status": {"observedGeneration": -1}}) is KStatus.IN_PROGRESS


def test_a_parked_job_becomes_eligible_again() -> None:
    parked = set_failed((), reason="TooManyAttempts", observed_generation=1, now=NOW)
    again = set_reconciling(clear_failed(parked), reason="Pending", observed_generation=1, now=LATER)
    assert _types(again) == ["Ready", "Reconciling"]
    done = set_complete(again, reason="Succeeded", observed_generation=1, now=LATER)
    assert _types(done) == ["Ready", "Complete"]


def test_a_long_message_is_cut_instead_of_refused() -> None:
    conditions = set_ready((), reason="Word", message="x" * 5000, observed_generation=1, now=NOW)
    assert len(conditions[0].message) == 2048
    assert conditions[0].message.endswith("…")
