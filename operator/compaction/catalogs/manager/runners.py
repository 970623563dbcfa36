"""Where calls of the log run: one after the other, on a thread of their own or at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from compaction.catalogs.errors import CatalogClosedError
from compaction.catalogs.manager import futures

T = TypeVar("T")


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
            return futures.failed(CatalogClosedError())
        try:
            return self._pool.submit(run)
        except RuntimeError:  # the pool says so when it was shut down in between
            return futures.failed(CatalogClosedError())

    def close(self) -> None:
        # The pool could cancel what waits, but does so while it holds the lock that a callback needs to submit more.
        self._closed = True
        self._pool.shutdown(wait=True)


class InlineRunner:
    """The caller's thread: deterministic, for logs that answer without waiting. An action that submits another one ends
    before that one begins.
    """

    def __init__(self) -> None:
        self._chain = futures.Chain()
        self._closed = False

    def submit(self, action: Callable[[], T]) -> Future[T]:
        def run() -> Future[T]:
            if self._closed:
                raise CatalogClosedError
            return futures.outcome_of(action)

        return self._chain.add(run)

    def close(self) -> None:
        self._closed = True
