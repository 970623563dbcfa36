"""Workers that hang while they start, and launches that failed before the spec was corrected."""

from __future__ import annotations

from dataclasses import replace

from compaction.reconcile.policy import reconcile
from support.world import World


def hanging() -> World:
    """The only worker has not announced itself in time."""
    world = World(workers={"max": 1})
    world.add_log("/ra/a")
    world.settle()
    assert len(world.workers) == 1
    world.wall += 301
    return world


def test_a_worker_that_hangs_is_stopped_and_counted_once_and_keeps_its_place_until_it_ends() -> None:
    world = hanging()
    first = reconcile(world.snapshot())
    assert len(first.stop_workers) == 1
    assert first.memory.launch_failures == 1
    world.memory = first.memory
    world.wall += 20
    second = reconcile(world.snapshot())
    assert (second.stop_workers, second.memory.launch_failures, second.launches) == ((), 1, ())


def test_a_worker_of_a_deleted_policy_is_stopped_once() -> None:
    world = hanging()
    world.policy, world.jobs = None, {}
    first = reconcile(world.snapshot())
    assert len(first.stop_workers) == 1
    world.memory = first.memory
    second = reconcile(world.snapshot())
    assert not second.acts
    assert second.requeue_after is not None


def test_a_corrected_spec_is_not_held_up_by_the_failures_of_the_old_one() -> None:
    world = World()
    world.launch_works = False
    world.add_log("/ra/a")
    world.settle()
    world.memory = replace(
        world.memory, launches={}, launch_failures=5, launch_error="bad conf", launch_not_before=world.wall + 300
    )
    assert reconcile(world.snapshot()).launches == ()
    world.change_spec(workers={"max": 2})
    decision = reconcile(world.snapshot())
    assert len(decision.launches) == 1
    assert (decision.memory.launch_failures, decision.memory.launch_error) == (0, "")
