"""From created to assigned on one coordinator, against a real API server; writes per job; memory.

The operator is the real one, in a process of its own; so are its workers, but for the rewrite itself
(processes/no_work.py). What happened when is read from the API server's audit log: measuring costs nothing meanwhile.

The rival is the API server itself: the same three writes per job (create the job, create its Lease, write its status)
from a bare loop of requests, which decides nothing, claims nothing and watches nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from bench.harness import Curve, Fact, Race, Workspace
from bench.sensor import build
from compaction.kube.client.api import COMPACTION_JOBS, LEASES, ApiClient, Obj
from compaction.kube.client.config import load_connection
from compaction.kube.launchers.process import ProcessLauncher
from compaction.local.cluster.control_plane import AdminClient, RunningControlPlane
from compaction.segments.generate import generate_log

SCRIPT = Path(__file__).with_name("processes") / "no_work.py"
GROUP = "/apis/compaction.dev/v1alpha1"
WRITES = ("create", "update", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Load:
    """What one run came to; seconds since the first job was created."""

    jobs: int
    created: float
    assigned: float
    finished: float
    waits: list[float]
    writes: Counter[str]
    operator_cpu: float
    server_cpu: float
    peak_rss: int


def run_load(plane: RunningControlPlane, directory: Path, *, jobs: int) -> Load:
    """A policy over `jobs` logs with debt; from its application until every job has succeeded and is counted."""
    namespace = new_namespace(plane)
    root = directory / f"logs-{namespace}"
    template = directory / f"template-{namespace}"
    generate_log(template, segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
    build(root, template, logs=jobs)
    audit_from = plane.audit_log.stat().st_size
    servers = [psutil.Process(process.pid) for process in plane.processes]
    server_before = sum(_cpu(process) for process in servers)
    state = directory / f"state-{namespace}"
    operator = _start_operator(plane, namespace, state)
    try:
        _apply(plane.admin, namespace, root, jobs=jobs)
        peak, cpu = _watch(plane.admin, namespace, psutil.Process(operator.pid), jobs=jobs)
    finally:
        operator.terminate()
        operator.wait()
        asyncio.run(_stop_workers(state))
    server = sum(_cpu(process) for process in servers) - server_before
    return _from_audit(plane.audit_log, audit_from, namespace, jobs, cpu, server, peak)


async def _stop_workers(state: Path) -> None:
    launcher = ProcessLauncher(state)
    for worker in await launcher.observe():
        if not worker.ended:
            await launcher.stop(worker.ref, grace=5)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def new_namespace(plane: RunningControlPlane) -> str:
    name = f"bench-{secrets.token_hex(4)}"
    answer = plane.admin.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert answer.ok, answer.text
    return name


def _apply(admin: AdminClient, namespace: str, root: Path, *, jobs: int, suspend: bool = False) -> None:
    policy = {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": "logs"},
        "spec": {
            "store": {"segmentLogs": {"root": str(root)}},
            "limits": {"maxConcurrentJobs": 256, "maxJobsQueued": max(jobs, 10)},
            "workers": {"max": 1, "slots": 256},
            "lease": {"durationSeconds": 60},
            "suspend": suspend,
        },
    }
    answer = admin.request("POST", f"{GROUP}/namespaces/{namespace}/compactionpolicies", policy)
    assert answer.ok, answer.text


def _watch(admin: AdminClient, namespace: str, operator: psutil.Process, *, jobs: int) -> tuple[int, float]:
    """Wait for the end; the operator's peak memory and CPU seconds."""
    path = f"{GROUP}/namespaces/{namespace}/compactionpolicies/logs"
    peak, seen, progress_at = 0, -1, time.monotonic()
    while True:
        time.sleep(0.5)
        assert operator.is_running(), "the operator ended; its log says why"
        assert operator.status() != psutil.STATUS_ZOMBIE, "the operator ended; its log says why"
        peak = max(peak, operator.memory_info().rss)
        succeeded = admin.request("GET", path).json().get("status", {}).get("succeeded", 0)
        if succeeded > seen:
            seen, progress_at = succeeded, time.monotonic()
        if succeeded >= jobs:
            return peak, _cpu(operator)
        assert time.monotonic() - progress_at < 300, f"no job ended for five minutes ({succeeded} of {jobs} have)"


def _from_audit(
    path: Path, start: int, namespace: str, jobs: int, operator_cpu: float, server_cpu: float, peak: int
) -> Load:
    created: dict[str, float] = {}
    leased: dict[str, float] = {}
    finished = 0.0
    writes: Counter[str] = Counter()
    for event in _audit_events(path, start):
        about = event.get("objectRef") or {}
        if about.get("namespace") != namespace or event["verb"] not in WRITES:
            continue
        if event["responseStatus"]["code"] >= 300:
            continue
        moment = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        agent = event.get("userAgent", "").partition("/")[0].partition(" ")[0]
        what = about["resource"] + (f"/{about['subresource']}" if "subresource" in about else "")
        writes[f"{agent} {event['verb']} {what}"] += 1
        name = about.get("name", "")
        if (event["verb"], what) == ("create", "compactionjobs"):
            created[name] = moment
        elif what == "compactionjobs/status":
            # The first write of a job's status says that it is assigned, the second that it has ended.
            leased.setdefault(name, moment)
            finished = max(finished, moment)
    assert len(created) == jobs, f"{len(created)} jobs were created"
    first = min(created.values())
    return Load(
        jobs=jobs,
        created=max(created.values()) - first,
        assigned=max(leased.values()) - first,
        finished=finished - first,
        waits=sorted(leased[name] - created[name] for name in created),
        writes=writes,
        operator_cpu=operator_cpu,
        server_cpu=server_cpu,
        peak_rss=peak,
    )


