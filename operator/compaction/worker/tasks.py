"""Tasks of one attempt on the engine, while the lease is held, alike for every kind of rewrite."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias, TypeVar

import structlog

from compaction.api.enums import JobReason
from compaction.api.job.job_status import ReportOutcome
from compaction.api.policy.values import CaBundle
from compaction.storage.objects.store import ObjectStorage, open_objects
from compaction.storage.secrets import DirectorySecrets, Secrets, TaskSecret, options_of
from compaction.worker.ports import Engine, HeldLease

# Access of tasks to the objects of a store; what is secret stays in Secrets for as long as that is possible.


@dataclass(frozen=True, slots=True)
class ObjectsPlace:
    """The place of the objects, as plain data that a task is given; `options` are credentials, which never show."""

    url: str
    options: Mapping[str, str] | TaskSecret = field(default_factory=dict, repr=False)

    def open(self) -> ObjectStorage:
        """Raises SecretError, ObjectStoreUrlError."""
        options = self.options.options() if isinstance(self.options, TaskSecret) else self.options
        return open_objects(self.url, options=options)


def objects_place(
    url: str, secret_name: str | None, secrets: Secrets, ca_bundle: CaBundle | None = None
) -> ObjectsPlace:
    """Return the place of the objects for tasks: where Secrets are files, executors have them too and read them
    themselves; else their values travel. Raises SecretError.
    """
    if isinstance(secrets, DirectorySecrets):
        return ObjectsPlace(url, TaskSecret(secrets, secret_name or "", ca_bundle))
    return ObjectsPlace(url, dict(options_of(secrets, secret_name, ca_bundle)))


# Progress of the tasks of a job while they run: each tells its share, in datagrams to the driver.
#
# Spark says that a task has ended, and nothing before that; what Python accumulates in a task arrives with its
# result. A merge is one task for many minutes. So a task sends its share once a second to a socket of the driver's,
# which executors reach anyway; what is lost or late changes nothing but how smoothly progress moves. No other process
# can report: a datagram counts when it has the secret that went to the tasks, and a share only ever grows.

log = structlog.get_logger(__name__)

TELL_SECONDS: Final = 1.0
_LONGEST: Final = 512
"""Bytes of a datagram."""
_LOOK_SECONDS: Final = 1.0
_END: Final = b""


@dataclass(slots=True)
class Teller:
    """Belongs to one task. Pickled with it; `total`: rows that are moved until the task has ended, about."""

    address: tuple[str, int]
    secret: str
    number: int
    total: int
    _moved: int = field(default=0, init=False)
    _told_at: float | None = field(default=None, init=False)

    def __call__(self, rows: int) -> None:
        """So many rows were moved once more."""
        self._moved += rows
        now = time.monotonic()
        if self._told_at is not None and now - self._told_at < TELL_SECONDS:
            return
        self._told_at = now
        share = min(1.0, self._moved / max(1, self.total))
        said = json.dumps({"secret": self.secret, "task": self.number, "share": share}).encode()
        with suppress(OSError):  # the driver is told by the task's result, if by nothing else
            family, kind, protocol, _, address = socket.getaddrinfo(*self.address, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as sender:
                sender.sendto(said, address)


class Shares:
    """The driver's side: a context manager that listens. `sizes`: of the tasks, in any unit; `grown` gets by how much
    of them the whole has grown, from a datagram or `finish`.
    """

    def __init__(self, host: str, sizes: Sequence[float], grown: Callable[[float], None]) -> None:
        self._host = host
        self._grown = grown
        self._sizes = tuple(sizes)
        self._known = [0.0] * len(self._sizes)
        self._secret = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._listen, name="shares", daemon=True)

    def __enter__(self) -> Self:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(self._host, 0, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.bind(address)
            self._socket.settimeout(_LOOK_SECONDS)
        except OSError as error:
            # The work does not depend on it, so it goes on without a listener.
            log.warning("progress is reported only when tasks have ended", host=self._host, error=str(error))
            self._close()
        else:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._over.set()
            with suppress(OSError):  # only so that nobody waits: it may be lost, as any datagram
                self._socket.sendto(_END, self._socket.getsockname())
            self._thread.join()
        self._close()

    def teller(self, number: int, total: int) -> Teller | None:
        """Return the teller that a task reports its share with; None without a listener."""
        if self._socket is None:
            return None
        return Teller((self._host, self._socket.getsockname()[1]), self._secret, number, total)

    def finish(self, number: int) -> None:
        """The task has ended."""
        self._know(number, 1.0)

    def _listen(self) -> None:
        assert self._socket is not None
        while not self._over.is_set():
            with suppress(TimeoutError):
                self._hear(self._socket.recv(_LONGEST))

    def _hear(self, said: bytes) -> None:
        """Whatever may arrive at a socket: what is not from a task of ours is no share."""
        try:
            found = json.loads(said)
        except ValueError:
            return
        if not isinstance(found, dict) or not secrets.compare_digest(str(found.get("secret")), self._secret):
            return
        self._know(int(found["task"]), float(found["share"]))

    def _know(self, number: int, share: float) -> None:
        with self._lock:
            grown = (share - self._known[number]) * self._sizes[number]
            if grown > 0:  # not the difference: times a size, the least of all numbers is 0
                self._known[number] = share
                self._grown(grown)

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


# Tasks of one attempt on the engine, a few at a time, while the lease is held: alike for every kind of rewrite.

Task = TypeVar("Task")
Result = TypeVar("Result")
Arrived: TypeAlias = list[tuple[int, Result]]
"""The number of a task in the order they were given, and what it returned."""

LOOK_SECONDS: Final = 0.25
"""How often a running job looks whether it must stop."""


def run_tasks(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, engine: Engine, lease: HeldLease, tag: str
) -> Generator[Arrived[Result]]:
    """Run `work` on each task and give what has arrived whenever something has. A task is taken from `tasks` when the
    engine has room for it. Close it (`contextlib.closing`) to end
    early: nothing runs any more when it is closed, however that came about.

    Raises LeaseLostError, JobStoppedError: the lease; EngineLostError, TaskFailedError: the engine.
    """
    waiting = enumerate(tasks)
    upcoming = next(waiting, None)
    running: dict[Future[Result], int] = {}
    try:
        while upcoming or running:
            lease.ensure_held()
            while upcoming and len(running) < engine.parallelism:
                number, task = upcoming
                upcoming = next(waiting, None)
                running[engine.submit(work, task, tag=tag)] = number
            done, _ = wait(running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            arrived = [(future.result(), running.pop(future)) for future in done]
            if arrived:
                yield [(number, result) for result, number in arrived]
    finally:
        if running:
            engine.cancel(tag)


# The result of several failures of one attempt.


class Failure(Protocol):
    """A part of a job that was not done, and why."""

    @property
    def reason(self) -> str: ...

    @property
    def message(self) -> str: ...


F = TypeVar("F", bound=Failure)


def verdict(failures: Sequence[F], *, worst_first: Sequence[str]) -> tuple[F, ReportOutcome, str]:
    """Return the verdict on one or more failures: the worst of them, how the attempt ended, and the message."""
    worst = min(failures, key=lambda failure: worst_first.index(failure.reason))
    others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    outcome = ReportOutcome.SKIPPED if worst.reason == JobReason.SOURCES_CHANGED else ReportOutcome.FAILED
    return worst, outcome, worst.message + others
