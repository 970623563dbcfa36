"""Servers of a control plane that are killed, hang, and come back under the same address with the same data."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path

from compaction.local.cluster.control_plane import RunningControlPlane
from compaction.local.processes.process import ProcessId, spawn
from support.time.waiting import eventually


@dataclass
class Servers:
    """etcd and kube-apiserver of a control plane that nobody else uses."""

    running: RunningControlPlane
    commands: dict[str, list[str]] = field(default_factory=dict)
    _reserved: socket.socket | None = None

    def __post_init__(self) -> None:
        for process in self.running.processes:
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            self.commands[process.name] = [os.fsdecode(part) for part in line]

    def kill(self, name: str) -> None:
        """SIGKILL. The API server's port stays reserved, so that nobody else is given it; connections are refused."""
        if name == "kube-apiserver":
            self._reserve()
        process = self._of(name)
        process.send(signal.SIGKILL)
        process.stop()

    def restart(self, name: str) -> None:
        """Start it again as it was started before."""
        directory = self.running.directory
        log = directory / "log" / f"{name}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        child = spawn(self.commands[name], cwd=directory, log=log, env=environment)
        process = ProcessId.of(name, child.pid)
        assert process is not None, log.read_text()[-2000:]
        others = [process for process in self.running.processes if process.name != name]
        self.running = replace(self.running, processes=tuple(sorted([*others, process], key=lambda other: other.name)))

    def hang(self, name: str) -> None:
        """SIGSTOP: connections are accepted by the kernel, and nobody answers."""
        self._of(name).send(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        self._of(name).send(signal.SIGCONT)

    def until_ready(self) -> None:
        """Until the API server answers again."""
        eventually(self._ready, "the API server to be ready again", pause=0.1)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def close(self) -> None:
        for process in self.running.processes:
            process.send(signal.SIGCONT)
        self.running.stop()

    def _of(self, name: str) -> ProcessId:
        return next(process for process in self.running.processes if process.name == name)

    def _ready(self) -> bool:
        try:
            return self.running.admin.request("GET", "/readyz", timeout=5).ok
        except OSError:
            return False

    def _reserve(self) -> None:
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", int(self.running.url.rpartition(":")[2])))
