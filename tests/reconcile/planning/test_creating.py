"""A large plan is created in pieces, so that the first jobs run while the last ones are created."""

from __future__ import annotations

from itertools import pairwise

import pytest

from compaction.core.reconcile.planning import replan
from compaction.core.reconcile.policy import reconcile
from support.cluster.world import PlainCluster


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> PlainCluster:
    """Ten logs with a job each, of which three are created at once; nobody works."""
    monkeypatch.setattr(replan, "CREATED_AT_ONCE", 3)
    world = PlainCluster()
    for number in range(10):
        world.add_log(f"/ra/{number}")
    return world


def look(world: PlainCluster) -> PlainCluster:
    world.reconcile()
    world.sense()
    return world


def test_every_planned_job_is_created_once_in_plan_order(world: PlainCluster) -> None:
    look(world)
    pieces = [[job.name for job in world.reconcile().create_jobs] for _ in range(6)]
    assert [len(piece) for piece in pieces] == [3, 3, 3, 1, 0, 0]
    assert len(world.jobs) == 10
    labels = {job.metadata.labels.get("compaction.dev/plan") for job in world.jobs.values()}
    assert len(labels) <= 1, "all are of one plan"


def test_status_tells_of_all_jobs_and_of_one_plan_from_the_beginning(world: PlainCluster) -> None:
    look(world)
    seen = []
    for _ in range(4):
        world.wall += 1
        world.reconcile()
        world.wall += 1
        world.reconcile()
        plan = world.status.plan
        assert plan is not None
        seen.append((world.status.queued, plan.jobs, plan.hash))
    assert [queued for queued, _, _ in seen] == [10, 10, 10, 10]
    assert all(before == after for before, after in pairwise(seen))


def test_jobs_of_an_outdated_plan_are_not_created_any_more(world: PlainCluster) -> None:
    look(world)
    assert len(world.reconcile().create_jobs) == 3
    world.change_spec(suspend=True)
    assert world.reconcile().create_jobs == ()
    look(world)
    assert world.reconcile().create_jobs == ()
    assert len(world.jobs) == 3


def test_a_new_look_plans_what_was_not_created_yet(world: PlainCluster) -> None:
    look(world)
    assert len(world.reconcile().create_jobs) == 3
    world.sense()
    names = {job.name for _ in range(4) for job in world.reconcile().create_jobs}
    assert len(names) == 7
    assert len(world.jobs) == 10


def test_a_restart_in_the_middle_creates_the_rest(world: PlainCluster) -> None:
    look(world)
    world.reconcile()
    world.restart()
    look(world)
    for _ in range(4):
        world.reconcile()
    assert len(world.jobs) == 10
    assert reconcile(world.snapshot()).create_jobs == ()
