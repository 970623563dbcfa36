"""Participants on real sockets: honest ones, and servers that answer whatever a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import Report, Role
from compaction.catalogs.serving.client import AskLimits, ParticipantAddress, ParticipantClient
from compaction.catalogs.serving.messages import ReportMessage
from compaction.catalogs.serving.server import DOCUMENT_PATH, ParticipantServer
from compaction.serving.access import Gate
from support.stores.ingest import SECRET, Endpoint, gate, serving


def ready(name: str = "node1") -> ReferenceParticipant:
    """With three versions and a partition that it leads, which has published a minimum."""
    found = ReferenceParticipant(name)
    for version in (1, 2, 3):
        found.versions.add(version, hybrid(version * 1000))
    found.add_partition(5, 0, Role.PRIMARY)
    found.move_watermark(hybrid(50_000))
    found.store_minimum(hybrid(2500))
    found.begin_checkpoint()
    found.finish_checkpoint()
    return found


@contextmanager
def participant(
    one: ReferenceParticipant,
    directory: Path,
    *,
    admin: bool = False,
    make_gate: Callable[[], Gate] | None = None,
    **options: Any,
) -> Iterator[Endpoint]:
    """Served, and called by a client that holds every answer against the document."""
    make = partial(ParticipantServer, admin=one if admin else None)
    wanted = make_gate or (lambda: gate(directory))
    with serving(one, wanted, make=make, document=DOCUMENT_PATH, **options) as endpoint:
        yield endpoint


def client(**options: Any) -> ParticipantClient:
    """One that waits long: where a test is about time it says so."""
    limits = AskLimits(**({"seconds": 60.0} | options))
    return ParticipantClient(lambda: SECRET, limits=limits)


def at(port: int, name: str = "node1") -> ParticipantAddress:
    return ParticipantAddress(name, f"http://127.0.0.1:{port}")


def answer(
    body: bytes, *, status: str = "200 OK", kind: str = "application/json", length: int | None = None, more: str = ""
) -> bytes:
    """An HTTP answer as bytes."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body) if length is None else length}\r\n"
    return head.encode() + more.encode() + b"Connection: close\r\n\r\n" + body


def report_answer(report: Report) -> bytes:
    return answer(ReportMessage.of(report).to_json())


Script = Callable[[socket.socket, threading.Event], None]
"""Answers one connection, whose request was read; the event is set when the test is over."""


def says(data: bytes) -> Script:
    """These bytes to every request."""
    return lambda connection, _: connection.sendall(data)


@contextmanager
def raw_server(script: Script, port: int = 0) -> Iterator[int]:
    """A port, or this one, where every connection is answered by `script`."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    workers: list[threading.Thread] = []

    def one(connection: socket.socket) -> None:
        with connection:
            try:
                seen = b""
                while b"\r\n\r\n" not in seen:
                    data = connection.recv(65536)
                    if not data:
                        return
                    seen += data
                script(connection, over)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                return  # the client had enough

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if over.is_set():
                connection.close()
                return
            workers.append(threading.Thread(target=one, args=(connection,)))
            workers[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        over.set()
        with socket.create_connection(listener.getsockname()):
            pass
        accepting.join()
        listener.close()
        for worker in workers:
            worker.join()
