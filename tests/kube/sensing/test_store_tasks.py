"""Looks and sweeps of many policies at once: they leave a thread for the claims that jobs wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from compaction.kube.client.config import ApiConnection
from compaction.kube.store_tasks import STORE_TASKS
from compaction.segments.adapter import SegmentLogsAdapter
from compaction.storage.adapter import Sensed, SenseRequest, Swept
from kube.own_coordinator import Bench, bench

pytestmark = pytest.mark.apiserver

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
