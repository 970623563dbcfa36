"""Processes of the fleet benchmark: the real operator, which keeps a journal, and one process with all the workers.

    python fleet_parts.py operator KUBECONFIG NAMESPACE STATE_DIR IDENTITY MAX_WORKERS LEASE_SECONDS POLICIES
    python fleet_parts.py host KUBECONFIG STATE_DIR

A thousand workers as processes would measure the starts of processes. Here each is a pair of threads in the host, with
a Lease and a connection of its own; their rewrite does nothing (no_work.py). Requests, stops and ends are files.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import logging
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.processes.no_work import NoWork
from compaction.core.reconcile.observations import OperatorLimits
from compaction.kube.assignments import WorkerIdentity, lease_port
from compaction.kube.client.config import load_connection
from compaction.kube.controller import PolicyController
from compaction.kube.informer.cache import CacheKey
from compaction.kube.launchers.base import PolicyKey, WorkerObservation, WorkerPhase, WorkerRef, WorkerRequest
from compaction.kube.logging import LogFormat, setup_logging
from compaction.kube.replica.operator import OperatorConfig, run_operator
from compaction.kube.replica.runtime import Runtime
from compaction.leases.election import ElectionSettings
from compaction.worker.attempt import EndReason, Inbox, JobEnded
from compaction.worker.keeper import Heartbeat
from compaction.worker.loop import Worker

REQUEST, ENDED, STOP = ".request", ".ended", ".stop"
PROFILE = "FLEET_PROFILE"
"""Environment variable: where the operators write their profiles (for whoever looks for what is slow)."""
POLL = 0.05
JOURNAL = 0.25


def put(path: Path, content: Any) -> None:
    """Whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(content))
    partial.rename(path)


@dataclass
class HostLauncher:
    """Implements `launchers.base.Launcher` by files that the host reads and writes."""

    directory: Path
    known: dict[str, tuple[PolicyKey, datetime]] = field(default_factory=dict)

    async def launch(self, request: WorkerRequest) -> WorkerRef:
        about = {"policy": request.policy, "slots": request.slots, "idle": request.idle_seconds}
        put(self.directory / f"{request.name}{REQUEST}", about | {"lease": request.lease_seconds, "at": time.time()})
        return WorkerRef(request.name, request.policy)

    async def observe(self) -> list[WorkerObservation]:
        names = set(os.listdir(self.directory))
        found = []
        for name in sorted(name.removesuffix(REQUEST) for name in names if name.endswith(REQUEST)):
            if name not in self.known:
                about = json.loads((self.directory / f"{name}{REQUEST}").read_text())
                self.known[name] = PolicyKey(*about["policy"]), datetime.fromtimestamp(about["at"], tz=UTC)
            policy, started = self.known[name]
            phase = WorkerPhase.SUCCEEDED if f"{name}{ENDED}" in names else WorkerPhase.RUNNING
            found.append(WorkerObservation(name, policy, phase, started))
        return found

    async def stop(self, ref: WorkerRef, *, grace: float) -> None:
        put(self.directory / f"{ref.name}{STOP}", grace)

    async def forget(self, ref: WorkerRef) -> None:
        self.known.pop(ref.name, None)
        for ending in (REQUEST, ENDED, STOP):
            (self.directory / f"{ref.name}{ending}").unlink(missing_ok=True)


def host(kubeconfig: Path, directory: Path) -> None:
    """Run what is requested until the process is ended."""
    setup_logging(LogFormat.TEXT, level=logging.WARNING)
    inboxes: dict[str, Inbox] = {}
    while True:
        names = os.listdir(directory)
        for name in (name.removesuffix(REQUEST) for name in names if name.endswith(REQUEST)):
            if name not in inboxes:
                with suppress(FileNotFoundError):
                    about = json.loads((directory / f"{name}{REQUEST}").read_text())
                    inboxes[name] = queue.SimpleQueue()
                    arguments = (kubeconfig, directory, name, about, inboxes[name])
                    threading.Thread(target=_worker, args=arguments, name=name, daemon=True).start()
        for name in (name.removesuffix(STOP) for name in names if name.endswith(STOP)):
            (directory / f"{name}{STOP}").unlink(missing_ok=True)
            if name in inboxes:
                inboxes[name].put(JobEnded(EndReason.TERMINATED))
        time.sleep(POLL)


