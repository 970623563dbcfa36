"""One operator for many policies, ten jobs each, on a real API server: does anything grow faster than the fleet?

The operator is the real one, in a process of its own, with `--max-workers`; the workers are threads of another process,
whose rewrite does nothing (processes/fleet_parts.py). Order for each size: plans are made and all jobs wait for a
window; the fleet rests; the leader ends and another starts; the leader is killed and a standby follows; the window
opens, and every job runs. There is no rival: what is asked is how the cost grows with the size.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.control_plane import new_namespace
from bench.harness import Curve, Fact, Race, Workspace, fitted_exponent
from bench.sensor import build
from compaction.errors import ConflictError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import load_connection
from compaction.kube.client.transport import COMPACTION_POLICIES, Obj
from compaction.local.cluster.control_plane import RunningControlPlane
from compaction.segments.generate import generate_log

SCRIPT = Path(__file__).with_name("processes") / "fleet_parts.py"
JOBS = 10
"""Of each policy."""
MAX_WORKERS = 8
CLOSED = {"schedule": "0 0 1 1 *", "duration": "1m"}
MOST_EXPONENT = 1.1
PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Taken:
    """What one size came to. Times in seconds, memory in bytes, `cpu` in seconds of the operator's process.

    `work_...` is beyond what rest would have cost meanwhile: the same workers take as much longer as there are more
    policies, and those that wait are looked at all the while.
    """

    policies: int
    created: float
    waiting_memory: int
    idle_calls: float
    idle_cpu: float
    startup: float
    takeover: float
    failover: float
    work: float
    work_cpu: float
    work_calls: float
    work_memory: int
    work_reconciles: float
    reconciles: int
    p50: float
    p99: float


@dataclass
class Replica:
    """One process of the operator and its journal."""

    process: subprocess.Popen[bytes]
    journal: Path
    began: float = field(default_factory=time.time)

    def facts(self) -> dict[str, float]:
        """What it has written down so far; empty before its election."""
        return json.loads(self.journal.read_text()) if self.journal.exists() else {}

    def usage(self) -> tuple[float, int]:
        """CPU seconds and resident bytes."""
        process = psutil.Process(self.process.pid)
        times = process.cpu_times()
        return float(times.user + times.system), int(process.memory_info().rss)

    def end(self, *, kill: bool = False) -> None:
        if self.process.poll() is None:
            self.process.kill() if kill else self.process.terminate()
        self.process.wait()

    def seconds(self, since: float) -> list[float]:
        """Of each reconcile, once the term has ended in order."""
        path = self.journal.with_suffix(".seconds")
        return sorted(seconds for at, seconds in json.loads(path.read_text()) if at >= since)


class Fleet:
    """So many policies in a namespace, their logs, and the processes of one run; all ended with the stack."""

    def __init__(
        self, plane: RunningControlPlane, directory: Path, policies: int, lease: int, stack: ExitStack
    ) -> None:
        self.plane = plane
        self.policies = policies
        self.namespace = new_namespace(plane)
        self.state = directory / f"state-{self.namespace}"
        self.state.mkdir()
        self.roots = directory / f"roots-{self.namespace}"
        self._lease = lease
        self._stack = stack
        self._started = 0

    def make_logs(self, directory: Path) -> None:
        template = directory / f"template-{self.namespace}"
        generate_log(template, segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
        for number in range(self.policies):
            build(self.roots / f"p{number}", template, logs=JOBS)

    def start(self) -> Replica:
        self._started += 1
        identity = f"replica-{self._started}"
        arguments = ["operator", self.plane.kubeconfig, self.namespace, self.state, identity, MAX_WORKERS, self._lease]
        process = self._run(*arguments, self.policies)
        replica = Replica(process, self.state / f"{identity}.journal")
        self._stack.callback(replica.end)
        return replica

    def start_host(self) -> None:
        host = self._run("host", self.plane.kubeconfig, self.state)
        self._stack.callback(host.wait)
        self._stack.callback(host.terminate)

    def _run(self, *arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(SCRIPT), *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def policy(self, number: int) -> Obj:
        spec = {
            "store": {"segmentLogs": {"root": str(self.roots / f"p{number}")}},
            "trigger": {"interval": "30s", "windows": [CLOSED]},
            "workers": {"max": 2, "slots": 5},
            "limits": {"maxConcurrentJobs": 10},
            "lease": {"durationSeconds": 60},
        }
        return {"metadata": {"name": f"p{number}", "namespace": self.namespace}, "spec": spec}

    async def apply(self) -> None:
        async with self._client() as client:
            for number in range(self.policies):
                await client.create(COMPACTION_POLICIES, self.policy(number))

    async def open_windows(self) -> None:
        async with self._client() as client:
            for number in range(self.policies):
                while await self._conflicts(client, f"p{number}"):
                    pass

    async def _conflicts(self, client: ApiClient, name: str) -> bool:
        """Open the window of one policy; True when its status was written meanwhile."""
        found = await client.get(COMPACTION_POLICIES, name, namespace=self.namespace)
        found["spec"]["trigger"].pop("windows")
        try:
            await client.replace(COMPACTION_POLICIES, found)
        except ConflictError:
            return True
        return False

    def _client(self) -> ApiClient:
        return ApiClient(load_connection(self.plane.kubeconfig), user_agent="bench")


def until(look: Callable[[], Any], what: str, *, of: Callable[[], Any] | None = None, pause: float = 0.1) -> Any:
    """The first truthy answer; AssertionError after ten minutes in which neither it nor what it is `of` changed."""
    last, changed = None, time.monotonic()
    while not (found := look()):
        seen = found if of is None else of()
        if seen != last:
            last, changed = seen, time.monotonic()
        assert time.monotonic() - changed < PATIENCE, f"in vain: {what} ({last})"
        time.sleep(pause)
    return found


def take(plane: RunningControlPlane, directory: Path, *, policies: int, lease: int, idle: float) -> Taken:
    """One size, from nothing to the end of all jobs."""
    with ExitStack() as stack:
        fleet = Fleet(plane, directory, policies, lease, stack)
        fleet.make_logs(directory)
        jobs = policies * JOBS
        first = fleet.start()
        until(lambda: first.facts(), "the election")
        began = time.time()
        asyncio.run(fleet.apply())
        until(lambda: first.facts()["jobs"] >= jobs, "the plans", of=lambda: first.facts()["jobs"])
        created = time.time() - began
        time.sleep(idle * 1.5)  # every policy has looked once more, and written what the jobs changed
        rest, (cpu, _) = first.facts(), first.usage()
        time.sleep(idle)
        rested, (idle_cpu, memory) = first.facts(), first.usage()
        idle_calls = (rested["requests"] - rest["requests"]) / idle
        idle_reconciles = (rested["reconciles"] - rest["reconciles"]) / idle
        idle_cpu = (idle_cpu - cpu) / idle
        first.end()
        second = fleet.start()
        startup = until(lambda: second.facts().get("looked"), "the first look") - second.began
        third = fleet.start()
        time.sleep(2.0)
        killed = time.time()
        second.end(kill=True)
        looked = until(lambda: third.facts().get("looked"), "the look after the failover")
        elected = third.facts()["elected"]
        fleet.start_host()
        before, (cpu_before, _) = third.facts()["requests"], third.usage()
        opened = time.time()
        asyncio.run(fleet.open_windows())
        peak = 0

        def succeeded() -> bool:
            nonlocal peak
            peak = max(peak, third.usage()[1])
            return third.facts()["succeeded"] >= jobs

        until(succeeded, "the jobs", of=lambda: third.facts()["succeeded"], pause=0.5)
        work, (cpu_after, _), calls = time.time() - opened, third.usage(), third.facts()["requests"]
        third.end()
        seconds = third.seconds(since=opened)
        return Taken(
            policies=policies,
            created=created,
            waiting_memory=memory,
            idle_calls=idle_calls,
            idle_cpu=idle_cpu,
            startup=startup,
            takeover=elected - killed,
            failover=looked - elected,
            work=work,
            work_cpu=cpu_after - cpu_before - idle_cpu * work,
            work_calls=calls - before - idle_calls * work,
            work_memory=peak,
            work_reconciles=len(seconds) - idle_reconciles * work,
            reconciles=len(seconds),
            p50=statistics.median(seconds),
            p99=seconds[int(len(seconds) * 0.99)],
        )


def measure(workspace: Workspace) -> Iterator[Race | Curve | Fact]:
    """See the module."""
    sizes = workspace.sizes or workspace.pick((100, 300, 1000), (2,))
    lease, idle = workspace.pick((15, 30.0), (8, 1.0))
    plane = workspace.control_plane()
    taken = []
    for policies in sizes:
        one = take(plane, workspace.directory, policies=policies, lease=lease, idle=idle)
        taken.append(one)
        yield from _facts(one)
    grows: dict[str, Callable[[Taken], float]] = {
        "memory while all jobs wait": lambda item: item.waiting_memory,
        "memory while they run": lambda item: item.work_memory,
        "API calls per second at rest": lambda item: item.idle_calls,
        "CPU time at rest": lambda item: item.idle_cpu,
        "creating the jobs": lambda item: item.created,
        "start-up": lambda item: item.startup,
        "failover, from election": lambda item: item.failover,
        "reconciles until all jobs have run": lambda item: item.work_reconciles,
        "API calls until then": lambda item: item.work_calls,
        "CPU time until then": lambda item: item.work_cpu,
        "seconds until then": lambda item: item.work,
    }
    for what, value in grows.items():
        exponent = fitted_exponent({item.policies: value(item) for item in taken})
        yield Fact(
            f"fitted exponent: {what}", f"{exponent:.2f}", f"<= {MOST_EXPONENT:g}", met=exponent <= MOST_EXPONENT
        )
    p99 = fitted_exponent({item.policies: item.p99 for item in taken})
    yield Fact("fitted exponent: reconcile, 99 % within", f"{p99:.2f}", "<= 0.5", met=p99 <= 0.5)


def _facts(one: Taken) -> Iterator[Fact]:
    jobs = one.policies * JOBS
    title = f"{one.policies:,} policies, {jobs:,} jobs"
    yield Fact(f"{title}: all created", f"{one.created:.1f} s ({jobs / one.created:.0f} jobs/s)")
    yield Fact(
        "... operator's memory while they wait, while they run", f"{_mib(one.waiting_memory)}, {_mib(one.work_memory)}"
    )
    yield Fact("... at rest", f"{one.idle_calls:.2f} API calls/s, {one.idle_cpu * 100:.1f} % of a CPU")
    yield Fact("... start-up: process to every policy looked at", f"{one.startup:.2f} s")
    yield Fact(
        "... failover: death to election, election to every policy looked at",
        f"{one.takeover:.1f} s, {one.failover:.2f} s",
    )
    yield Fact(
        f"... all jobs run by {MAX_WORKERS} workers",
        f"{one.work:.1f} s ({jobs / one.work:.0f} jobs/s); per job and beyond rest "
        f"{one.work_calls / jobs:.1f} API calls, {one.work_cpu / jobs * 1000:.1f} ms CPU",
    )
    yield Fact(
        "... reconcile", f"{one.reconciles:,}: median {one.p50 * 1000:.1f} ms, 99 % within {one.p99 * 1000:.0f} ms"
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
