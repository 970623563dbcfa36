"""Processes started here, locks between them, and the cache of what is costly to make."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.api.text.printing import cut, printable
from compaction.storage.opened import LEASE, Holder, ThisProcess

# The cache of this machine for what is costly to make: programs, images, archives of Spark's classes.
#
# The standard library only: `make setup` needs it while pip still fills the environment.

CACHE_VARIABLE: Final = "COMPACTION_CACHE"


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """`$COMPACTION_CACHE`, else `$XDG_CACHE_HOME/compaction-operator`, else `~/.cache/compaction-operator`."""
    environment = os.environ if environment is None else environment
    if environment.get(CACHE_VARIABLE):
        return Path(environment[CACHE_VARIABLE]).absolute()
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "compaction-operator"


def class_archives() -> Path:
    """The directory for archives of Spark's classes (worker/spark/class_archive)."""
    return cache_directory() / "spark"


# A file lock between processes that says for whom it waits, and what that process does.
#
# The words are the holder's, in the file: a waiter knows its own task only.

POLL_SECONDS = 0.2
NAMELESS_LOOKS = 25
"""How often a waiter looks for the name of a holder before it speaks of another process: 5 seconds."""
_LONGEST: Final = 500
"""Characters of a holder's words in a message: a task may name a directory."""


@contextlib.contextmanager
def exclusive(path: Path, *, what: str, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock `path` while the body runs, which is busy with `what`; tell once, through `report`, when another
    process holds it.

    The kernel drops the lock when its holder dies, so a crash never leaves a stale one; the file itself stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        told, looks = False, 0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                note = os.pread(descriptor, 4 * _LONGEST, 0).decode(errors="replace").strip()
                holder = printable(cut(note, _LONGEST))
                # A holder that has just begun has not written its name yet.
                if not told and (holder or looks == NAMELESS_LOOKS):
                    report(f"waiting for {holder or 'another process'}")
                    told = True
                looks += 1
                time.sleep(POLL_SECONDS)
        try:
            os.ftruncate(descriptor, 0)
            note = f"process {os.getpid()}, which is busy with: {what}"
            os.pwrite(descriptor, note.encode(errors="replace"), 0)
            yield
        finally:
            os.ftruncate(descriptor, 0)  # the next holder's waiters are not told this name
    finally:
        os.close(descriptor)


# Processes started here, named so that no other process can ever be hit: pid *and* start time.
#
# A pid alone is reused by the kernel; a state file that survived a reboot or a crash would then name a stranger.
# Nothing is stopped by name. Children of a foreground run die with their parent even when it is killed with SIGKILL
# (Linux PR_SET_PDEATHSIG, set by `guard.py` in the child itself, because code run between fork and exec is unsafe in
# a process with threads).

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
        child = _child_of(self)
        if child is not None:
            child.wait()
            _children.pop(self.pid, None)


def start_mark(pid: int) -> str | None:
    """Return the time (and the boot) at which the process `pid` started, or None when it does not run."""
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        answer = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        state, _, started = answer.stdout.strip().partition(" ")
        return None if not started or state.startswith("Z") else " ".join(started.split())
    try:
        # The command name is in parentheses and may itself hold spaces and parentheses: split after the last one.
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], fields[19]
    if state in {"Z", "X"}:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip() if boot.exists() else 'unknown-boot'}:{started}"


def wait_gone(process: ProcessId, *, timeout: float) -> bool:
    """Wait until the process is gone; False when it still runs after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while process.alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    child = _child_of(process)
    # A child of ours that has ended is no zombie from here on.
    if child is not None and child.poll() is not None:
        _children.pop(process.pid, None)
    return True


def _child_of(process: ProcessId) -> subprocess.Popen[bytes] | None:
    """Our child that a process is, or was; of one that is gone another may have got the pid by now, which is not it."""
    return _children.get(process.pid) if start_mark(process.pid) in (None, process.started) else None


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
"""Our own children until they are gone: an exited child keeps its pid (as a zombie) until it is waited for."""


# This process as one that claims jobs: which it is, so that others can tell whether it still runs.


def this_process() -> ThisProcess:
    """A holder of its own for each call."""
    pid = os.getpid()
    holder = Holder(
        id=secrets.token_hex(8),
        host=socket.gethostname(),
        place=_place(),
        pid=pid,
        started=start_mark(pid) or "",
        lease=LEASE,
    )
    return ThisProcess(holder, has_ended)


def has_ended(pid: int, started: str) -> bool:
    """The process of this pid and start is gone. One that cannot be inspected is not."""
    mark = start_mark(pid)
    if mark is not None:
        return mark != started
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False  # where /proc hides the processes of other users
    except ProcessLookupError:
        return True
    return True  # it has ended, and its parent has not asked for it yet


def _place() -> str:
    """This boot of this machine, and the namespace in which its pids count; empty where neither can be read."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    try:
        return f"{boot.read_text().strip()} {namespace.readlink()}"
    except OSError:
        return ""
