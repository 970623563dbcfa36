"""A policy rests when deciding again decides nothing; `PlainCluster` holds every rest of every test here to that."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from compaction.api.conditions import get_condition
from compaction.api.enums import JobState
from compaction.api.policy.store import StoreSpec
from compaction.core.planning.debt import TargetProblem
from compaction.core.planning.scheduler import Grant
from compaction.core.reconcile.actions import Decision, Rest
from compaction.core.reconcile.observations import Allowance, OperatorLimits
from compaction.core.reconcile.status.summary import LAZY_GAP
from compaction.core.reconcile.store_work import LONGEST_PAUSE, Claimant, older_owner, pause, said, share_a_store
from support.cluster.world import PlainCluster

CLOSED = {"schedule": "0 0 1 1 *", "duration": "1m"}
NO_WORKER = Allowance(OperatorLimits(max_workers=8), workers=Grant(0, 0, 0))
PROBLEM = TargetProblem("/ra", "SenseFailed", "gone")
A_WORKER = Allowance(OperatorLimits(max_workers=8), workers=Grant(1, 1, 1))


def rested(world: PlainCluster) -> Decision:
    """A few looks later, with everything written."""
    for _ in range(4):
        world.pass_time(31)
        decision = world.rest()
    return decision


def rest_of(world: PlainCluster) -> Rest:
    rest = rested(world).rest
    assert rest is not None
    return rest


def waiting(**spec: object) -> PlainCluster:
    """All jobs wait for a window that is closed."""
    world = PlainCluster(trigger={"interval": "30s", "windows": [CLOSED]}, **spec)
    world.add_log("/ra/a")
    world.add_log("/ra/b")
    return world


def test_jobs_that_wait_for_a_window_rest_between_looks() -> None:
    world = waiting()
    rest = rest_of(world)
    assert world.reading is not None
    assert rest.look_at == pytest.approx(world.reading.started + 30)
    assert world.wall + 200 < rest.until <= world.wall + LAZY_GAP
    assert len(world.jobs) == 2


def test_an_empty_store_rests() -> None:
    assert rest_of(PlainCluster()).until > 0


def test_a_rest_ends_when_the_window_opens() -> None:
    windows = [{"schedule": "*/2 * * * *", "duration": "1m"}]
    world = PlainCluster(trigger={"interval": "30s", "windows": windows}, suspend=True)
    world.add_log("/ra/a")
    assert rest_of(world).until <= world.wall + 120


def test_who_has_a_worker_or_a_job_in_progress_does_not_rest() -> None:
    world = PlainCluster()
    world.add_log("/ra/a")
    assert world.rest().rest is None, "a worker is started"
    world.announce()
    assert world.rest().rest is None, "a job is in progress"


def test_a_job_that_goes_away_is_planned_again_although_the_store_is_the_same() -> None:
    """The rest ends with the change; the look after it counts as new, whatever it finds."""
    world = waiting()
    rested(world)
    gone = min(world.jobs)
    del world.jobs[gone]
    assert world.rest().rest is None
    world.pass_time(31)
    assert gone in world.jobs


def test_what_a_cooldown_left_out_is_planned_when_it_ends() -> None:
    world = PlainCluster(trigger={"interval": "30s", "cooldown": "1h"})
    log = world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.rest()
    (job,) = world.jobs
    world.report(job)
    world.rest()
    for worker in world.workers.values():
        worker.process, worker.has_lease = "ended", False
    log.groups.append("0000000000000009.segment")
    assert rested(world).rest is None, "the clock alone makes it due"
    world.pass_time(3600)
    assert len(world.jobs) == 2


def test_nobody_rests_on_a_look_that_failed() -> None:
    world = waiting()
    rested(world)
    world.problem = PROBLEM
    assert rested(world).rest is None


def test_who_cannot_be_given_a_worker_looks_ever_more_rarely_and_at_once_at_its_turn() -> None:
    world = PlainCluster(trigger={"interval": "30s"})
    world.add_log("/ra/a")
    world.allowance = NO_WORKER
    world.rest()
    began, looks = world.wall, []
    while world.wall < began + 4000:
        before = world.readings
        world.wall += 5
        world.settle()
        if world.readings != before:
            looks.append(world.wall)
    pauses = [two - item for item, two in pairwise(looks)]
    assert pauses == sorted(pauses), "never more often than before"
    assert pauses[0] <= 40
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE, abs=10)
    assert len(looks) < 20, "every 30 s it would be 133"
    before = world.readings
    world.wall += 60
    world.allowance = A_WORKER
    decision = world.reconcile()
    assert world.readings == before + 1
    assert len(decision.launches) == 1


def test_an_interval_longer_than_the_longest_pause_is_kept() -> None:
    assert pause(3600.0, started=10_000.0, waits_since=0.0) == 3600.0
    assert pause(30.0, started=10.0, waits_since=None) == 30.0
    assert pause(30.0, started=10.0, waits_since=20.0) == 30.0


def test_a_reading_says_the_same_whenever_it_was_made_and_nothing_else() -> None:
    world = waiting()
    world.rest()
    first = world.reading
    world.pass_time(31)
    second = world.reading
    assert first is not None
    assert second is not None
    assert (first.number, first.started) != (second.number, second.started)
    assert second.says_the_same(first)
    one, *others = second.candidates
    for changed in (
        replace(second, candidates=tuple(others)),
        replace(second, candidates=(*second.candidates, replace(one, target="/ra/new"))),
        replace(second, candidates=(replace(one, base_version=f"{one.base_version}1"), *others)),
        replace(second, candidates=(replace(one, obsolete=one.obsolete, groups=()), *others)),
        replace(second, candidates=(replace(one, oldest_debt_at=6.0), *others)),
        replace(second, problem=PROBLEM),
        replace(second, problems=(PROBLEM,)),
        replace(second, identities={("/ra/a", "x"): "id"}),
        replace(second, targets=frozenset({"/ra/a"})),
        replace(second, outdated=frozenset({"job"})),
        replace(second, generation=second.generation + 1),
    ):
        assert not changed.says_the_same(first), changed


# Two policies over one store: who is older, what overlaps, and what the younger one does not do.


def logs(root: str, include: tuple[str, ...] = ("**",), exclude: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"segmentLogs": {"root": root, "include": list(include), "exclude": list(exclude)}}


def blocks(url: str, *, secret: str = "index", key: str = "url", credentials: str | None = "s3") -> dict[str, Any]:
    found: dict[str, Any] = {"url": url, "index": {"secretName": secret, "key": key}}
    return {"blockStore": found | ({"credentialsSecretName": credentials} if credentials else {})}


def claimant(
    store: dict[str, Any], name: str = "logs", *, namespace: str = "storage", created: float = 1.0
) -> Claimant:
    return Claimant(namespace, name, created, StoreSpec.from_object(store))


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        (logs("/data"), logs("/data"), True),
        (logs("/data"), logs("/data/ra"), True),
        (logs("/data/ra"), logs("/data//./ra/"), True),
        (logs("/data"), logs("/database"), False),
        (logs("/data", ("a/**",)), logs("/data/b"), False),
        (logs("/data", ("a/**",)), logs("/data/a/x"), True),
        (logs("/data", ("a/**",)), logs("/data", ("**",), ("a", "a/**")), False),
        (logs("/data", ("*",)), logs("/data/a"), True),
        (logs("/data"), blocks("file:///data"), False),
        (blocks("s3://b/x"), blocks("s3://b/x/", secret="other"), True),
        (blocks("s3://b/x"), blocks("s3://b/x/y", secret="other"), True),
        (blocks("s3://b/x"), blocks("s3://b/xy", secret="other"), False),
        (blocks("s3://b/x"), blocks("s3://c/x"), True),
        (blocks("s3://b/x"), blocks("s3://c/x", key="other"), False),
    ],
)
def test_what_overlaps_in_one_namespace(one: dict[str, Any], other: dict[str, Any], answer: bool) -> None:
    assert share_a_store(claimant(one), claimant(other)) is answer
    assert share_a_store(claimant(other), claimant(one)) is answer


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        (logs("/data"), logs("/data"), True),
        (blocks("s3://b/x"), blocks("s3://b/x"), False),  # the credentials may be of two servers
        (blocks("s3://b/x"), blocks("s3://c/x"), False),  # Secrets of one name in two namespaces
        (blocks("s3://b/x", credentials=None), blocks("s3://b/x", credentials=None), True),
        (blocks("file:///b"), blocks("file:///b/c"), True),
        (blocks("file:///b"), blocks("file:///b/./c"), True),
        (blocks("file:///b/c"), blocks("file:////b//c"), True),
        (blocks("file:///b/a%2Bb"), blocks("file:///b/a+b/c"), True),
    ],
)
def test_what_overlaps_in_two_namespaces(one: dict[str, Any], other: dict[str, Any], answer: bool) -> None:
    assert share_a_store(claimant(one), claimant(other, namespace="tenants")) is answer


def test_the_older_one_goes_on_and_names_decide_within_a_second() -> None:
    first, second = claimant(logs("/data"), "b", created=1), claimant(logs("/data"), "a", created=2)
    same = claimant(logs("/data"), "c", created=1)
    everybody = [second, same, first]
    assert older_owner(first, everybody) is None
    assert older_owner(second, everybody) is first
    assert older_owner(same, everybody) is first
    assert "the older policy storage/b" in said(second, first)


def test_the_younger_one_reads_plans_and_starts_nothing_and_takes_over() -> None:
    world = PlainCluster()
    world.held_by = "/ra is compacted by the older policy ns/first"
    world.add_log("/ra/a")
    world.rest()
    world.pass_time(300)
    assert (world.jobs, world.workers, world.readings) == ({}, {}, 0)
    stalled = get_condition(world.status.conditions, "Stalled")
    assert stalled is not None
    assert (stalled.reason, stalled.message) == ("StoreOverlaps", world.held_by)
    assert ("StoreOverlaps", world.held_by) in world.events
    world.held_by = ""
    world.rest()
    world.announce()
    world.rest()
    assert world.state(world.only_job()) is JobState.IN_PROGRESS
    assert get_condition(world.status.conditions, "Stalled") is None


def test_a_job_that_runs_finishes_and_no_other_starts() -> None:
    world = PlainCluster(workers={"slots": 1})
    world.add_log("/ra/a")
    world.add_log("/ra/b")
    world.rest()
    world.announce()
    world.rest()
    (job,) = world.in_state(JobState.IN_PROGRESS)
    world.held_by = "/ra is compacted by the older policy ns/first"
    world.finish(job)
    world.rest()
    assert world.state(job) is JobState.SUCCEEDED
    assert world.in_state(JobState.IN_PROGRESS) == []
    assert world.status.waiting is not None
    assert (world.status.waiting.reason, world.status.waiting.message) == ("StoreOverlaps", world.held_by)
