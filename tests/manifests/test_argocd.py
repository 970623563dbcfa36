"""Argo CD's health script (Lua, as its own interpreter runs it) agrees with kstatus in every phase."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.api.enums import JobReason
from compaction.core.planning.debt import TargetProblem
from compaction.segments.reasons import SegmentReason
from support.cluster.argo import health
from support.cluster.kstatus import KStatus, kstatus
from support.cluster.world import PlainCluster

SAME = {
    KStatus.CURRENT: {"Healthy", "Suspended"},
    KStatus.IN_PROGRESS: {"Progressing"},
    KStatus.FAILED: {"Degraded"},
}


def policies() -> list[tuple[str, dict[str, Any]]]:
    """A policy in its phases, with the health that is expected."""
    world = PlainCluster()
    seen: list[tuple[str, dict[str, Any]]] = []

    def note(expected: str) -> None:
        assert world.policy is not None
        seen.append((expected, world.policy.to_object()))

    note("Progressing")
    world.rest()
    note("Healthy")
    world.add_log("/ra/a")
    world.wall += 3600
    world.rest()
    note("Healthy")
    world.announce()
    world.rest()
    world.finish(world.only_job())
    world.rest()
    world.wall += 3600
    world.rest()
    note("Healthy")
    world.change_spec(suspend=True)
    note("Progressing")
    world.rest()
    note("Suspended")
    world.change_spec(suspend=False)
    world.problem = TargetProblem("/ra", SegmentReason.ROOT_NOT_FOUND, "/ra does not exist: create it")
    world.rest()
    note("Degraded")
    return seen


@pytest.mark.parametrize(("expected", "found"), policies())
def test_a_policy_in_its_phases(expected: str, found: dict[str, Any]) -> None:
    status, message = health(found)
    assert status == expected
    assert status in SAME[kstatus(found)]
    assert message


def test_what_is_wrong_is_said() -> None:
    assert health(policies()[-1][1])[1] == "RootNotFound: /ra does not exist: create it"


def test_a_job_in_its_states() -> None:
    world = PlainCluster(limits={"maxAttempts": 1})
    world.add_log("/ra/a")
    world.add_log("/ra/b")
    world.settle()
    world.announce()
    world.settle()
    failed, done = sorted(world.jobs)
    before = {health(world.jobs[name].to_object())[0] for name in (failed, done)}
    world.report(failed, outcome="Failed", reason=JobReason.STORE_UNREADABLE)
    world.finish(done)
    world.settle()
    after = [health(world.jobs[name].to_object())[0] for name in (failed, done)]
    assert (before, after) == ({"Progressing"}, ["Degraded", "Healthy"])
