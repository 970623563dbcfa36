"""The one process of a node that lives outside its namespaces: makes them, relays the API server, cleans up after them.

    python -m compaction.local.node.keeper PLAN PARENT

It ends, with everything inside, on SIGTERM, SIGINT or SIGHUP, when process 1 of the node ends, and (PARENT not 0) when
the process PARENT dies however that happens. In all these cases it removes the control groups. If it is itself killed
without a word, the kernel kills the node; its empty control groups are removed by the next start or stop.
Standard library only, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from compaction.local.errors import NodeError
from compaction.local.node import cgroups, relay

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.1
GUARD = Path(__file__).resolve().parents[1] / "processes" / "guard.py"
INIT = Path(__file__).with_name("init.py")
NAMESPACES = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private")


def main() -> int:
    plan, parent = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, _end)
    if parent and not _die_with(parent):
        return 1
    switched_on: tuple[str, ...] = ()
    try:
        server = relay.listen()
        switched_on = cgroups.create(plan["cgroup"])
        return _keep(plan, server)
    except KeyboardInterrupt:
        return 0
    except NodeError as error:
        print(error, flush=True)
        return 1
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        left = cgroups.remove(plan["cgroup"], switched_on=switched_on)
        if left:
            print(f"control groups that could not be removed: {', '.join(map(str, left))}", flush=True)


def _end(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _die_with(parent: int) -> bool:
    """Ask for SIGTERM when the parent dies; False when it is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent


def _keep(plan: dict[str, Any], server: socket.socket) -> int:
    command = ["unshare", *NAMESPACES, sys.executable, "-I", "-S", str(INIT), sys.argv[1]]
    holder = subprocess.Popen([sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), *_absolute(command)])
    try:
        first = _process_one(holder)
        relay.serve_in_thread(server, pid=first, target=tuple(plan["api"]))
        _write(Path(plan["kept"]), {"pid": first, "port": server.getsockname()[1]})
        return holder.wait()
    finally:
        # Killing the holder makes the kernel kill process 1, and that one's death kills the rest.
        holder.kill()
        holder.wait()


def _absolute(command: list[str]) -> list[str]:
    """The guard executes a path."""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = next(place for place in places if os.access(os.path.join(place, command[0]), os.X_OK))
    return [os.path.join(found, command[0]), *command[1:]]


def _process_one(holder: subprocess.Popen[bytes]) -> int:
    """The pid, as seen here, of process 1 inside: the only child of `unshare`, once it has made one."""
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    outside = Path("/proc/self/ns/net").stat().st_ino
    while holder.poll() is None:
        with contextlib.suppress(OSError):
            found = children.read_text().split()
            if found and Path(f"/proc/{found[0]}/ns/net").stat().st_ino != outside:
                return int(found[0])
        time.sleep(POLL_SECONDS)
    raise SystemExit(f"unshare ended with {holder.returncode}")


def _write(path: Path, document: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document))
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
