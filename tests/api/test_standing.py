"""What a reason makes of Ready, Reconciling and Stalled: as docs/resources.md says, and as tools read it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import ConditionType, PolicyReason
from compaction.api.policy.store import STANDING, PolicyStanding, conditions_for, standing_of
from compaction.registry import all_kinds, policy_standing
from support.cluster.argo import health
from support.cluster.kstatus import KStatus, Verdict, argo_sync, flux_wait, kstatus, kubectl_wait

PAGE = Path(__file__).resolve().parents[2] / "docs" / "resources.md"
CELL = r"[ ]*(\w*)[ ]*\|"
ROW = re.compile(rf"^\| (`[^|]*`) \|{CELL}{CELL}{CELL} .+ \|$", re.MULTILINE)
NOW = datetime(2026, 1, 1, tzinfo=UTC)

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
    shown = "Suspended" if reason == PolicyReason.SUSPENDED else expected
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
