"""Operators as real processes, the way a person runs them, and the workers they leave behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from compaction.kube.launchers.base import WorkerObservation
from compaction.kube.launchers.process import ProcessLauncher

STOP_SECONDS = 30.0


@dataclass(slots=True)
class OperatorProcess:
    """One replica. `log` holds its output; `workers` are found through the state directory all replicas share."""

    process: subprocess.Popen[bytes]
    identity: str
    log: Path
    metrics_port: int
    health_port: int

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """As a machine that loses its power: no signal handler runs."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """Ask it to end, as kubelet does; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode


@dataclass(slots=True)
class OperatorFleet:
    """Starts replicas of the operator for one namespace, and stops all it started, workers included."""

    kubeconfig: Path
    namespace: str
    directory: Path
    replicas: list[OperatorProcess] = field(default_factory=list)

    @property
    def state_dir(self) -> Path:
        return self.directory / "state"

    def start(self, *, lease_seconds: int = 5) -> OperatorProcess:
        identity = f"replica-{len(self.replicas)}"
        metrics_port, health_port = free_port(), free_port()
        log = self.directory / f"{identity}.log"
        command = [sys.executable, "-m", "compaction.cli.main", "operator"]
        command += ["--namespace", self.namespace, "--lease-namespace", self.namespace, "--identity", identity]
        command += ["--metrics-port", str(metrics_port), "--health-port", str(health_port)]
        command += ["--state-dir", str(self.state_dir), "--log-format", "text"]
        command += ["--lease-duration", str(lease_seconds), "--renew-deadline", str(lease_seconds * 0.6)]
        command += ["--retry-period", str(lease_seconds * 0.2), "--resync", "20"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            )
        replica = OperatorProcess(process, identity, log, metrics_port, health_port)
        self.replicas.append(replica)
        return replica

    def workers(self) -> list[WorkerObservation]:
        """Every worker whose record exists, as a fresh coordinator on this machine would see it."""
        return asyncio.run(ProcessLauncher(self.state_dir).observe())

    def running_workers(self) -> list[WorkerObservation]:
        return [worker for worker in self.workers() if not worker.ended]

    def worker_pid(self, name: str) -> int:
        """The pid of a worker; it leads a session and a process group of its own."""
        record = json.loads((self.state_dir / "workers" / f"{name}.json").read_text())
        return int(record["pid"])

    def signal_worker(self, name: str, number: signal.Signals) -> None:
        """Signal a worker with everything it started (driver, JVM, Python tasks)."""
        os.killpg(self.worker_pid(name), number)

    def close(self) -> None:
        for replica in self.replicas:
            replica.stop()
        asyncio.run(self._stop_workers())

    async def _stop_workers(self) -> None:
        launcher = ProcessLauncher(self.state_dir)
        for worker in await launcher.observe():
            if not worker.ended:
                # A test may have stopped it; what is stopped cannot act on SIGTERM.
                self.signal_worker(worker.name, signal.SIGCONT)
                await launcher.stop(worker.ref, grace=10.0)


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
