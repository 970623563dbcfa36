"""A network between a client and PostgreSQL that fails at the worst moment: around COMMIT, or altogether.

Listens on a loopback port and forwards to the server's Unix socket. Connections are not encrypted, so the words of the
client can be read.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

CHUNK = 1 << 16
COMMIT = b"COMMIT\0"


class Cut(Enum):
    """When the connection is cut, once; then everything works again."""

    NEVER = "never"
    BEFORE_COMMIT = "the server never hears of the commit"
    AFTER_COMMIT = "the server commits, the client does not hear of it"


@dataclass
class CommitProxy:
    """`cut` is obeyed by the next commit of any connection; `away`: connections are closed and new ones refused."""

    target: Path
    cut: Cut = Cut.NEVER
    cuts: int = 0
    _away: bool = False
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> CommitProxy:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        self._away = True
        # A listener that is closed under accept() may sleep on: it is woken by a connection.
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        self._listener.shutdown(socket.SHUT_RDWR)  # or accept() would never hear of it
        self._listener.close()
        self.go_away()
        for thread in self._threads:
            thread.join(10)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def go_away(self) -> None:
        """As if the server's machine was switched off."""
        self._away = True
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _close(end)

    def come_back(self) -> None:
        self._away = False

    def _start(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._away:
                client.close()
                if self._listener.fileno() < 0:
                    return
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self.target))
            with self._lock:
                self._open |= {client, server}
            ended = threading.Event()
            self._start(self._forward, client, server, True, ended)
            self._start(self._forward, server, client, False, ended)

    def _forward(self, source: socket.socket, target: socket.socket, asks: bool, deaf: threading.Event) -> None:
        """`deaf`: what the server says is dropped from now on, because the commit's answer is in it."""
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if not asks and deaf.is_set():
                    break
                if asks and COMMIT in data and self.cut is not Cut.NEVER:
                    cut, self.cut = self.cut, Cut.NEVER
                    self.cuts += 1
                    if cut is Cut.BEFORE_COMMIT:
                        break
                    deaf.set()
                target.sendall(data)
        for end in (source, target):
            _close(end)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
