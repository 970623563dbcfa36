"""The object cache: never backwards, never resurrected, repaired by a relist."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.api.names import LABEL_POLICY
from compaction.kube.client.transport import COMPACTION_JOBS, COMPACTION_POLICIES, LEASES
from compaction.kube.informer.cache import (
    CacheChange,
    CacheKey,
    KindStore,
    ObjectCache,
    policy_of_job,
    project,
    version_order,
)
from support.depth import examples


def job(name: str, *, version: int, uid: str | None = None, policy: str = "p", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version), **metadata
        },
        "spec": {"policyRef": {"name": policy}},
    }  # fmt: skip


def store() -> KindStore:
    return KindStore(COMPACTION_JOBS, indexers={"policy": policy_of_job})


def test_versions_are_ordered_as_numbers_of_any_size() -> None:
    versions = ["9", "10", "99", "100", "340282366920938463463374607431768211455"]
    assert sorted(versions, key=version_order) == versions


def test_an_older_version_changes_nothing() -> None:
    jobs = store()
    assert jobs.upsert(job("a", version=10)) is not None
    assert jobs.upsert(job("a", version=9, policy="old")) is None
    assert jobs.upsert(job("a", version=10, policy="same")) is None
    assert len(jobs.indexed("policy", CacheKey("ns", "p"))) == 1


def test_managed_fields_and_the_copy_of_kubectl_are_not_kept() -> None:
    jobs = store()
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"}
    body = job("a", version=1, managedFields=[{"manager": "kubectl"}], annotations=annotations)
    jobs.upsert(body)
    kept = jobs.get("ns", "a")
    assert kept is not None
    assert "managedFields" not in kept["metadata"]
    assert kept["metadata"]["annotations"] == {"mine": "1"}
    assert "managedFields" in body["metadata"]


def test_equal_strings_are_kept_once() -> None:
    """Every event is parsed by itself: each object would have a copy of the names of all fields."""
    first, second = (project(json.loads(json.dumps(job(name, version=1)))) for name in "ab")
    assert first == job("a", version=1)
    names = [{id(key) for key in body["metadata"]} for body in (first, second)]
    assert names[0] == names[1]
    assert first["metadata"]["namespace"] is second["metadata"]["namespace"]


def test_a_deleted_object_never_comes_back_but_its_name_may() -> None:
    jobs = store()
    jobs.upsert(job("a", version=1, uid="first"))
    deleted = jobs.remove(job("a", version=2, uid="first"))
    assert deleted is not None
    assert deleted.change is CacheChange.DELETED
    assert jobs.upsert(job("a", version=1, uid="first")) is None
    assert jobs.upsert(job("a", version=3, uid="second")) is not None


def test_a_late_deletion_of_a_former_object_spares_its_successor() -> None:
    jobs = store()
    jobs.upsert(job("a", version=1, uid="first"))
    assert jobs.upsert(job("a", version=3, uid="second")) is not None
    assert jobs.remove(job("a", version=2, uid="first")) is None
    assert jobs.get("ns", "a") is not None


def test_the_index_follows_the_object() -> None:
    jobs = store()
    jobs.upsert(job("a", version=1, policy="p"))
    delta = jobs.upsert(job("a", version=2, policy="q"))
    assert delta is not None
    assert delta.old is not None
    assert jobs.indexed("policy", CacheKey("ns", "p")) == []
    assert [found["metadata"]["name"] for found in jobs.indexed("policy", CacheKey("ns", "q"))] == ["a"]
    jobs.remove(job("a", version=3))
    assert jobs.indexed("policy", CacheKey("ns", "q")) == []


def test_a_sweep_repairs_missed_deletions_and_spares_what_is_newer_than_the_list() -> None:
    jobs = store()
    for name, version in (("kept", 1), ("vanished", 2), ("newer", 9)):
        jobs.upsert(job(name, version=version))
    deltas = jobs.sweep([job("kept", version=1), job("missed", version=4)], "5")
    assert {(delta.change, delta.key.name) for delta in deltas} == {
        (CacheChange.DELETED, "vanished"),
        (CacheChange.ADDED, "missed"),
    }
    assert {body["metadata"]["name"] for body in jobs} == {"kept", "missed", "newer"}


def test_a_sweep_of_one_namespace_spares_the_others() -> None:
    jobs = store()
    jobs.upsert(job("a", version=1))
    assert jobs.sweep([], "5", namespace="elsewhere") == []
    assert len(jobs.sweep([], "5", namespace="ns")) == 1


def test_leases_and_jobs_lead_to_their_policy_and_others_to_none() -> None:
    cache = ObjectCache()
    lease = {"metadata": {"namespace": "ns", "name": "w", "labels": {LABEL_POLICY: "p"}}}
    assert cache.policies_of(LEASES, lease) == (CacheKey("ns", "p"),)
    assert cache.policies_of(LEASES, {"metadata": {"namespace": "ns", "name": "x"}}) == ()
    assert cache.policies_of(COMPACTION_JOBS, job("a", version=1)) == (CacheKey("ns", "p"),)
    assert cache.policies_of(COMPACTION_POLICIES, {"metadata": {"namespace": "ns", "name": "p"}}) == (
        CacheKey("ns", "p"),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """What really happened to three names on the server, in order: (type, object)."""
    history: list[tuple[str, dict[str, Any]]] = []
    alive: dict[str, str] = {}
    for version in range(1, draw(st.integers(1, 15)) + 1):
        name = draw(st.sampled_from("abc"))
        policy = draw(st.sampled_from("pq"))
        if name not in alive:
            alive[name] = f"{name}-{version}"
            history.append(("ADDED", job(name, version=version, uid=alive[name], policy=policy)))
        elif draw(st.booleans()):
            history.append(("MODIFIED", job(name, version=version, uid=alive[name], policy=policy)))
        else:
            history.append(("DELETED", job(name, version=version, uid=alive.pop(name), policy=policy)))
    return history


@settings(max_examples=examples(300))
@given(histories(), st.data())
def test_any_order_any_losses_end_in_the_truth_after_a_sweep(
    history: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    truth: dict[str, dict[str, Any]] = {}
    for type, body in history:
        truth.pop(body["metadata"]["name"], None)
        if type != "DELETED":
            truth[body["metadata"]["name"]] = body
    seen = data.draw(st.lists(st.sampled_from(history), max_size=2 * len(history)))
    jobs = store()
    for type, body in seen:
        if type == "DELETED":
            jobs.remove(body)
        else:
            jobs.upsert(body)
    jobs.sweep(truth.values(), str(len(history)))
    assert {body["metadata"]["name"]: body for body in jobs} == truth
    for policy in "pq":
        expected = sorted(name for name, body in truth.items() if body["spec"]["policyRef"]["name"] == policy)
        assert [b["metadata"]["name"] for b in jobs.indexed("policy", CacheKey("ns", policy))] == expected
