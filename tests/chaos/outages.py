"""Servers of a control plane that are killed, hang, and come back under the same address with the same data."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compaction.local.cluster.control_plane import RunningControlPlane
from compaction.local.processes.process import GUARD, ProcessId, spawn
from compaction.segments.commit import fence
from compaction.segments.generate import generate_log
from support.clocks import eventually
from support.cluster.by_kubectl import Cluster, Object
from support.processes.operators import OperatorFleet
from support.segments.segment_logs import Content, content, leftovers


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


# A file system of a few megabytes that can be filled and made read-only: the errors are the kernel's own.
#
# A tmpfs inside a mount namespace of its own, so that nothing of it is seen outside, and it goes with the last
# process in it. Root needs no more; any other account gets the right to mount inside a user namespace.

BLOCK = 1 << 16


@dataclass
class SmallDisk:
    """`inside`: the directory as processes started through `enter` see it; `outside`: as this process does."""

    inside: Path
    mebibytes: int

    def __enter__(self) -> SmallDisk:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        guard = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid())]
        self._user = bool(user)
        self._holder = subprocess.Popen(
            [*guard, "/usr/bin/unshare", *user, "--mount", "--propagation=private", "sleep", "infinity"]
        )
        mine = os.readlink("/proc/self/ns/mnt")
        eventually(lambda: self._namespace() not in {mine, ""}, "a mount namespace", pause=0.02)
        self._mount("-t", "tmpfs", "-o", f"size={self.mebibytes}m", "none", str(self.inside))
        return self

    def __exit__(self, *error: object) -> None:
        self._holder.kill()
        self._holder.wait()

    def _namespace(self) -> str:
        assert self._holder.poll() is None, "this machine allows no mount namespace: run as root, or allow user ones"
        return os.readlink(f"/proc/{self._holder.pid}/ns/mnt")

    @property
    def enter(self) -> tuple[str, ...]:
        user = ("--user", "--preserve-credentials") if self._user else ()
        return ("/usr/bin/nsenter", f"--target={self._holder.pid}", *user, "--mount", "--")

    @property
    def outside(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/root{self.inside}")

    def set_read_only(self, read_only: bool) -> None:
        """EROFS for every change from now on, or no longer. The kernel refuses while a file is open for writing."""
        option = "ro" if read_only else "rw"
        command = [*self.enter, "mount", "-o", f"remount,{option}", str(self.inside)]
        eventually(
            lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0,
            f"the disk to be {option}",
        )

    def fill(self, *, leave: int) -> Path:
        """A file that takes all space but `leave` bytes; delete it to get the space back."""
        ballast = self.outside / "ballast"
        free = os.statvfs(self.outside).f_bavail * os.statvfs(self.outside).f_bsize
        with ballast.open("wb") as file:
            for _ in range((free - leave) // BLOCK):
                file.write(bytes(BLOCK))
        return ballast

    def _mount(self, *arguments: str) -> None:
        subprocess.run([*self.enter, "mount", *arguments], check=True, capture_output=True)


# What must hold after any fault: everything ended, once, with the content of before, and nothing is left over.

COORDINATOR = "compaction-coordinator"
GROUPS = 6


@dataclass
class Logs:
    """Small logs under one root, and all that was readable in them at the beginning."""

    path: Path
    before: dict[str, Content] = field(default_factory=dict)

    def add(self, name: str, **more: Any) -> Path:
        """A log with one job of 6 groups. It appears under the root at once and complete."""
        making = self.path.with_name(f"{self.path.name}-making")
        shape = {"segments": 8 * GROUPS + 1, "entries_per_segment": 64, "payload_bytes": 64} | more
        generate_log(making, sync=False, **shape)
        self.before[name] = content(making)
        making.rename(self.path / name)
        return self.path / name

    def receipts(self, name: str) -> tuple[Any, ...]:
        return fence.read(self.path / name).receipts

    def assert_content(self) -> None:
        """Everything that was readable is, and nothing else is."""
        for name, before in self.before.items():
            assert content(self.path / name) == before, name

    def assert_compacted_once(self) -> None:
        """Equal content; every group committed by exactly one attempt, and no attempt after a later one had begun."""
        self.assert_content()
        for name in self.before:
            receipts = self.receipts(name)
            assert receipts, name
            assert len({receipt.group for receipt in receipts}) == len(receipts), name
            for job in {receipt.job for receipt in receipts}:
                tokens = [receipt.token for receipt in receipts if receipt.job == job]
                assert tokens == sorted(tokens), f"{name}: a replaced attempt committed: {tokens}"

    def leftovers(self) -> list[str]:
        return [f"{name}/{left}" for name in self.before for left in leftovers(self.path / name)]


def assert_all_done(cluster: Cluster, fleet: OperatorFleet, logs: Logs) -> list[Object]:
    """Wait until everything has ended, then look for what should not be there; the jobs."""
    jobs = cluster.await_all_succeeded(at_least=len(logs.before))
    cluster.await_idle()
    assert {job["spec"]["sources"]["segmentLog"]["path"].rpartition("/")[2] for job in jobs} == set(logs.before)
    logs.assert_compacted_once()
    eventually(lambda: not logs.leftovers(), "what dead attempts left behind to be deleted")
    eventually(lambda: not cluster.leases("job"), "the job Leases to be deleted")
    eventually(lambda: not fleet.running_workers(), "the workers to leave")
    eventually(lambda: not cluster.leases("worker"), "the worker Leases to be deleted")
    strange = {lease["metadata"]["name"] for lease in cluster.list("lease")} - {COORDINATOR}
    assert strange == set()
    return jobs


def lease_of_the_coordinator(cluster: Cluster) -> Object:
    """The election's Lease."""
    [lease] = cluster.list("lease", fields=f"metadata.name={COORDINATOR}")
    return lease


def leader(cluster: Cluster) -> str:
    """Who coordinates; empty when nobody does."""
    return str(lease_of_the_coordinator(cluster)["spec"].get("holderIdentity") or "")
