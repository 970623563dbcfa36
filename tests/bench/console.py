"""The console before a real API server: what a refresh of the fleet costs, and what a change in it costs.

The console is the real one, in a process of its own; a refresh is a stream from its opening to the whole fleet. There
is no rival: the promise is a number of CPU seconds for 500 policies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil

from bench.control_plane import GROUP, new_namespace
from bench.harness import Fact, Workspace
from compaction.local.cluster.control_plane import RunningControlPlane

MOST_SECONDS = 0.3
CHANGES = 50
WAITING = {
    "observedGeneration": 1,
    "store": "SegmentLogs",
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "ApprovalPending",
            "message": "plan 497a31287346bc19 waits for approval",
            "lastTransitionTime": "2026-11-01T00:00:00Z",
        }
    ],
    "debt": {
        "bytes": 1 << 30,
        "sources": 4000,
        "targets": 90,
        "measures": [{"name": "missingLiveEntries", "value": 0}],
    },
    "plan": {
        "hash": "497a31287346bc19",
        "jobs": 64,
        "approval": "Pending",
        "work": [{"job": f"logs-{number}", "target": f"/data/ra/{number}", "groups": 3} for number in range(64)],
        "leftOut": [{"reason": reason, "count": 9} for reason in ("DenseEnough", "NewestSegment", "AboveSnapshot")],
    },
    "history": [
        {"plan": f"{number:016x}", "startedAt": "2026-11-01T00:00:00Z", "jobs": 64, "succeeded": 64}
        for number in range(20)
    ],
}
"""A large status: a plan of 64 jobs that waits, and twenty runs."""


@dataclass(frozen=True, slots=True)
class ServedConsole:
    """A console that was started, and a key for it."""

    process: psutil.Process
    base: str
    key: str

    def fleet(self) -> tuple[Any, list[dict[str, Any]]]:
        """A stream that is open, and the rows that came first."""
        stream = urlopen(Request(f"{self.base}/api/stream/fleet", headers={"Authorization": f"Bearer {self.key}"}))
        return stream, rows_of(stream)

    def cpu(self) -> float:
        """CPU seconds so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


def rows_of(stream: Any) -> list[dict[str, Any]]:
    """Rows of the next event."""
    for line in stream:
        if line.startswith(b"data: "):
            found: list[dict[str, Any]] = json.loads(line[6:])["rows"]
            return found
    raise AssertionError("the stream has ended")


def measure(workspace: Workspace) -> Iterator[Fact]:
    """CPU seconds of the console's process."""
    policies = workspace.pick(500, 5)
    plane = workspace.control_plane()
    namespace = new_namespace(plane)
    _make(plane, namespace, policies)
    program = Path(sys.executable).with_name("compactor")
    command = [str(program), "ui", "--port", "0", "-n", namespace, "--kubeconfig", str(plane.kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base, _, token = process.stdout.readline().split()[-1].partition("/#token=")
            sent = Request(
                f"{base}/api/sign-in",
                data=json.dumps({"token": token}).encode(),
                headers={"Content-Type": "application/json"},
            )
            with urlopen(sent) as answer:
                key = json.load(answer)["key"]
            yield from _figures(plane, namespace, policies, ServedConsole(psutil.Process(process.pid), base, key))
        finally:
            process.terminate()


def _figures(plane: RunningControlPlane, namespace: str, policies: int, console: ServedConsole) -> Iterator[Fact]:
    before = console.cpu()
    stream, rows = console.fleet()
    first = console.cpu() - before
    assert len(rows) == policies
    with stream:
        before = console.cpu()
        again, rows = console.fleet()
        refresh = console.cpu() - before
        again.close()
        assert len(rows) == policies
        before = console.cpu()
        for number in range(CHANGES):
            status = WAITING | {"bytesReclaimed": number}
            _status(plane, namespace, f"logs-{number % policies}", status)
            while not any(row["bytesReclaimed"] == number for row in rows_of(stream)):
                pass
        change = (console.cpu() - before) / CHANGES
    title = f"{policies} policies"
    yield Fact(f"{title}: first page of a console, with the list from the API server", f"{first:.2f} CPU s")
    yield Fact("... another refresh", f"{refresh:.3f} CPU s", f"<= {MOST_SECONDS:g} CPU s", met=refresh <= MOST_SECONDS)
    yield Fact("... a change of one policy", f"{1000 * change:.1f} CPU ms")


def _make(plane: RunningControlPlane, namespace: str, policies: int) -> None:
    for number in range(policies):
        name = f"logs-{number}"
        body = {
            "apiVersion": "compaction.dev/v1alpha1",
            "kind": "CompactionPolicy",
            "metadata": {"name": name, "labels": {"team": "blue"}},
            "spec": {"approval": "Manual", "store": {"segmentLogs": {"root": f"/data/{name}"}}},
        }
        answer = plane.admin.request("POST", f"{GROUP}/namespaces/{namespace}/compactionpolicies", body)
        assert answer.status == 201, answer.text
        _status(plane, namespace, name, WAITING)


def _status(plane: RunningControlPlane, namespace: str, name: str, status: dict[str, Any]) -> None:
    path = f"{GROUP}/namespaces/{namespace}/compactionpolicies/{name}/status"
    for _ in range(100):
        answer = plane.admin.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
        if answer.status == 200:
            return
        time.sleep(0.1)
    raise AssertionError(answer.text)
