"""A store that an adapter keeps open, and opens again when the Secret behind its connection has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Close all connections."""
        ...


C = TypeVar("C")
S = TypeVar("S", bound=Closable)


class KeptOpen(Generic[C, S]):
    """Opens stores of type `S` by connections of type `C`; a former one is closed when no thread uses it any more."""

    def __init__(self, opened: Callable[[C], S]) -> None:
        self._open = opened
        self._lock = Lock()
        self._current: tuple[C, S] | None = None
        self._former: list[S] = []
        self._users = 0
        self._closed = False

    @property
    def current(self) -> S | None:
        """The store that is open now."""
        return None if self._current is None else self._current[1]

    @contextmanager
    def use(self, wanted: C) -> Iterator[S]:
        """The store behind a connection, for as long as the block runs. Raises what opening it raises."""
        with self._lock:
            store = self._store(wanted)
            self._users += 1
        try:
            yield store
        finally:
            with self._lock:
                self._users -= 1
                self._let_go()

    def close(self) -> None:
        """Close the store, or let the last thread that uses it do so; one that comes later closes its own."""
        with self._lock:
            self._closed = True
            self._let_go()

    def _store(self, wanted: C) -> S:
        if self._current is not None and self._current[0] == wanted:
            return self._current[1]
        store = self._open(wanted)
        if self._current is not None:
            self._former.append(self._current[1])
        self._current = wanted, store
        return store

    def _let_go(self) -> None:
        if self._users:
            return
        if self._closed and self._current is not None:
            self._former.append(self._current[1])
            self._current = None
        while self._former:
            self._former.pop().close()
