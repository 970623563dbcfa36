"""Clocks and versions for trackers of participants, and reports that are whole."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from compaction.catalogs.errors import CatalogError
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import Cause, PartitionReport, Report, Role
from compaction.catalogs.serving.client import AskLimits, ParticipantAddress, ParticipantClient
from compaction.catalogs.serving.messages import ReportMessage
from compaction.catalogs.serving.server import DOCUMENT_PATH, ParticipantServer
from compaction.serving.access import Gate
from support.clocks import PATIENCE_SECONDS, eventually
from support.endpoints import SECRET, Endpoint, gate, serving
from tools.servers.versitygw import free_port


@dataclass
class Clock:
    """Stands until it is moved."""

    now: int

    def __call__(self) -> int:
        return self.now


@dataclass
class Versions:
    """Versions with their activation times."""

    activations: dict[int, int] = field(default_factory=dict)

    def add(self, version: int, activation: int) -> None:
        self.activations = {**self.activations, version: activation}

    def active(self, timestamp: int) -> tuple[int, int]:
        found = [(version, time) for version, time in self.activations.items() if time <= timestamp]
        if not found:
            raise CatalogError(f"no version is active at {timestamp}")
        return max(found, key=lambda item: item[1])


REPORT = Report(
    name="node1",
    minimum=90,
    cause=Cause.PARTITION,
    subject="table 5 partition 3",
    transactions=150,
    oldest_transaction=160,
    low_watermark=100,
    partitions=(PartitionReport(5, 3, Role.PRIMARY, 90),),
    index_builds=(),
    rebalances=(),
    checkpoint=120,
    clock=200,
)
"""Of a participant with one partition, ready."""


def report(**changes: Any) -> Report:
    return replace(REPORT, **changes)


# Reference participants as processes of their own, driven over HTTP: killed, and started again at the same address.

QUICK: Final = ("--availability=1s", "--update-interval=0.2s", "--checkpoint-interval=0.2s", "--no-old-rows")
"""A watermark and checkpoints that follow within a second."""


@dataclass
class ParticipantProcess:
    """`compactor catalogs serve`. Its address stays the same when it is started again. `access`: who may come in, for a
    process that does not know the shared secret alone.
    """

    name: str
    directory: Path
    host: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    options: tuple[str, ...] = QUICK
    access: tuple[str, ...] = ()
    token: str = SECRET
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def start(self) -> None:
        """A new process without any state, and wait until it answers."""
        assert self.process is None, "one at a time"
        secret = self.directory / f"{self.name}.secret"
        secret.write_text(self.token + "\n")
        command = [sys.executable, "-m", "compaction.cli.main", "catalogs", "serve", f"--name={self.name}", "--admin"]
        command += [f"--bind-address={self.host}", f"--port={self.port}", f"--secret-file=coordinator={secret}"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, *self.options, *self.access], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        eventually(self._answers, f"participant {self.name} to answer", pause=0.1)

    def kill(self) -> None:
        """As a machine that loses its power."""
        self.signal(signal.SIGKILL)
        self._reap()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def close(self) -> None:
        """The end of the process, if there is one."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self._reap()

    def _reap(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    # -- what a test asks of it ---------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Its report, as a coordinator with the shared secret gets it."""
        return self._call("GET", "/v1/report")

    def act(self, action: str, **arguments: Any) -> int:
        """Drive it; the timestamp that it answers with. Timestamps among the arguments are integers here."""
        texts = {
            key: str(value) if key in ("timestamp", "minimum", "activation") else value
            for key, value in arguments.items()
        }
        return int(self._call("POST", f"/v1/admin/{action}", texts)["timestamp"])

    def store_minimum(self, timestamp: int, token: int = 1) -> None:
        """As a coordinator that propagates it."""
        self._call("POST", "/v1/minimum", {"timestamp": str(timestamp), "token": token})

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_SECONDS)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, f"{method} {path} of {self.name}: {answer.status} {text!r}"
        found: dict[str, Any] = json.loads(text)
        return found

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


# Participants on real sockets: honest ones, and servers that answer whatever a test wants.


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
