"""The operator as a user would start it: two replicas of `compactor operator`, and the workers they launch.

Replicas are stopped by the process ids kept here. Workers outlive a coordinator on purpose, so what is left of them is
found in the launcher's records (`<state-dir>/workers/*.json`) and stopped by pid and start time.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.local.cluster.state import LocalState, read_state, remove_state, write_state
from compaction.local.demo.cluster import NAMESPACE
from compaction.local.errors import DemoError
from compaction.local.processes.process import ProcessId, spawn, wait_gone

REPLICAS: Final = ("replica-a", "replica-b")
STOP_SECONDS: Final = 30.0
WORKER_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Replicas:
    """The operator's processes, their logs and their state in `directory`."""

    directory: Path
    processes: tuple[ProcessId, ...]

    @property
    def alive(self) -> tuple[ProcessId, ...]:
        return tuple(process for process in self.processes if process.alive())

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


def start_replicas(directory: Path, *, kubeconfig: Path, detached: bool) -> Replicas:
    """Start the replicas; they write to `directory`/<name>.log. `detached`: they outlive this process.

    Raises:
        DemoError: one ended at once; names its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    started: list[ProcessId] = []
    for name in REPLICAS:
        command = [sys.executable, "-m", "compaction.cli.main", "operator", "--namespace", NAMESPACE]
        command += ["--kubeconfig", str(kubeconfig), "--identity", name, "--state-dir", str(directory / "state")]
        # Two replicas on one machine: each gets free ports.
        command += ["--metrics-port", "0", "--health-port", "0"]
        child = spawn(command, cwd=directory, log=directory / f"{name}.log", detached=detached)
        process = ProcessId.of(name, child.pid)
        if process is None:
            raise DemoError(f"{name} of the operator ended at once: see {directory / f'{name}.log'}")
        started.append(process)
        write_state(directory, LocalState(url="", kubeconfig=kubeconfig, processes=tuple(started)))
    return Replicas(directory, tuple(started))


def stop_replicas(directory: Path) -> None:
    """Stop recorded replicas (standby first, so that none takes over meanwhile) and every worker that is left."""
    state = read_state(directory) if directory.is_dir() else None
    if state is not None:
        for process in reversed(state.processes):
            process.send(signal.SIGTERM)
        for process in reversed(state.processes):
            wait_gone(process, timeout=STOP_SECONDS)
            process.stop()
    for worker in leftover_workers(directory):
        worker.send(signal.SIGTERM, group=True)
        if not wait_gone(worker, timeout=WORKER_SECONDS):
            worker.send(signal.SIGKILL, group=True)
            wait_gone(worker, timeout=WORKER_SECONDS)
    # A worker keeps its Secrets as long as it lives; the operator, who would remove them then, is gone.
    for secrets in (directory / "state" / "workers").glob("*.secrets"):
        shutil.rmtree(secrets)
    if state is not None:
        remove_state(directory)


def leftover_workers(directory: Path) -> list[ProcessId]:
    """Workers that still run, by the launcher's records; each leads a session of its own, its Spark JVM included."""
    return [worker for worker in _recorded_workers(directory / "state" / "workers") if worker.alive()]


def _recorded_workers(directory: Path) -> Iterator[ProcessId]:
    for path in sorted(directory.glob("*.json")):
        # A record that is empty or gone belongs to a worker that was never started or has ended.
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            record = json.loads(path.read_text())
            process = ProcessId.of(str(record["name"]), int(record["pid"]))
            if process is not None and process.started.endswith(f":{record['startTicks']}"):
                yield process