def _audit_events(path: Path, start: int) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


async def _bare(plane: RunningControlPlane, namespace: str, jobs: int) -> float:
    """The same writes and nothing else; seconds."""
    async with ApiClient(load_connection(plane.kubeconfig), user_agent="bare") as client:

        async def one(number: int) -> None:
            made = await client.create(COMPACTION_JOBS, _job(namespace, number))
            lease = {"metadata": {"name": f"bare-{number}", "namespace": namespace}, "spec": {"holderIdentity": "w"}}
            await client.create(LEASES, lease)
            await client.replace_status(COMPACTION_JOBS, {**made, "status": {"state": "InProgress", "worker": "w"}})

        began = time.perf_counter()
        await _side_by_side(one, jobs)
        return time.perf_counter() - began


async def _fill(plane: RunningControlPlane, namespace: str, jobs: int, root: Path) -> None:
    """So many jobs made by hand, of logs below a root."""
    async with ApiClient(load_connection(plane.kubeconfig), user_agent="bare") as client:
        await _side_by_side(lambda number: client.create(COMPACTION_JOBS, _job(namespace, number, str(root))), jobs)


async def _side_by_side(one: Callable[[int], Awaitable[object]], count: int) -> None:
    gate = asyncio.Semaphore(16)

    async def guarded(number: int) -> None:
        async with gate:
            await one(number)

    await asyncio.gather(*(guarded(number) for number in range(count)))


def _job(namespace: str, number: int, root: str = "/data") -> Obj:
    group = {"segments": [f"{item:016d}.segment" for item in range(1, 9)]}
    source = {"path": f"{root}/tenant-{number % 100}/log-{number}", "snapshotIndex": 1, "groups": [group] * 4}
    return {
        "metadata": {"name": f"bare-{number}", "namespace": namespace},
        "spec": {"policyRef": {"name": "logs"}, "kind": "SegmentRewrite", "sources": {"segmentLog": source}},
    }


def memory_with(plane: RunningControlPlane, directory: Path, *, jobs: int) -> int:
    """The operator's peak memory (bytes) once it has counted so many waiting jobs of a suspended policy."""
    namespace = new_namespace(plane)
    root = directory / "empty"
    root.mkdir()
    _apply(plane.admin, namespace, root, jobs=jobs, suspend=True)
    asyncio.run(_fill(plane, namespace, jobs, root))
    state = directory / f"state-{namespace}"
    operator = _start_operator(plane, namespace, state)
    try:
        process, path = psutil.Process(operator.pid), f"{GROUP}/namespaces/{namespace}/compactionpolicies/logs"
        peak = 0
        for _ in range(1200):
            time.sleep(0.25)
            peak = max(peak, process.memory_info().rss)
            if plane.admin.request("GET", path).json().get("status", {}).get("queued") == jobs:
                return peak
        raise AssertionError(f"the operator never counted {jobs} jobs")
    finally:
        operator.terminate()
        operator.wait()


def _start_operator(plane: RunningControlPlane, namespace: str, state: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SCRIPT), "operator", str(plane.kubeconfig), namespace, str(state)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def measure(workspace: Workspace) -> Iterator[Race | Curve | Fact]:
    """See the module."""
    jobs, many = workspace.pick((2000, 10_000), (20, 30))
    plane = workspace.control_plane()
    load = run_load(plane, workspace.directory, jobs=jobs)
    bare = jobs / asyncio.run(_bare(plane, new_namespace(plane), jobs))
    rate = jobs / load.assigned
    title = f"{jobs:,} jobs, created to assigned"
    yield Fact(title, f"{rate:.0f} jobs/s ({load.assigned:.1f} s)", ">= 50 jobs/s", met=rate >= 50)
    yield Fact("... the same writes without an operator", f"{bare:.0f} jobs/s: {rate / bare:.2f} of it")
    yield Fact("... to created, to finished", f"{load.created:.1f} s, {load.finished:.1f} s")
    worst = load.waits[int(len(load.waits) * 0.99)]
    yield Fact("... wait of one job", f"median {statistics.median(load.waits):.2f} s, 99 % within {worst:.2f} s")
    operator, server = load.operator_cpu / jobs * 1000, load.server_cpu / jobs * 1000
    yield Fact("... CPU per job", f"operator {operator:.1f} ms, API server and etcd {server:.1f} ms")
    ours = sum(n for what, n in load.writes.items() if what.startswith("compactor-operator"))
    yield Fact("operator's writes per job", f"{ours / jobs:.2f}", "<= 8", met=ours / jobs <= 8)
    for what, count in load.writes.most_common():
        if count >= jobs / 20:
            yield Fact(f"... {what}", f"{count / jobs:.2f} per job")
    yield Fact(f"operator's memory while {jobs:,} jobs pass", f"{load.peak_rss / 2**20:.0f} MiB")
    peak = memory_with(plane, workspace.directory, jobs=many)
    yield Fact(f"operator's memory with {many:,} jobs waiting", f"{peak / 2**20:.0f} MiB")
