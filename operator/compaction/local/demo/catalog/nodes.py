"""Participants of the demo: reference participants as processes (`compactor catalogs serve`), driven over HTTP."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from compaction.local.demo.catalog.scenario import AVAILABILITY
from compaction.local.errors import DemoError
from compaction.local.processes.process import ProcessId, spawn
from compaction.local.servers.versitygw import free_port

START_SECONDS: Final = 120.0
"""Until it answers. Not a measure of speed: a busy machine takes long to import."""
ANSWER_SECONDS: Final = 60.0
CHECKPOINT_SECONDS: Final = 0.5
_HOST: Final = "127.0.0.1"


@dataclass
class Node:
    """One running participant. `checkpoints`: it takes them itself. Safe for threads."""

    name: str
    port: int
    checkpoints: bool
    process: ProcessId
    token: str = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    def act(self, action: str, **body: Any) -> int:
        """Drive it; the timestamp of its answer, 0 where it has none. Raises DemoError."""
        return int(self.call("POST", f"/v1/admin/{action}", body).get("timestamp") or 0)

    def report(self) -> dict[str, Any]:
        """What it would tell a coordinator. Raises DemoError."""
        return self.call("GET", "/v1/report")

    def checkpoint(self) -> None:
        """Take one. Raises DemoError."""
        self.act("begin-checkpoint")
        self.act("finish-checkpoint")

    def close(self) -> None:
        """Free the connection; another call opens one again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request. Raises DemoError: it did not answer, or refused."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with self._lock:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(_HOST, self.port, timeout=ANSWER_SECONDS)
            try:
                self._connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = self._connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                self._connection = None
                raise DemoError(f"{self.name} does not answer {method} {path}: {error}") from error
        if answer.status != http.client.OK:
            raise DemoError(f"{self.name} refused {method} {path}: {answer.status} {text[:500]!r}")
        found: dict[str, Any] = json.loads(text)
        return found


def start_node(directory: Path, name: str, token: str, *, checkpoints: bool, detached: bool) -> Node:
    """Start a participant that keeps its log in `directory`, where its secret is.

    `detached`: it outlives this process, else it ends with the thread that called this. Raises DemoError.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = directory / "participants.secret"
    secret.touch(mode=0o600)
    secret.write_text(token + "\n")
    port = free_port()
    command = [sys.executable, "-m", "compaction.cli.main", "catalogs", "serve", "--name", name, "--admin"]
    command += ["--port", str(port), "--secret-file", f"coordinator={secret}"]
    command += ["--availability", AVAILABILITY, "--update-interval", "500ms"]
    if checkpoints:
        command += ["--checkpoint-interval", f"{CHECKPOINT_SECONDS}s"]
    child = spawn(command, cwd=directory, log=directory / f"{name}.log", detached=detached)
    process = ProcessId.of(name, child.pid)
    if process is None:
        raise DemoError(f"{name} ended at once: see {directory / f'{name}.log'}")
    return Node(name, port, checkpoints, process, token)


def wait_ready(node: Node, directory: Path) -> None:
    """Until it answers. Raises DemoError."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            node.report()
            return
        except DemoError as error:
            if not node.process.alive() or time.monotonic() > deadline:
                raise DemoError(f"{node.name} did not start: see {directory / f'{node.name}.log'}") from error
        time.sleep(0.1)


@contextmanager
def checkpointing(node: Node) -> Iterator[threading.Event]:
    """It takes checkpoints once the event is set, until the block is left."""
    begun, stopped = threading.Event(), threading.Event()

    def run() -> None:
        begun.wait()
        while not stopped.is_set():
            node.checkpoint()
            stopped.wait(CHECKPOINT_SECONDS)

    thread = threading.Thread(target=run, name="checkpoints", daemon=True)
    thread.start()
    try:
        yield begun
    finally:
        stopped.set()
        begun.set()
        thread.join(ANSWER_SECONDS)
