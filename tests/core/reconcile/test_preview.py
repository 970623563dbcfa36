"""Previews of a policy: what another spec would do now, beside what is in force, which a preview leaves alone."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from compaction.api.names import ANNOTATION_PREVIEW
from compaction.api.policy.configuration import PolicyDefaults
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.policy.policy_status import PolicyPreview, PreviewedPlan
from compaction.api.policy.store import StoreSpec
from compaction.api.preview import MAX_PREVIEW
from compaction.api.requests import RequestOutcome
from compaction.api.text.printing import mark_of
from compaction.core.planning.debt import TargetProblem
from compaction.core.reconcile.observations import Hold
from support.cluster.world import GAIN, Crash, PlainCluster

HOUR = 3600.0
NIGHTLY = {"interval": "10m", "schedule": "0 2 * * *"}
"""The world begins on 2027-01-15 at 08:00 UTC."""


def world_with(logs: int = 2, **spec: object) -> PlainCluster:
    """Log number n has n groups."""
    world = PlainCluster(**spec)
    for number in range(1, logs + 1):
        world.add_log(f"/ra/{number}", groups=number)
    world.rest()
    return world


def spec_of(world: PlainCluster, *, store: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The spec in force with members of it changed, as a file has it."""
    assert world.policy is not None
    spec = world.policy.spec.to_object() | changes
    if store is not None:
        spec["store"] = {"segmentLogs": spec["store"]["segmentLogs"] | store}
    return spec


def ask(world: PlainCluster, spec: dict[str, Any], id: str = "first") -> PolicyPreview:
    world.annotate(preview=json.dumps({"id": id, "spec": spec}))
    world.rest()
    found = world.status.preview
    assert found is not None
    return found


def columns(found: PolicyPreview) -> tuple[PreviewedPlan, PreviewedPlan]:
    assert found.outcome is RequestOutcome.ACCEPTED, found
    assert found.in_force is not None
    assert found.proposed is not None
    return found.in_force, found.proposed


def left_out(column: PreviewedPlan) -> dict[str, int]:
    return {row.reason: row.count for row in column.plan.left_out}


FEW = {"thresholds": {"debtSegments": 2}}


def test_both_plans_stand_beside_each_other_with_what_differs() -> None:
    world = world_with(trigger=NIGHTLY)
    found = ask(world, spec_of(world, store=FEW))
    before, after = columns(found)
    assert (before.plan.jobs, before.sources, before.targets, before.plan.gain_bytes) == (2, 3, 2, 3 * GAIN)
    assert (after.plan.jobs, after.sources, after.targets, after.plan.gain_bytes) == (1, 2, 1, 2 * GAIN)
    assert (left_out(before), left_out(after)) == ({}, {"BelowThreshold": 1})
    (change,) = found.changes
    assert (change.field, change.before, change.after) == ("spec.store.segmentLogs.thresholds.debtSegments", "1", "2")
    (row,) = found.differences
    assert (row.target, row.in_force.jobs, row.proposed.jobs, row.proposed.reason) == ("/ra/1", 1, 0, "BelowThreshold")
    assert (found.id, found.generation, found.changed, found.differing) == ("first", 1, 1, 1)
    assert [reason for reason, _ in world.events if reason.startswith("Preview")] == ["Preview"]
    assert before.debt_bytes == after.debt_bytes == 3 * GAIN


def test_nothing_of_what_is_in_force_changes() -> None:
    world = world_with(approval="Manual")
    before, memory, looks = world.status, world.memory, world.readings
    ask(world, spec_of(world, store={"exclude": ["1"]}, approval="Auto", trigger={"interval": "1s"}))
    after = world.status
    answered = {"preview": after.preview, "last_handled_preview": after.last_handled_preview}
    assert before.model_copy(update=answered) == after
    assert (world.jobs, world.readings) == ({}, looks)
    assert (world.memory.planning, world.memory.store) == (memory.planning, memory.store)
    assert world.workers == {}


