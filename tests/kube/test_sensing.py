"""Looks and sweeps of many policies at once: they leave a thread for the claims that jobs wait for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog.testing
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.enums import PolicyReason
from compaction.api.policy.policy import CleanupSpec, CompactionPolicy, CompactionPolicySpec
from compaction.api.text.quantities import Duration
from compaction.core.planning.debt import ScanResult
from compaction.core.reconcile.actions import RunStoreTask, StoreTask
from compaction.core.reconcile.store_work import Claimant, share_a_store
from compaction.kube.client.config import ApiConnection
from compaction.kube.gather import Overlaps, job_lease, worker_lease
from compaction.kube.informer.cache import CacheKey
from compaction.kube.replica.runtime import Runtime
from compaction.kube.scanning import scan, sweep
from compaction.kube.store_tasks import STORE_TASKS, PolicyState, StoreTasks
from compaction.leases.record import LeaseObserver
from compaction.segments.adapter import SegmentLogsAdapter
from compaction.storage.adapter import SWEEP_AGAIN, Sensed, SenseRequest, StoreAdapter, Swept
from kube.own_coordinator import Bench, bench
from support.cluster.manifests import policy_object

POLICIES = ["logs", *(f"logs-{number}" for number in range(STORE_TASKS + 1))]
WAITED = 10.0
"""Seconds until a claim that gets no thread is given up; one that gets one takes no time at all."""


@dataclass
class Gate:
    """Whoever comes stays until it is opened."""

    inside: int = 0
    passed: int = 0
    _open: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def passage(self) -> Iterator[None]:
        with self._lock:
            self.inside += 1
        self._open.wait()
        yield
        with self._lock:
            self.inside, self.passed = self.inside - 1, self.passed + 1

    def arrival(self) -> None:
        """Returns when there is a scan inside."""
        ends = time.monotonic() + WAITED
        while not self.inside:
            assert time.monotonic() < ends, "no scan has come"
            time.sleep(0.01)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """All looks wait here; after each a sweep is due."""
    gate, sense = Gate(), SegmentLogsAdapter.sense

    def held(store: SegmentLogsAdapter, request: SenseRequest) -> Sensed:
        with gate.passage():
            return replace(sense(store, request), sweep_in=0.0)

    monkeypatch.setattr(SegmentLogsAdapter, "sense", held)
    return gate


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """All sweeps wait here."""
    gate = Gate()

    def held(store: SegmentLogsAdapter, *, active: frozenset[tuple[str, int]]) -> Swept:
        with gate.passage():
            return Swept(0, 0, (), None)

    monkeypatch.setattr(SegmentLogsAdapter, "sweep", held)
    return gate


@pytest.mark.apiserver
def test_looks_and_sweeps_leave_a_thread_for_claims(
    connection: ApiConnection, namespace: str, tmp_path: Path, looks: Gate, sweeps: Gate
) -> None:
    async def all_of_them(b: Bench, *, sensing: bool) -> bool:
        found = [await b.condition("Ready", name) for name in POLICIES]
        return all(item is not None and (item["reason"] == "Sensing") is sensing for item in found)

    async def only_as_many_as_may(b: Bench, gate: Gate) -> None:
        async def full() -> bool:
            return gate.inside >= STORE_TASKS

        await b.until("as many as may", full)
        await asyncio.wait_for(asyncio.to_thread(lambda: None), WAITED)
        assert gate.inside == STORE_TASKS

    async def test(b: Bench) -> None:
        for name in POLICIES:
            (b.root / name).mkdir()
            await b.apply(name, store={"segmentLogs": {"root": str(b.root / name)}}, trigger={"interval": "1h"})
        # A status is written after the store's tasks of the same decision were begun.
        await b.until("all have asked for their look", lambda: all_of_them(b, sensing=True))
        await only_as_many_as_may(b, looks)
        looks.open()
        await b.until("all have been looked at", lambda: all_of_them(b, sensing=False))
        await only_as_many_as_may(b, sweeps)
        sweeps.open()

        async def swept() -> bool:
            return sweeps.passed == len(POLICIES)

        await b.until("all have been swept", swept)

    async def main() -> None:
        # What the smallest machine has: one thread more than there may be looks and sweeps.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(STORE_TASKS + 1))
        async with bench(connection, namespace, tmp_path) as made:
            try:
                await test(made)
            finally:
                looks.open()
                sweeps.open()
        await asyncio.sleep(0.1)  # connections cut off in the middle of a request close themselves

    asyncio.run(main())


# Looks and sweeps that fail in a way nobody foresaw.


class Broken:
    def sense(self, request: SenseRequest) -> Sensed:
        raise ValueError(f"embedded null byte in look {min(request.number, 1)}")

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        raise RecursionError("maximum depth")


STORE = cast(StoreAdapter, Broken())


def read(number: int, before: ScanResult | None = None) -> Sensed:
    clock = count(100.0)
    return scan(STORE, SenseRequest(number, 7, 99.0), root="/ra", before=before, clock=lambda: next(clock))


def test_a_look_becomes_a_reading_with_the_reason() -> None:
    reading = read(1).reading
    assert (reading.number, reading.generation, reading.started, reading.ended) == (1, 7, 99.0, 100.0)
    assert reading.problem is not None
    assert (reading.problem.target, reading.problem.reason) == ("/ra", PolicyReason.SENSE_FAILED)
    assert "ValueError: embedded null byte" in reading.problem.message


def test_the_traceback_is_logged_once() -> None:
    with structlog.testing.capture_logs() as logs:
        read(2, before=read(1).reading)
    assert [bool(entry["exc_info"]) for entry in logs] == [True, False]


def test_a_sweep_is_repeated_later() -> None:
    assert sweep(STORE, root="/ra", active=frozenset()).sweep_in == SWEEP_AGAIN


# Previews: one at a time over all policies, whatever becomes of it, with stores of their own.


@dataclass
class Glance:
    """A store whose scans for a preview wait; others end at once."""

    gate: Gate
    closed: list[Glance]
    error: Exception | None = None

    def sense(self, request: SenseRequest) -> Sensed:
        if not request.recover:
            if self.error is not None:
                raise self.error
            with self.gate.passage():
                pass
        reading = ScanResult(request.number, request.generation, request.asked, request.asked, 0.0)
        return Sensed(reading, None)

    def close(self) -> None:
        self.closed.append(self)


@pytest.mark.parametrize("error", [None, ValueError("embedded null byte")])
def test_previews_take_one_thread_and_nothing_of_the_policy(error: Exception | None) -> None:
    gate, closed = Gate(), list[Glance]()
    queue = SimpleNamespace(add=lambda key: None)
    runtime = cast(Runtime, SimpleNamespace(client=None, identity="replica-0", queue=queue))

    def opened(spec: CompactionPolicySpec, **_: Any) -> StoreAdapter:
        return cast(StoreAdapter, Glance(gate, closed, error))

    tasks = StoreTasks(open_store=opened, monotonic=lambda: 7.0)
    keys = [CacheKey("storage", f"logs-{number}") for number in range(3)]
    states = {key: PolicyState() for key in keys}
    policies = {key: policy(key, f"/data/{key.name}") for key in keys}
    changed = policy(FIRST, "/data").spec.model_copy(update={"cleanup": CleanupSpec(delay=Duration("1h"))})
    ahead = RunStoreTask(StoreTask.PREVIEW, proposed=changed, mark="first")

    async def run(key: CacheKey, task: RunStoreTask) -> None:
        tasks.open(states[key], policies[key], runtime)
        await tasks.run(runtime, key, states[key], task, policies[key], asked=5.0)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(STORE_TASKS + 1))
        previews = [asyncio.create_task(run(key, ahead)) for key in keys]
        if error is None:
            await asyncio.to_thread(gate.arrival)
        for key in keys:
            await asyncio.wait_for(run(key, RunStoreTask(StoreTask.SENSE)), WAITED)
        assert error is not None or (gate.inside, gate.passed) == (1, 0)
        gate.open()
        await asyncio.gather(*previews)

    asyncio.run(main())
    kept = {id(state.store) for state in states.values()}
    assert len(closed) == 6, "two scans each, in stores that are closed"
    assert kept.isdisjoint(map(id, closed))
    for key, state in states.items():
        assert state.preview is not None
        assert (state.preview.mark, state.preview.uid, state.readings) == ("first", f"uid-{key.name}", 1)
        assert not state.memory.store.preview_running
        assert state.preview.proposed.started == 5.0
        problem = state.preview.in_force.problem
        assert (problem.reason if problem is not None else None) == (None if error is None else "SenseFailed")


# What anybody may have written on a Lease never stops the coordinator: it reads it, or passes over it.


def body(**annotations: str) -> dict[str, object]:
    return {
        "metadata": {
            "name": "x",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "1",
            "annotations": {f"compaction.dev/{key}": value for key, value in annotations.items()},
        },
        "spec": {"holderIdentity": "w", "leaseTransitions": 1, "leaseDurationSeconds": 15},
    }


@pytest.mark.parametrize(
    ("text", "slots"),
    [("3", 3), ("256", 256), ("257", 0), ("9" * 5000, 0), ("-1", 0), ("٣", 0), ("", 0), ("1e3", 0), ("0x1", 0)],
)
def test_slots(text: str, slots: int) -> None:
    """5000 digits once were an error of Python that ended every look at the policy; a billion slots took all jobs."""
    assert worker_lease(body(slots=text), LeaseObserver[str](), now=0.0).slots == slots


@pytest.mark.parametrize(("text", "progress"), [("0", 0), ("100", 100), ("101", None), ("9" * 5000, None), ("x", None)])
def test_progress(text: str, progress: int | None) -> None:
    """A progress of 101 would be refused by the status of the job."""
    assert job_lease(body(progress=text), LeaseObserver[str](), now=0.0).progress == progress


@pytest.mark.parametrize("report", ["", "5", "[" * 5000, '{"token":' + "9" * 5000 + "}", '{"token":1}'])
def test_an_unreadable_report_is_an_error_of_its_lease(report: str) -> None:
    lease = job_lease(body(report=report), LeaseObserver[str](), now=0.0)
    assert lease.report is None
    assert lease.report_error.startswith("the worker's report cannot be read: ")
    assert len(lease.report_error) < 500


# Which policies share a store is kept up to date by each change, and only those concerned are asked again.

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND, THIRD = (CacheKey("storage", name) for name in ("first", "second", "third"))


def policy(key: CacheKey, root: str, *, age: int = 0, generation: int = 1) -> CompactionPolicy:
    return policy_of(key, {"segmentLogs": {"root": root}}, age=age, generation=generation)


def policy_of(key: CacheKey, store: dict[str, Any], *, age: int, generation: int) -> CompactionPolicy:
    document = policy_object(key.name, store=store)
    document["metadata"] |= {
        "namespace": key.namespace,
        "uid": f"uid-{key.name}",
        "generation": generation,
        "creationTimestamp": (START + timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return CompactionPolicy.from_object(document)


def test_a_younger_one_is_held_until_the_older_one_is_gone_or_elsewhere() -> None:
    overlaps = Overlaps()
    assert overlaps.note(SECOND, policy(SECOND, "/data", age=5)) == frozenset()
    assert overlaps.held_by(SECOND) == ""
    assert overlaps.note(FIRST, policy(FIRST, "/data/ra")) == {SECOND}, "the older one was heard of later"
    assert "storage/first" in overlaps.held_by(SECOND)
    assert overlaps.held_by(FIRST) == ""
    assert overlaps.note(THIRD, policy(THIRD, "/elsewhere", age=9)) == frozenset()
    assert overlaps.note(FIRST, policy(FIRST, "/elsewhere", generation=2)) == {SECOND, THIRD}
    assert overlaps.held_by(SECOND) == ""
    assert "storage/first" in overlaps.held_by(THIRD)
    assert overlaps.note(FIRST, None) == {THIRD}
    assert overlaps.held_by(THIRD) == ""
    assert overlaps.note(FIRST, None) == frozenset()


def test_a_proposed_store_is_held_as_if_it_were_in_force() -> None:
    overlaps = Overlaps()
    overlaps.note(FIRST, policy_of(FIRST, selecting("a*"), age=0, generation=1))
    overlaps.note(SECOND, policy_of(SECOND, selecting("b*"), age=5, generation=1))
    assert "storage/first" in overlaps.would_hold(SECOND, policy_of(SECOND, selecting("**"), age=5, generation=1))
    assert overlaps.would_hold(FIRST, policy_of(FIRST, selecting("**"), age=0, generation=1)) == "", "the older one"
    assert overlaps.would_hold(SECOND, policy_of(SECOND, selecting("c*"), age=5, generation=1)) == ""
    assert (overlaps.held_by(SECOND), overlaps.held_by(FIRST)) == ("", ""), "nothing is noted"


def selecting(include: str) -> dict[str, Any]:
    return {"segmentLogs": {"root": "/data", "include": [include]}}


def test_a_spec_that_stays_asks_nobody() -> None:
    overlaps = Overlaps()
    overlaps.note(FIRST, policy(FIRST, "/data"))
    overlaps.note(SECOND, policy(SECOND, "/data", age=5))
    assert overlaps.note(FIRST, policy(FIRST, "/data")) == frozenset()
    assert "storage/first" in overlaps.held_by(SECOND)


PARTS = st.lists(st.sampled_from(("a", "b", "ab", ".", "")), max_size=4)
LOGS = PARTS.map(lambda parts: {"segmentLogs": {"root": "/".join(("/data", *parts))}})
URLS = st.tuples(st.sampled_from(("s3://one", "s3://two", "file:///one")), st.lists(st.sampled_from("ab"), max_size=3))
BLOCKS = st.tuples(URLS, st.sampled_from(("first", "second", "third"))).map(
    lambda pair: {"blockStore": {"url": "/".join((pair[0][0], *pair[0][1])), "index": {"secretName": pair[1]}}}
)
KEYS = st.builds(CacheKey, st.sampled_from(("storage", "tenants")), st.sampled_from(("x", "y", "z", "w")))


@given(st.lists(st.tuples(KEYS, st.one_of(st.none(), LOGS, BLOCKS)), max_size=25))
def test_whoever_shares_a_store_is_found_without_a_look_at_the_others(
    notes: list[tuple[CacheKey, dict[str, Any] | None]],
) -> None:
    overlaps = Overlaps()
    known: dict[CacheKey, CompactionPolicy] = {}

    def sharing(key: CacheKey) -> set[CacheKey]:
        if key not in known:
            return set()
        mine = Claimant.of(known[key])
        return {other for other, item in known.items() if other != key and share_a_store(mine, Claimant.of(item))}

    for generation, (key, store) in enumerate(notes):
        before = sharing(key)
        known.pop(key, None)
        if store is not None:
            known[key] = policy_of(key, store, age=generation, generation=generation)
        assert overlaps.note(key, known.get(key)) == before | sharing(key)
    for key, item in known.items():
        older = [other for other in sharing(key) if Claimant.of(known[other]).age < Claimant.of(item).age]
        assert bool(overlaps.held_by(key)) is bool(older)
