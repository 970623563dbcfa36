"""Reach a server inside a network namespace from outside: a port on loopback whose connections go on inside.

The listening socket is made outside and stays there; the thread that serves it then moves into the namespace, so every
connection it makes begins there (setns(2) moves one thread). Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import threading

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
