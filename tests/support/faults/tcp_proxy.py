"""A network that can be cut: a TCP proxy on loopback between one client and the API server."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Self

CHUNK = 1 << 16


class Network(Enum):
    """What becomes of bytes and of new connections."""

    UP = "up"
    REFUSING = "refusing"
    """Connections are reset, new ones are reset as soon as they come."""
    BLACK_HOLE = "black hole"
    """Everything is accepted and nothing arrives. What was under way arrives late, once the network is up again."""


@dataclass(slots=True)
class _Pipe:
    """One direction of a connection."""

    source: socket.socket
    target: socket.socket


@dataclass
class TcpProxy:
    """Forwards to `target`. One thread; `set` takes effect within a few milliseconds."""

    target: tuple[str, int]
    state: Network = Network.UP
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._ended = False
        self._open: dict[socket.socket, _Pipe] = {}
        self._thread = threading.Thread(target=self._serve, name="tcp proxy")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def set(self, state: Network) -> None:
        """Cut or mend the network."""
        self.state = state

    def passes(self, source: socket.socket, target: socket.socket, data: bytes) -> bool:
        """Whether these bytes go on; the connection is reset when they do not."""
        return True

    def kubeconfig(self, original: Path, url: str, path: Path) -> Path:
        """A copy of a kubeconfig that leads through this proxy."""
        text = original.read_text()
        assert url in text
        path.write_text(text.replace(url, f"https://127.0.0.1:{self.port}"))
        return path

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ended:
                if self.state is Network.REFUSING:
                    for end in list(self._open):
                        self._reset(end, selector)
                if self.state is Network.BLACK_HOLE:
                    # Nobody reads: the kernel takes what its buffers hold, and new connections up to the backlog.
                    threading.Event().wait(0.02)
                    continue
                for key, _ in selector.select(0.02):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif key.fileobj in self._open:
                        self._forward(self._open[key.fileobj], selector)
            for end in list(self._open):
                self._reset(end, selector)
            self._listener.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        if self.state is Network.REFUSING:
            _reset(client)
            return
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            _reset(client)
            return
        for source, target in ((client, server), (server, client)):
            self._open[source] = _Pipe(source, target)
            selector.register(source, selectors.EVENT_READ)

    def _forward(self, pipe: _Pipe, selector: selectors.BaseSelector) -> None:
        try:
            data = pipe.source.recv(CHUNK)
            if data and self.passes(pipe.source, pipe.target, data):
                pipe.target.sendall(data)
                return
        except OSError:
            pass
        self._reset(pipe.source, selector)

    def _reset(self, end: socket.socket, selector: selectors.BaseSelector) -> None:
        pipe = self._open.pop(end, None)
        if pipe is None:
            return
        self._open.pop(pipe.target, None)
        for item in (pipe.source, pipe.target):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(item)
            _reset(item)


def _reset(end: socket.socket) -> None:
    """Close with RST instead of FIN: the other side gets an error, not an end of file."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
