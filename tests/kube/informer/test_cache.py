"""The object cache: never backwards, never resurrected, repaired by a relist."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.api.names import LABEL_POLICY
from compaction.errors import ConflictError
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
from compaction.kube.informer.queue import Backoff, KeySchedule, WorkQueue
from support.clocks import run_virtual
from support.timing import examples


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


# The work queue: no key lost, never two handlers for one key, backoff, timers, draining. In virtual time.


class Recorder:
    """A handler that takes `seconds` per key, counts, and notices two at a time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.running: Counter[str] = Counter()
        self.calls: list[tuple[float, str]] = []
        self.most_at_once = 0

    async def __call__(self, key: str) -> float | None:
        self.running[key] += 1
        assert self.running[key] == 1, f"two handlers for {key}"
        self.most_at_once = max(self.most_at_once, self.running.total())
        self.calls.append((asyncio.get_running_loop().time(), key))
        await asyncio.sleep(self.seconds)
        self.running[key] -= 1
        return None


async def serve(queue: WorkQueue[str], handler: object, seconds: float, *, concurrency: int = 4) -> None:
    """Run for so long, then drain."""
    task = asyncio.create_task(queue.run(handler, concurrency=concurrency))  # type: ignore[arg-type]
    await asyncio.sleep(seconds)
    queue.drain()
    await task


def test_adds_that_meet_a_waiting_key_are_merged() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        handler = Recorder()
        for key in ("a", "b", "a", "a"):
            queue.add(key)
        await serve(queue, handler, 1.0)
        assert handler.calls == [(0.0, "a"), (0.0, "b")]

    run_virtual(main())


def test_an_add_during_handling_makes_exactly_one_more_round() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        handler = Recorder(1.0)
        queue.add("a")
        task = asyncio.create_task(serve(queue, handler, 5.0))
        await asyncio.sleep(0.5)
        queue.add("a")
        queue.add("a")
        await task
        assert handler.calls == [(0.0, "a"), (1.0, "a")]

    run_virtual(main())


def test_different_keys_run_side_by_side_up_to_the_limit() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        handler = Recorder(1.0)
        for key in "abcdef":
            queue.add(key)
        await serve(queue, handler, 10.0, concurrency=3)
        assert handler.most_at_once == 3
        assert [moment for moment, _ in handler.calls] == [0.0] * 3 + [1.0] * 3

    run_virtual(main())


def test_timers_fire_when_due_and_the_earlier_of_two_stands() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        handler = Recorder()
        queue.add_after("a", 10.0)
        queue.add_after("a", 3.0)
        queue.add_after("a", 7.0)
        await serve(queue, handler, 20.0)
        assert handler.calls == [(3.0, "a")]

    run_virtual(main())


def test_a_handler_names_when_it_wants_the_key_back_but_never_runs_hot() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(min_interval=0.5)
        calls: list[float] = []

        async def handler(key: str) -> float | None:
            calls.append(asyncio.get_running_loop().time())
            return 0.0 if len(calls) < 4 else 5.0

        queue.add("a")
        await serve(queue, handler, 8.0)
        assert calls == [0.0, 0.5, 1.0, 1.5, 6.5]

    run_virtual(main())


@pytest.mark.parametrize("error", [ConflictError("conflict", status=409), RuntimeError("a defect")])
def test_failures_back_off_and_a_success_starts_afresh(error: Exception) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base=1.0, cap=4.0, jitter=0.0))
        calls: list[float] = []

        async def handler(key: str) -> float | None:
            calls.append(asyncio.get_running_loop().time())
            if len(calls) in (5, 6):
                return 10.0
            raise error

        queue.add("a")
        await serve(queue, handler, 33.5)
        assert calls == [0.0, 1.0, 3.0, 7.0, 11.0, 21.0, 31.0, 32.0]

    run_virtual(main())