def test_what_the_installation_adds_is_in_both_columns() -> None:
    world = world_with(limits={"maxAttempts": 7})
    world.defaults = PolicyDefaults.from_object({"limits": {"maxAttempts": 7}})
    store = {"segmentLogs": {"root": "/ra"}}
    assert world.policy is not None
    assert world.policy.spec.store.to_object() == StoreSpec.from_object(store).to_object()
    found = ask(world, {"store": store})
    assert columns(found)[0] == columns(found)[1]
    assert found.changes == ()
    (change,) = ask(world, {"store": store, "limits": {"maxAttempts": 3}}, "second").changes
    assert (change.field, change.before, change.after) == ("spec.limits.maxAttempts", "7", "3")
    refused = ask(world, {"store": store, "limits": [7]}, "third")
    assert (refused.outcome, refused.reason) == (RequestOutcome.REFUSED, "InvalidSpec")


def test_what_is_no_longer_selected_is_in_one_plan_only() -> None:
    world = world_with(trigger=NIGHTLY)
    found = ask(world, spec_of(world, store={"exclude": ["2"]}))
    (row,) = found.differences
    assert (row.target, row.in_force.gain_bytes, row.proposed.jobs, row.proposed.reason) == ("/ra/2", 200, 0, "")


def test_a_value_is_answered_once_and_the_last_of_two_wins() -> None:
    world = world_with(trigger=NIGHTLY)
    ask(world, spec_of(world, store=FEW))
    world.restart()
    world.pass_time(HOUR, step=300)
    assert world.previews == 1, "neither again nor after a restart"
    world.annotate(preview=json.dumps({"id": "second", "spec": spec_of(world)}))
    world.reconcile()  # it is scanned for
    found = ask(world, spec_of(world, store=FEW), "third")
    assert (found.id, world.previews) == ("third", 3)
    assert sum(reason == "Preview" for reason, _ in world.events) == 2


def test_a_spec_that_changes_meanwhile_is_scanned_for_again() -> None:
    world = world_with(trigger=NIGHTLY)
    world.annotate(preview=json.dumps({"id": "first", "spec": spec_of(world)}))
    world.reconcile()
    world.change_spec(store={"segmentLogs": {"root": "/ra", **FEW}})
    world.rest()
    found = world.status.preview
    assert found is not None
    before, after = columns(found)
    assert (before.plan.jobs, after.plan.jobs, found.generation, world.previews) == (1, 2, 2, 2)


@pytest.mark.parametrize("case", ["suspend", "hold", "window", "approval", "schedule"])
def test_it_is_answered_whatever_stands_in_the_way_which_it_names(case: str) -> None:
    far = [{"schedule": "0 22 * * *", "duration": "4h"}]
    specs: dict[str, dict[str, Any]] = {
        "suspend": {"suspend": True},
        "window": {"trigger": {"windows": far}},
        "approval": {"approval": "Manual"},
        "schedule": {"trigger": NIGHTLY},
    }
    world = PlainCluster(**specs.get(case, {}))
    if case == "hold":
        world.hold = Hold("the disk moves")
    world.rest()
    world.add_log("/ra/1")
    assert world.policy is not None
    free = CompactionPolicy.from_object({"spec": {"store": {"segmentLogs": {"root": "/ra"}}}}).spec.to_object()
    before, after = columns(ask(world, free))
    reasons = {"hold": "Held", "suspend": "Suspended", "window": "OutsideWindow", "approval": "ApprovalPending"}
    assert before.begins.reason == reasons.get(case, "AwaitingSchedule")
    assert after.begins.reason == ("Held" if case == "hold" else "Due"), "a hold is the operator's"
    assert (before.plan.jobs, after.plan.jobs) == (1, 1)
    assert (before.begins.at is not None) == (case in ("window", "schedule"))
    assert world.jobs == {}


def test_nothing_due_and_jobs_that_exist_are_said() -> None:
    world = world_with(logs=1)
    assert len(world.jobs) == 1
    before, after = columns(ask(world, spec_of(world, trigger=NIGHTLY)))
    assert (left_out(before), left_out(after)) == ({"JobUnfinished": 1}, {"JobUnfinished": 1})
    assert (before.begins.reason, after.begins.reason) == ("NothingDue", "NothingDue")


