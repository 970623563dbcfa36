"""Members as processes of their own, each with its data directory; killed and started again at will."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import replicated_kv
from compaction.local.processes.process import ProcessId, spawn, wait_gone
from replicated_kv.client import Client
from replicated_kv.errors import KeyValueError
from replicated_kv.members import Address, local_members, member_command
from replicated_kv.messages import Status
from support.clocks import PATIENCE_SECONDS, eventually

NAMES = ("a", "b", "c")
SMALL = ("--snapshot-every", "300", "--wal-bytes", "100000", "--segment-entries", "128")


@dataclass
class Cluster:
    """Three members below `root`, by name; `running` are those that were started and not stopped."""

    root: Path
    members: dict[str, Address] = field(default_factory=lambda: local_members(NAMES))
    running: dict[str, ProcessId] = field(default_factory=dict)
    term: int = 1
    leader: str = "a"

    def start(self, *names: str) -> None:
        for name in names:
            command = member_command(
                name, self.members, self.root / name, term=self.term, leader=self.leader, options=SMALL
            )
            child = spawn(command, cwd=self.root, log=self.log(name), env=environment())
            process = ProcessId.of(name, child.pid)
            assert process is not None
            self.running[name] = process

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        assert process.send(signal.SIGKILL)
        assert wait_gone(process, timeout=PATIENCE_SECONDS)

    def stop(self) -> None:
        for process in self.running.values():
            process.stop(patience=PATIENCE_SECONDS)
        self.running.clear()

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def status(self, client: Client, name: str) -> Status:
        """As soon as it answers."""

        def ask() -> Status | None:
            try:
                return client.status(name)
            except (OSError, KeyValueError):
                return None

        return eventually(ask, f"an answer of {name}", pause=0.05)


@contextmanager
def cluster(root: Path) -> Iterator[Cluster]:
    """Without members at first; what runs at the end is stopped."""
    made = Cluster(root)
    try:
        yield made
    finally:
        made.stop()


def run(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of a user."""
    found = {"REPLICATED_KV_MEMBERS": ",".join(f"{n}={h}:{p}" for n, (h, p) in cluster.members.items())}
    command = [*member_command("a", cluster.members, cluster.root, term=1, leader="a")[:3], *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment() | found)


def environment() -> dict[str, str]:
    """In which the example is found also where it is not installed."""
    place = str(Path(replicated_kv.__file__).parents[1])
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join([place, *_path()])}


def _path() -> Sequence[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
