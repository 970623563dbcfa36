"""Futures of `concurrent.futures` for results that callers wait for, and steps that follow one another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from types import TracebackType
from typing import Any, TypeVar

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
