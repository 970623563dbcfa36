"""A job that fails as a whole is halved until the culprit is alone, whatever is forgotten on the way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.api.enums import JobState
from support.cluster.world import PlainCluster
from support.depth import examples

P, F = JobState.IN_PROGRESS, JobState.FAULTY


def run(world: PlainCluster, culprits: set[str], *, rounds: int, restart_every: int = 0) -> list[frozenset[str]]:
    """Workers do every job but those with a culprit in them; returns the groups of the jobs that failed, in order."""
    failed: list[frozenset[str]] = []
    for round in range(1, rounds + 1):
        world.settle()
        if restart_every and round % restart_every == 0:
            world.restart()
            world.settle()
        if not any(worker.has_lease for worker in world.workers.values()):
            world.announce()
            world.settle()
        for job in world.in_state(P):
            sources = world.jobs[job].spec.sources.segment_log
            assert sources is not None
            names = frozenset(group.segments[0] for group in sources.groups)
            if names & culprits:
                failed.append(names)
                world.report(job, outcome="Failed", reason="VerificationFailed")
            else:
                world.finish(job)
        world.wall += 61
        for worker in world.workers.values():
            worker.changed_at = world.wall
    return failed


def assert_none_twice(failed: list[frozenset[str]]) -> None:
    """Single groups are tried again, when others had their turn; several together never."""
    whole = [names for names in failed if len(names) > 1]
    assert len(set(whole)) == len(whole), "a split was forgotten"


@pytest.mark.parametrize(("history", "queued"), [(10, 1000), (0, 1000), (10, 1), (0, 1), (1, 2)])
@pytest.mark.parametrize("restart_every", [0, 2])
def test_it_converges_whatever_is_forgotten(history: int, queued: int, restart_every: int) -> None:
    world = PlainCluster(failedJobsHistoryLimit=history, limits={"maxAttempts": 1, "maxJobsQueued": queued})
    log = world.add_log("/ra/a", 8)
    culprit = log.groups[5]
    failed = run(world, {culprit}, rounds=40, restart_every=restart_every)
    assert log.groups == [culprit], "everything else was compacted"
    assert [len(names) for names in failed][:3] == [8, 4, 2]
    assert_none_twice(failed)


@given(
    groups=st.integers(2, 9),
    culprits=st.sets(st.integers(0, 8), max_size=4),
    history=st.integers(0, 2),
    queued=st.integers(1, 4),
    restart_every=st.integers(0, 3),
)
@settings(max_examples=examples(25))
def test_only_the_culprits_are_left(
    groups: int, culprits: set[int], history: int, queued: int, restart_every: int
) -> None:
    world = PlainCluster(failedJobsHistoryLimit=history, limits={"maxAttempts": 1, "maxJobsQueued": queued})
    log = world.add_log("/ra/a", groups)
    bad = {log.groups[i] for i in culprits if i < groups}
    failed = run(world, bad, rounds=60, restart_every=restart_every)
    assert set(log.groups) == bad
    assert_none_twice(failed)


def test_a_record_goes_when_its_work_is_done() -> None:
    world = PlainCluster(failedJobsHistoryLimit=0, limits={"maxAttempts": 1})
    log = world.add_log("/ra/a", 4)
    run(world, set(log.groups), rounds=4)
    assert len(world.in_state(F)) > 0
    run(world, set(), rounds=40)
    assert log.groups == []
    assert world.in_state(F) == []
