"""The one process of a node that lives outside its namespaces: makes them, relays the API server, cleans up after them.

    python -m tools.node.keeper PLAN PARENT

It ends, with everything inside, on SIGTERM, SIGINT or SIGHUP, when process 1 of the node ends, and (PARENT not 0) when
the process PARENT dies however that happens. In all these cases it removes the control groups. If it is itself killed
without a word, the kernel kills the node; its empty control groups are removed by the next start or stop.
Standard library only, so that it starts at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from compaction.local.errors import NodeError
from compaction.local.processes import process
from tools.node import places

# Reach a server inside a network namespace from outside: a port on loopback whose connections go on inside.
#
# The listening socket is made outside and stays there; the thread that serves it then moves into the namespace, so
# every connection it makes begins there (setns(2) moves one thread). Standard library only.

CLONE_NEWNET = 0x40000000
CHUNK = 1 << 16


def listen() -> socket.socket:
    """A listening socket on a free port of loopback, in the namespace of the caller."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.bind(("127.0.0.1", 0))
    server.listen(128)
    return server


def serve_in_thread(server: socket.socket, *, pid: int, target: tuple[str, int]) -> None:
    """Relay what arrives at `server` to `target` inside the network namespace of process `pid`, for ever."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    threading.Thread(target=_serve, args=(server, namespace, target), name="relay", daemon=True).start()


def _serve(server: socket.socket, namespace: int, target: tuple[str, int]) -> None:
    enter(namespace)
    asyncio.run(accept(server, target))


def enter(namespace: int) -> None:
    """Move the calling thread into a network namespace (an open /proc/PID/ns/net). Raises OSError when not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "setns")


async def accept(server: socket.socket, target: tuple[str, int]) -> None:
    """Relay connections for ever, in the namespace of the calling thread."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Nobody listens while the server is down: the caller then sees its connection end, as with any server.
            inner_reader, inner_writer = await asyncio.open_connection(*target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    running = await asyncio.start_server(relay, sock=server)
    async with running:
        await running.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()


PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.1
GUARD = Path(process.__file__).with_name("guard.py")
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
        server = listen()
        switched_on = places.create_cgroups(plan["cgroup"])
        return _keep(plan, server)
    except KeyboardInterrupt:
        return 0
    except NodeError as error:
        print(error, flush=True)
        return 1
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        left = places.remove_cgroups(plan["cgroup"], switched_on=switched_on)
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
        serve_in_thread(server, pid=first, target=tuple(plan["api"]))
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
