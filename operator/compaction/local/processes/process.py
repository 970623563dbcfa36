"""Processes started here, named so that no other process can ever be hit: pid *and* start time.

A pid alone is reused by the kernel; a state file that survived a reboot or a crash would then name a stranger. Nothing
is stopped by name. Children of a foreground run die with their parent even when it is killed with SIGKILL (Linux
PR_SET_PDEATHSIG, set by `guard.py` in the child itself, because code run between fork and exec is unsafe in a process
with threads).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for all times: `started` is an opaque mark of boot and start, compared for equality only."""

    name: str
    pid: int
    started: str

    @classmethod
    def of(cls, name: str, pid: int) -> ProcessId | None:
        """Identify the running process `pid`; None when there is none (or it is already dead and unreaped)."""
        mark = start_mark(pid)
        return None if mark is None else cls(name=name, pid=pid, started=mark)

    def alive(self) -> bool:
        """True while exactly this process runs; a zombie counts as gone."""
        return start_mark(self.pid) == self.started

    def send(self, signum: signal.Signals, *, group: bool = False) -> bool:
        """Signal this process (or the process group it leads); False when it is gone already."""
        if not self.alive():
            return False
        try:
            if group:
                os.killpg(self.pid, signum)
            else:
                os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        return True

    def stop(self, *, patience: float = 5.0, group: bool = False) -> None:
        """SIGTERM, then SIGKILL after `patience` seconds; returns when it is gone."""
        if self.send(signal.SIGTERM, group=group) and not wait_gone(self, timeout=patience):
            self.send(signal.SIGKILL, group=group)
            wait_gone(self, timeout=patience)
        child = _children.pop(self.pid, None)
        if child is not None:
            child.wait()


def start_mark(pid: int) -> str | None:
    """When (in which boot) the process `pid` started, or None when it does not run."""
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        return _start_mark_from_ps(pid)
    try:
        # The command name is in parentheses and may itself hold spaces and parentheses: split after the last one.
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], fields[19]
    if state in {"Z", "X"}:
        return None
    return f"{_boot_id()}:{started}"


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "unknown-boot"


def _start_mark_from_ps(pid: int) -> str | None:
    answer = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else " ".join(started.split())


def wait_gone(process: ProcessId, *, timeout: float) -> bool:
    """Wait until the process is gone; False when it still runs after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while process.alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def spawn(
    command: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    detached: bool = False,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server whose output goes to `log`, in a session of its own (a terminal's Ctrl-C reaches only us, who
    then stop it in order).

    Not `detached`: it is killed by the kernel when the calling *thread's* process dies, however that happens.
    """
    prefix = [] if detached else [sys.executable, "-I", "-S", str(GUARD), str(os.getpid())]
    with log.open("ab") as output:
        child = subprocess.Popen(
            [*prefix, *command],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=None if env is None else dict(env),
        )
    _children[child.pid] = child
    return child


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Our own children until they are stopped: an exited child keeps its pid (as a zombie) until it is waited for."""
