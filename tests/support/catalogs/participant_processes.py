"""Reference participants as processes of their own, driven over HTTP: killed, and started again at the same address."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.stores.ingest import SECRET
from support.time.waiting import eventually
from tools.servers.versitygw import free_port

QUICK: Final = ("--availability=1s", "--update-interval=0.2s", "--checkpoint-interval=0.2s", "--no-old-rows")
"""A watermark and checkpoints that follow within a second."""
END_SECONDS: Final = 60.0


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
            self.process.wait(END_SECONDS)
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
        connection = http.client.HTTPConnection(self.host, self.port, timeout=END_SECONDS)
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
