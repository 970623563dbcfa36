"""Futures for results that callers wait for, and the threads on which calls of the log run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from types import TracebackType
from typing import Any, Protocol, TypeVar

from compaction.catalogs.errors import CatalogClosedError

# Futures of `concurrent.futures` for results that callers wait for, and steps that follow one another.

T = TypeVar("T")
U = TypeVar("U")


def pending() -> Future[T]:
    """A future that its owner settles and no caller can cancel: what it stands for happens anyway."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future


def done(value: T) -> Future[T]:
    """A future with a result."""
    future: Future[T] = pending()
    future.set_result(value)
    return future


def failed(error: BaseException) -> Future[T]:
    """A future with an error."""
    future: Future[T] = pending()
    future.set_exception(error)
    return future


class _ErrorsInto:
    """Errors of a block become the future's. Interrupts and exits pass."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._future.set_exception(error)
        return True


def outcome_of(action: Callable[[], T]) -> Future[T]:
    """Run `action` now; a future that is done, with its result or its error."""
    future: Future[T] = pending()
    with _ErrorsInto(future):
        future.set_result(action())
    return future


def started(action: Callable[[], Future[T]]) -> Future[T]:
    """The future that `action` returns now; one that has failed when it raises instead."""
    outcome = outcome_of(action)
    error = outcome.exception()
    return outcome.result() if error is None else failed(error)


def forward(source: Future[T], target: Future[T]) -> None:
    """Settle `target` as `source` is, or will be."""

    def settle(finished: Future[T]) -> None:
        error = finished.exception()
        if error is None:
            target.set_result(finished.result())
        else:
            target.set_exception(error)

    source.add_done_callback(settle)


def then(source: Future[T], step: Callable[[T], Future[U]]) -> Future[U]:
    """The future of `step`, which starts with the result of `source`; the error of either."""
    result: Future[U] = pending()

    def follow(finished: Future[T]) -> None:
        error = finished.exception()
        if error is None:
            forward(started(lambda: step(finished.result())), result)
        else:
            result.set_exception(error)

    source.add_done_callback(follow)
    return result


class Chain:
    """Starts actions one after the other: the next when the future of the one before is done, however it ended.

    No thread of its own: the one that adds an action, or that ends the wait for one, goes on with the next.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Future[Any]], Future[Any]]] = deque()
        self._running = False
        self._lock = Lock()

    def add(self, action: Callable[[], Future[T]]) -> Future[T]:
        """The result or the error of `action`, when its turn has come and it is done."""
        result: Future[T] = pending()
        with self._lock:
            self._waiting.append((action, result))
            if self._running:
                return result
            self._running = True
        self._run()
        return result

    def _run(self) -> None:
        # A loop, since callbacks that start one another would end at the limit of recursion.
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                action, result = self._waiting.popleft()
            running = started(action)
            forward(running, result)
            if not running.done():
                running.add_done_callback(lambda _: self._run())
                return


# Runners for calls of the log: one after the other, on a thread of their own or at once.


class Runner(Protocol):
    """Runs actions one after the other, in the order in which they come."""

    def submit(self, action: Callable[[], T]) -> Future[T]:
        """The result or the error of `action`, when it has run; CatalogClosedError when it never does."""
        ...

    def close(self) -> None:
        """Returns when the action that runs has ended; those that wait do not run."""
        ...


class ThreadRunner:
    """One thread, so that the log blocks no caller."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        self._closed = False

    def submit(self, action: Callable[[], T]) -> Future[T]:
        def run() -> T:
            if self._closed:
                raise CatalogClosedError
            return action()

        if self._closed:
            return failed(CatalogClosedError())
        try:
            return self._pool.submit(run)
        except RuntimeError:  # the pool says so when it was shut down in between
            return failed(CatalogClosedError())

    def close(self) -> None:
        # The pool could cancel what waits, but does so while it holds the lock that a callback needs to submit more.
        self._closed = True
        self._pool.shutdown(wait=True)


class InlineRunner:
    """The caller's thread: deterministic, for logs that answer without waiting. An action that submits another one ends
    before that one begins.
    """

    def __init__(self) -> None:
        self._chain = Chain()
        self._closed = False

    def submit(self, action: Callable[[], T]) -> Future[T]:
        def run() -> Future[T]:
            if self._closed:
                raise CatalogClosedError
            return outcome_of(action)

        return self._chain.add(run)

    def close(self) -> None:
        self._closed = True
