"""Two policies over one store: who is older, what overlaps, and what the younger one does not do."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.api.conditions import get_condition
from compaction.api.enums import JobState
from compaction.api.policy.store import StoreSpec
from compaction.core.reconcile.store_work import Claimant, older_owner, said, share_a_store
from support.cluster.world import PlainCluster


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
