"""Conditions keep their order and their times, and generic tools conclude the right thing from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
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
from compaction.api.enums import (
    AttemptOutcome,
    ConditionStatus,
    ConditionType,
    JobReason,
    JobState,
    PolicyReason,
    WaitReason,
)
from compaction.api.policy.store import STANDING, PolicyStanding, conditions_for, standing_of
from compaction.api.preview import BeginReason
from compaction.api.requests import RequestOutcome, RequestReason
from compaction.blocks.planning.batches import BlockReason
from compaction.blocks.reasons import BlockJobReason
from compaction.core.planning.candidates import LeftOutReason
from compaction.registry import all_kinds, policy_standing
from compaction.segments.planning.plan import LeftAloneReason
from compaction.segments.reasons import SegmentReason
from compaction.segments.scan.find import LogErrorReason
from compaction.staging.reasons import StagingReason
from support.cluster.explained import KStatus, Verdict, argo_sync, flux_wait, health, kstatus, kubectl_wait

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
Setter = Callable[..., Conditions]
SETTERS: tuple[Setter, ...] = (set_ready, set_reconciling, set_stalled, set_complete, set_failed)


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
def test_abnormal_conditions_are_there_only_while_true(steps: list[Setter]) -> None:
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
def test_repeating_a_step_changes_nothing(setter: Setter) -> None:
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


# What a reason makes of Ready, Reconciling and Stalled: as docs/resources.md says, and as tools read it.

PAGE = Path(__file__).resolve().parents[2] / "docs" / "resources.md"
CELL = r"[ ]*(\w*)[ ]*\|"
ROW = re.compile(rf"^\| (`[^|]*`) \|{CELL}{CELL}{CELL} .+ \|$", re.MULTILINE)

CONCLUSIONS = {
    # kstatus, Flux's wait, Argo CD's health, `kubectl wait --for=condition=Ready`
    PolicyStanding.WORKING: (KStatus.CURRENT, Verdict.PASSES, "Healthy", Verdict.PASSES),
    PolicyStanding.APPLYING: (KStatus.IN_PROGRESS, Verdict.WAITS, "Progressing", Verdict.WAITS),
    PolicyStanding.ASKING: (KStatus.IN_PROGRESS, Verdict.WAITS, "Suspended", Verdict.WAITS),
    PolicyStanding.STALLED: (KStatus.FAILED, Verdict.FAILS, "Degraded", Verdict.WAITS),
}

REASONS = [*PolicyReason, *(reason for kind in all_kinds() for reason in kind.words.policies)]
"""Those of the core and of all kinds."""


def documented() -> dict[str, tuple[str, str, str]]:
    """(Ready, Reconciling, Stalled) by reason, from the page; a condition that is absent is empty."""
    rows: dict[str, tuple[str, str, str]] = {}
    for row in ROW.finditer(PAGE.read_text(encoding="utf-8")):
        for reason in re.findall(r"`(\w+)`", row[1]):
            assert reason not in rows, f"{reason} has two rows"
            rows[reason] = (row[2], row[3], row[4])
    return rows


def policy_with(reason: str, *, generation: int = 2) -> dict[str, Any]:
    conditions = conditions_for(
        (),
        reason=reason,
        message="the particulars",
        observed_generation=2,
        now=NOW,
        standing=policy_standing(reason),
    )
    status = {"observedGeneration": 2, "conditions": [condition.to_object() for condition in conditions]}
    return {"metadata": {"generation": generation}, "status": status}


def test_every_reason_has_a_standing_and_a_row() -> None:
    assert set(STANDING) == set(PolicyReason)
    assert set(documented()) == set(REASONS)


@pytest.mark.parametrize("reason", REASONS)
def test_the_conditions_are_those_of_the_page(reason: str) -> None:
    found = {item["type"]: item["status"] for item in policy_with(reason)["status"]["conditions"]}
    kinds = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED)
    assert tuple(found.get(kind, "") for kind in kinds) == documented()[reason]


@pytest.mark.parametrize("reason", REASONS)
def test_tools_conclude_what_the_standing_means(reason: str) -> None:
    found = policy_with(reason)
    state, waiting, expected, ready = CONCLUSIONS[policy_standing(reason)]
    assert (kstatus(found), flux_wait(found), kubectl_wait(found, "Ready")) == (state, waiting, ready)
    shown = "Suspended" if reason in (PolicyReason.SUSPENDED, PolicyReason.HELD) else expected
    status, message = health(found)
    assert (status, message) == (shown, f"{reason}: the particulars")
    outdated = policy_with(reason, generation=3)
    assert (kstatus(outdated), flux_wait(outdated), argo_sync(health(outdated)[0])) == (
        KStatus.IN_PROGRESS,
        Verdict.WAITS,
        Verdict.WAITS,
    )


@pytest.mark.parametrize("before", PolicyReason)
@pytest.mark.parametrize("after", PolicyReason)
def test_a_standing_leaves_nothing_of_the_one_before(before: PolicyReason, after: PolicyReason) -> None:
    arguments: dict[str, Any] = {"message": "the particulars", "observed_generation": 2, "now": NOW}
    changed = conditions_for(conditions_for((), reason=before, **arguments), reason=after, **arguments)
    fresh = conditions_for((), reason=after, **arguments)
    assert {(item.type, item.status, item.reason) for item in changed} == {
        (item.type, item.status, item.reason) for item in fresh
    }


def test_only_a_standing_of_its_own_is_ready_and_an_unknown_reason_is_a_store_that_cannot_be_used() -> None:
    assert standing_of("NoSuchBucket") is PolicyStanding.STALLED


# docs/resources.md knows every reason a user can meet, and none that does not exist.

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "resources.md").read_text(encoding="utf-8")
WORDS: tuple[type[StrEnum], ...] = (
    PolicyReason,
    JobReason,
    WaitReason,
    LogErrorReason,
    LeftAloneReason,
    LeftOutReason,
    BlockReason,
    BlockJobReason,
    SegmentReason,
    StagingReason,
    AttemptOutcome,
    JobState,
    ConditionType,
    RequestReason,
    RequestOutcome,
    BeginReason,
)


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.__name__)
def test_every_word_is_explained(words: type[StrEnum]) -> None:
    assert [word.value for word in words if f"`{word.value}`" not in TEXT] == []


def test_every_reason_explained_exists() -> None:
    known = {word.value for words in WORDS for word in words}
    tables = re.findall(r"^\| (`[^|]*`) \|", TEXT, flags=re.MULTILINE)
    named = {name for cell in tables for name in re.findall(r"`([A-Za-z]+)`", cell)}
    assert named - known - {"CompactionPolicy", "CompactionJob", "CatalogCompaction"} == set()
