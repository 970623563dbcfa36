"""The bytes per second of all jobs that run in a worker, spent by whichever tasks run.

A share cut for each task is lost while its task waits for a core, is behind the others or works without reading; two
jobs on two cores left half of a limit unused. So the tasks of all attempts on an engine pay from one bucket, in the
driver: its rate is what the running attempts are granted together now (a renewal of a lease may raise that). A task
asks over the network, for a twentieth of a second at least, and waits by itself.

Invariants (tests/rewrite/test_budget.py): what was allowed never exceeds the rate times the time, and while any task
asks, nothing of the rate is left unused.
"""

from __future__ import annotations

import secrets
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from compaction.storage.pace import TokenBucket
from compaction.worker.engine import Engine
from compaction.worker.errors import RateBudgetError

_QUESTION: Final = struct.Struct("!32sQ")
"""The secret of an attempt, and bytes."""
_ANSWER: Final = struct.Struct("!d")
"""Seconds to wait; below 0 when the attempt is over."""
_STEP: Final = 0.05
"""Seconds of a job's first share that a task asks for at once: 20 questions a second at most, however small the reads,
and more in proportion once the share was raised.
"""
_PATIENCE: Final = 10.0


Granted = Callable[[], int | None]
"""The bytes per second that an attempt may move now; asked at each question. None at its start: no limit."""


@dataclass(frozen=True, slots=True)
class BudgetClient:
    """A task's access to the budget of its worker; pickled with the task. Implements `storage.pace.SharedBucket`."""

    address: tuple[str, int]
    secret: bytes
    step: int

    def take(self, count: int) -> float | None:
        """See `SharedBucket`. Raises RateBudgetError."""
        try:
            with socket.create_connection(self.address, timeout=_PATIENCE) as connection:
                connection.sendall(_QUESTION.pack(self.secret, count))
                with connection.makefile("rb") as answer:
                    (wait,) = _ANSWER.unpack(answer.read(_ANSWER.size))
        except (OSError, struct.error) as error:
            raise RateBudgetError(*self.address, error) from error
        return float(wait) if wait >= 0 else None


class RateBudget:
    """The bucket of one engine. It listens while an attempt with a limit runs. `clock`: seconds; by default that of
    `time` when this is made (the simulator has its own).
    """

    def __init__(self, host: str, *, clock: Callable[[], float] | None = None) -> None:
        self._host = host
        self._clock = clock or time.monotonic
        self._lock = threading.Lock()
        self._granted: dict[bytes, Granted] = {}
        self._bucket = TokenBucket(1, self._clock())
        self._server: _Server | None = None

    @contextmanager
    def joined(self, granted: Granted) -> Iterator[BudgetClient | None]:
        """What the tasks of an attempt ask while it runs; None without a limit. Raises RateBudgetError."""
        rate = granted()
        if rate is None:
            yield None
            return
        secret = secrets.token_hex(16).encode()
        client = BudgetClient(self._join(secret, granted), secret, max(1, int(rate * _STEP)))
        try:
            yield client
        finally:
            self._leave(secret)

    def wait_for(self, secret: bytes, count: int) -> float:
        """Seconds until so many bytes more may pass; -1 for what is no attempt that runs."""
        with self._lock:
            if not any(secrets.compare_digest(secret, known) for known in self._granted):
                return -1.0
            self._at_rate()
            self._bucket, wait = self._bucket.take(count, now=self._clock())
            return wait

    def _join(self, secret: bytes, granted: Granted) -> tuple[str, int]:
        with self._lock:
            if self._server is None:
                self._server = self._listen()
            self._granted[secret] = granted
            self._at_rate()
            return self._host, self._server.port

    def _listen(self) -> _Server:
        try:
            return _Server(self._host, self)
        except OSError as error:
            raise RateBudgetError(self._host, 0, error) from error

    def _leave(self, secret: bytes) -> None:
        with self._lock:
            del self._granted[secret]
            self._at_rate()
            server = self._server if not self._granted else None
            if server is not None:
                self._server = None
        if server is not None:
            server.close()

    def _at_rate(self) -> None:
        rate = max(1, sum(granted() or 0 for granted in self._granted.values()))
        if rate != self._bucket.bytes_per_second:
            self._bucket = self._bucket.at_rate(rate, now=self._clock())


class _Server:
    def __init__(self, host: str, budget: RateBudget) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.settimeout(_PATIENCE)
                with self.request.makefile("rb") as asked:
                    question = asked.read(_QUESTION.size)
                if len(question) == _QUESTION.size:  # whatever else may arrive at a socket gets no answer
                    self.request.sendall(_ANSWER.pack(budget.wait_for(*_QUESTION.unpack(question))))

        class Listener(socketserver.ThreadingTCPServer):
            address_family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that went away: its task fails, and says so."""

        self._listener = Listener((host, 0), Handler)
        self.port = int(self._listener.server_address[1])
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.1}, name="budget", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()


_budgets: WeakKeyDictionary[Engine, RateBudget] = WeakKeyDictionary()
_budgets_lock = threading.Lock()


def budget_of(engine: Engine) -> RateBudget:
    """The one budget of an engine, whichever rewriters use it."""
    with _budgets_lock:
        if engine not in _budgets:
            _budgets[engine] = RateBudget(engine.address)
        return _budgets[engine]