def test_one_failing_key_does_not_hold_up_another() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        seen: list[str] = []

        async def handler(key: str) -> float | None:
            seen.append(key)
            if key == "bad":
                raise RuntimeError("always")
            return None

        queue.add("bad")
        queue.add("good")
        await serve(queue, handler, 0.01, concurrency=1)
        assert seen == ["bad", "good"]

    run_virtual(main())


def test_draining_ends_the_running_ones_and_starts_no_others() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        handler = Recorder(2.0)
        queue.add("a")
        queue.add("b")
        queue.add_after("c", 1.5)
        await serve(queue, handler, 1.0, concurrency=1)
        assert [key for _, key in handler.calls] == ["a"]
        assert handler.running.total() == 0
        assert asyncio.get_running_loop().time() == 2.0
        queue.add("d")
        assert len(queue) == 2  # "b" and "c", which the next coordinator will find by listing

    run_virtual(main())


def test_cancelling_the_queue_cancels_its_handlers() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        cancelled = asyncio.Event()

        async def handler(key: str) -> float | None:
            try:
                await asyncio.sleep(1000.0)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return None

        queue.add("a")
        task = asyncio.create_task(queue.run(handler))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cancelled.is_set()

    run_virtual(main())


def test_an_idle_queue_sleeps() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        rounds = 0
        wait = queue._wait

        async def counting() -> None:
            nonlocal rounds
            rounds += 1
            await wait()

        queue._wait = counting  # type: ignore[method-assign]
        queue.add_after("a", 1000.0)
        await serve(queue, Recorder(), 5000.0)
        assert rounds < 10

    run_virtual(main())


@given(st.integers(1, 200))
def test_backoff_grows_to_its_cap_and_stays_within_its_jitter(failures: int) -> None:
    delay = Backoff(base=0.2, cap=60.0, jitter=0.2).delay(failures, random.Random(failures))
    plain = min(60.0, 0.2 * 2.0 ** min(failures - 1, 30))
    assert plain <= delay <= plain * 1.2


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "later", "sleep"]),
        st.sampled_from("abc"),
        st.floats(0.0, 5.0),
    ),
    max_size=40,
)


@settings(max_examples=examples(150))
@given(ACTIONS, st.integers(1, 4), st.integers())
def test_no_key_is_lost(actions: list[tuple[str, str, float]], concurrency: int, seed: int) -> None:
    """After every request there is a handling that *starts* no earlier than the request was due."""

    async def main() -> None:
        rng = random.Random(seed)
        queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base=0.1, cap=1.0), rng=rng)
        loop = asyncio.get_running_loop()
        starts: dict[str, list[float]] = {}
        running: set[str] = set()
        requested: dict[str, float] = {}

        async def handler(key: str) -> float | None:
            assert key not in running
            running.add(key)
            begun = loop.time()
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            running.discard(key)
            if rng.random() < 0.2:
                raise ConflictError("again")
            starts.setdefault(key, []).append(begun)
            return None

        task = asyncio.create_task(queue.run(handler, concurrency=concurrency))
        for action, key, number in actions:
            if action == "add":
                queue.add(key)
                requested[key] = loop.time()
            elif action == "later":
                queue.add_after(key, number)
            else:
                await asyncio.sleep(number)
        await asyncio.sleep(1000.0)
        assert queue.idle
        for key, moment in requested.items():
            assert starts[key][-1] >= moment
        queue.drain()
        await task

    run_virtual(main())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 100.0)), max_size=30))
def test_the_earliest_timer_of_each_key_fires_once(timers: list[tuple[str, float]]) -> None:
    schedule: KeySchedule[str] = KeySchedule()
    for key, moment in timers:
        schedule.add_at(key, moment)
    fired: list[tuple[float, str]] = []
    while (due := schedule.next_due()) is not None:
        schedule.promote(due)
        while (taken := schedule.take()) is not None:
            fired.append((due, taken[0]))
            schedule.done(taken[0])
    expected = {key: min(m for k, m in timers if k == key) for key, _ in timers}
    assert {key: moment for moment, key in fired} == expected
    assert len(fired) == len(expected)
