"""An engine of threads in this process, for work that is over before Spark would have started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self, TypeVar

from compaction.worker.errors import TaskCancelledError

Task = TypeVar("Task")
Result = TypeVar("Result")


class ThreadEngine:
    """Implements `worker.engine.Engine`, but for two things that only processes can do: a task that runs cannot be
    stopped, so `cancel` waits for its end; and what it raises is raised as it is.
    """

    def __init__(self, parallelism: int) -> None:
        self.address = "127.0.0.1"
        self._parallelism = parallelism
        self._pool = ThreadPoolExecutor(parallelism, thread_name_prefix="task")
        self._lock = threading.Lock()
        self._running: dict[str, set[Future[Any]]] = {}
        self._cancelled: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Nobody waits for the end of what an interrupt has ended.
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    @property
    def parallelism(self) -> int:
        """See `Engine`."""
        return self._parallelism

    def submit(self, work: Callable[[Task], Result], task: Task, *, tag: str) -> Future[Result]:
        """See `Engine`."""

        def run() -> Result:
            if tag in self._cancelled:
                raise TaskCancelledError(tag)
            return work(task)

        with self._lock:
            future = self._pool.submit(run)
            self._running.setdefault(tag, set()).add(future)
        future.add_done_callback(lambda done: self._forget(tag, done))
        return future

    def cancel(self, tag: str) -> None:
        """See `Engine`. The tag belongs to an attempt that is over, so nothing is submitted under it any more."""
        with self._lock:
            self._cancelled.add(tag)
            running = set(self._running.get(tag, ()))
        wait(running)

    def _forget(self, tag: str, future: Future[Any]) -> None:
        with self._lock:
            left = self._running.get(tag, set())
            left.discard(future)
            if not left:
                self._running.pop(tag, None)