@pytest.mark.parametrize(
    ("store", "names"),
    [({"root": "/elsewhere"}, "/ra -> /elsewhere"), ({"volume": {"claimName": "theirs"}}, "unset -> theirs")],
)
def test_another_store_is_refused_by_name_before_anything_is_opened(store: dict[str, Any], names: str) -> None:
    world = world_with(trigger=NIGHTLY)
    found = ask(world, spec_of(world, store=store))
    assert (found.outcome, found.reason, world.previews) == (RequestOutcome.REFUSED, "OtherStore", 0)
    assert names in found.message
    assert "spec.suspend: true" in found.message
    assert (found.in_force, found.proposed) == (None, None)
    assert [reason for reason, _ in world.events if reason.startswith("Preview")] == ["PreviewRefused"]


def test_another_kind_or_other_secrets_are_another_store() -> None:
    blocks = {"url": "s3://b/p", "index": {"secretName": "index"}, "credentialsSecretName": "mine"}
    world = PlainCluster(store={"blockStore": blocks}, suspend=True)
    for theirs in ({"url": "s3://b/p/other"}, {"credentialsSecretName": "theirs"}, {"index": {"secretName": "x"}}):
        found = ask(world, spec_of(world) | {"store": {"blockStore": blocks | theirs}}, str(theirs))
        assert found.reason == "OtherStore"
    found = ask(world, spec_of(world) | {"store": {"segmentLogs": {"root": "/ra"}}}, "kind")
    assert found.reason == "OtherStore"
    assert world.previews == 0


@pytest.mark.parametrize(
    ("value", "reason", "says"),
    [
        ("no", "InvalidSpec", "not JSON"),
        ("[" * 60_000, "InvalidSpec", "not JSON"),
        ("[]", "InvalidSpec", "holds no spec"),
        ('{"spec": {}}', "InvalidSpec", "spec.store: Field required"),
        (
            '{"spec": {"store": {"segmentLogs": {"root": "/ra", "rot": 1}}}}',
            "InvalidSpec",
            "spec.store.segmentLogs.rot",
        ),
        ('{"spec": {"store": {"segmentLogs": {"root": "/ra"}}, "suspend": "true"}}', "InvalidSpec", "spec.suspend"),
        ('{"spec": {"store": {}}}', "InvalidSpec", "exactly one store"),
        (" " * (MAX_PREVIEW + 1), "TooLong", "and a preview 65536"),
    ],
)
def test_what_is_no_spec_is_refused_with_the_field(value: str, reason: str, says: str) -> None:
    world = world_with(trigger=NIGHTLY)
    world.annotate(preview=value)
    world.rest()
    found = world.status.preview
    assert found is not None
    assert (found.outcome, found.reason, world.previews) == (RequestOutcome.REFUSED, reason, 0)
    assert says in found.message


def test_an_overlap_and_a_failed_scan_are_refused_with_their_reasons() -> None:
    world = world_with(trigger=NIGHTLY)
    world.proposed_held_by = "the older policy ns/first compacts it"
    assert ask(world, spec_of(world)).reason == "StoreOverlaps"
    world.proposed_held_by = ""
    world.problem = TargetProblem("/ra", "PermissionDenied", "/ra cannot be read")
    found = ask(world, spec_of(world, store=FEW), "second")
    assert (found.outcome, found.reason, found.message) == (
        RequestOutcome.REFUSED,
        "PermissionDenied",
        "/ra cannot be read",
    )
    assert found.changed == 1


def test_a_preview_survives_a_crash_at_every_step() -> None:
    for step in range(1, 6):
        world = world_with(trigger=NIGHTLY)
        world.annotate(preview=json.dumps({"id": "first", "spec": spec_of(world, store=FEW)}))
        died = False
        for _ in range(3):
            with suppress(Crash):
                world.reconcile(crash_after=step)
                continue
            died = True
            break
        world.rest()
        found = world.status.preview
        assert found is not None
        assert (columns(found)[1].plan.jobs, found.id) == (1, "first"), step
        assert world.policy is not None
        assert world.status.last_handled_preview == mark_of(world.policy.metadata.annotations[ANNOTATION_PREVIEW])
        assert world.jobs == {}
        assert died or step > 1
