"""Operators as real processes, the way a person runs them, and the workers they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from compaction.kube.launchers.base import WorkerObservation
from compaction.kube.launchers.process import ProcessLauncher
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import apply, bind

ROOT = Path(__file__).resolve().parents[3]
RBAC = ROOT / "manifests" / "rbac" / "roles.yaml"
LIGHT_OPERATOR = Path(__file__).with_name("light_operator.py")
ACCOUNT = "operator"
READY = "waiting to be elected"
SERVING = re.compile(r"serving probes and metrics .*ports=\[(\d+)")


@dataclass(slots=True)
class OperatorProcess:
    """One replica. `log` holds its output; `workers` are found through the state directory all replicas share."""

    process: subprocess.Popen[bytes]
    identity: str
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def metrics_port(self) -> int:
        """The port the system chose. A port chosen here may be somebody else's by the time an operator is up."""
        found = eventually(lambda: SERVING.search(self.output), f"{self.identity} to serve its metrics")
        return int(found[1])

    def kill(self) -> None:
        """As a machine that loses its power: no signal handler runs."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def stop(self) -> int:
        """Ask it to end, as kubelet does; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode


@dataclass(slots=True)
class OperatorFleet:
    """Starts replicas of the operator for one namespace, and stops all it started, workers included.

    `light`: arguments of `light_operator.py`; None starts operators whose workers run Spark. `enter`: a command that
    everything is started through. `worker_kubeconfig`: how workers reach the API server, if not as the operators do.
    """

    kubeconfig: Path
    namespace: str
    directory: Path
    light: tuple[str, ...] | None = None
    enter: tuple[str, ...] = ()
    worker_kubeconfig: Path | None = None
    all_namespaces: bool = False
    replicas: list[OperatorProcess] = field(default_factory=list)

    @property
    def state_dir(self) -> Path:
        return self.directory / "state"

    def start(
        self,
        *,
        lease_seconds: int = 5,
        kubeconfig: Path | None = None,
        light: tuple[str, ...] | None = None,
        more: tuple[str, ...] = (),
    ) -> OperatorProcess:
        identity = f"replica-{len(self.replicas)}"
        log = self.directory / f"{identity}.log"
        own = self.directory / f"{identity}.kubeconfig"
        shutil.copyfile(kubeconfig or self.kubeconfig, own)
        command = [*self.enter, *self._program(light if light is not None else self.light), "operator"]
        command += ["--all-namespaces"] if self.all_namespaces else ["--namespace", self.namespace]
        command += ["--lease-namespace", self.namespace, "--identity", identity]
        command += ["--metrics-port", "0", "--health-port", "0"]
        command += ["--state-dir", str(self.state_dir), "--log-format", "text"]
        command += ["--lease-duration", str(lease_seconds), "--renew-deadline", f"{lease_seconds * 0.6:g}"]
        command += ["--retry-period", f"{lease_seconds * 0.2:g}", "--resync", "20"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *more],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "KUBECONFIG": str(own)},
            )
        replica = OperatorProcess(process, identity, log)
        self.replicas.append(replica)
        if self.worker_kubeconfig is not None:
            # An operator reads the file when it starts, and hands its name on to its workers.
            eventually(lambda: READY in replica.output or process.poll() is not None, f"{identity} to stand by")
            shutil.copyfile(self.worker_kubeconfig, own)
        return replica

    @staticmethod
    def _program(light: tuple[str, ...] | None) -> list[str]:
        if light is None:
            return [sys.executable, "-m", "compaction.cli.main"]
        return [sys.executable, str(LIGHT_OPERATOR), *light]

    @contextlib.contextmanager
    def supervised(self, **options: Any) -> Iterator[None]:
        """Start another replica whenever one has ended, as kubelet does."""
        ending = threading.Event()
        ended_before = {replica.identity for replica in self.replicas if replica.process.poll() is not None}

        def watch() -> None:
            while not ending.wait(0.5):
                for replica in list(self.replicas):
                    if replica.process.poll() is not None and replica.identity not in ended_before:
                        ended_before.add(replica.identity)
                        self.start(**options)

        thread = threading.Thread(target=watch, name="supervisor")
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    def replica(self, identity: str) -> OperatorProcess:
        return next(replica for replica in self.replicas if replica.identity == identity)

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
            if replica.process.poll() is None:
                # A test may have stopped it; what is stopped cannot act on SIGTERM.
                replica.process.send_signal(signal.SIGCONT)
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


@contextlib.contextmanager
def fleet_in(plane: Any, namespace: str, directory: Path, **options: Any) -> Iterator[OperatorFleet]:
    """A fleet that runs with the role that the manifests grant, never as an administrator; stopped at the end."""
    directory.mkdir(parents=True)
    apply(plane.admin, yaml.safe_load_all(RBAC.read_text()), namespace=namespace)
    kubeconfig = grant(plane, namespace, ACCOUNT, directory / "kubeconfig")
    fleet = OperatorFleet(kubeconfig=kubeconfig, namespace=namespace, directory=directory, **options)
    try:
        yield fleet
    finally:
        fleet.close()
    assert not fleet.running_workers()


def grant(plane: Any, namespace: str, account: str, path: Path) -> Path:
    """The kubeconfig of an account with the operator's role in a namespace."""
    bind(plane.admin, "compaction-operator", account, namespace=namespace)
    kubeconfig: Path = plane.running.kubeconfig_for(account, path, namespace=namespace)
    return kubeconfig


# The family of a process: who they are, and that none of them is left.


def descendants(pid: int) -> list[psutil.Process]:
    """All living descendants of a process."""
    return psutil.Process(pid).children(recursive=True)


def command_line(process: psutil.Process) -> str:
    """The arguments, joined by spaces; empty for one that has ended since it was listed (launchers come and go)."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie is one, too
        return ""


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; a zombie that nobody has collected yet has ended, too."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def still_alive(processes: Sequence[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Those that have not ended after `seconds`; returns as soon as all have."""
    until = time.monotonic() + seconds
    while (alive := [process for process in processes if not has_ended(process)]) and time.monotonic() < until:
        time.sleep(0.05)
    return alive