def _worker(kubeconfig: Path, directory: Path, name: str, about: dict[str, Any], inbox: Inbox) -> None:
    namespace, policy = about["policy"]
    connect = lease_port(
        load_connection(kubeconfig, namespace=namespace), WorkerIdentity(name, namespace, policy, about["lease"])
    )
    try:
        Worker(
            heartbeat=Heartbeat(connect, inbox=inbox, slots=about["slots"], lease_seconds=about["lease"]),
            inbox=inbox,
            runner=NoWork(name),
            slots=about["slots"],
            idle_seconds=about["idle"],
        ).run()
    finally:
        put(directory / f"{name}{ENDED}", 0)


class Journal(PolicyController):
    """The controller, which writes down when it was elected, when it had looked at every policy, and how long each
    reconcile took.
    """

    def __init__(self, path: Path, *, policies: int, **options: Any) -> None:
        super().__init__(**options)
        self._path = path
        self._expected = policies
        self._seen: set[CacheKey] = set()
        self._facts: dict[str, float] = {}
        self._seconds: list[tuple[float, float]] = []

    async def start(self, runtime: Runtime) -> None:
        self._facts["elected"] = time.time()
        await super().start(runtime)
        self._spawn(self._write(runtime))

    async def reconcile(self, key: CacheKey) -> float | None:
        began = time.monotonic()
        again = await super().reconcile(key)
        self._seconds.append((time.time(), time.monotonic() - began))
        self._seen.add(key)
        if len(self._seen) >= self._expected:
            self._facts.setdefault("looked", time.time())
        return again

    async def _write(self, runtime: Runtime) -> None:
        while True:
            samples = [s for family in runtime.metrics.requests.collect() for s in family.samples]
            self._facts["requests"] = sum(s.value for s in samples if s.name.endswith("_total"))
            # Not from the metrics: to read those of a thousand policies four times a second costs more than their rest.
            self._facts["succeeded"] = sum(
                (policy.get("status") or {}).get("succeeded", 0) for policy in runtime.cache.policies
            )
            self._facts["reconciles"] = len(self._seconds)
            self._facts["jobs"] = len(runtime.cache.jobs)
            put(self._path, self._facts)
            await asyncio.sleep(JOURNAL)

    async def stop(self) -> None:
        await super().stop()
        put(self._path.with_suffix(".seconds"), self._seconds)


def operator(
    kubeconfig: Path, namespace: str, state: Path, identity: str, max_workers: int, lease: int, policies: int
) -> int:
    """One replica, as `compactor operator` runs it."""
    config = OperatorConfig(
        namespace=namespace,
        state_dir=state,
        identity=identity,
        kubeconfig=kubeconfig,
        election=ElectionSettings(lease_duration=lease, renew_deadline=lease * 0.6, retry_period=lease * 0.15),
        metrics_port=0,
        health_port=0,
        log_level=30,
    )
    limits = OperatorLimits(max_workers=max_workers)
    profiler = cProfile.Profile() if PROFILE in os.environ else None
    if profiler is not None:
        profiler.enable()
    try:
        return run_operator(
            config,
            make_controller=lambda: Journal(state / f"{identity}.journal", policies=policies, limits=limits),
            make_launcher=lambda _client: HostLauncher(state),
        )
    finally:
        if profiler is not None:
            profiler.dump_stats(f"{os.environ[PROFILE]}.{namespace}.{identity}")


if __name__ == "__main__":
    if sys.argv[1] == "host":
        host(Path(sys.argv[2]), Path(sys.argv[3]))
    sys.exit(operator(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5], *map(int, sys.argv[6:])))
