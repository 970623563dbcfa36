"""Listeners of events, and the wait for all of them (docs/design/catalogs.md#events)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from threading import Lock

from compaction.catalogs.manager import futures
from compaction.catalogs.manager.events import CatalogEvent, EventKind

Answer = bool | None
Listener = Callable[[CatalogEvent], Answer | Future[Answer]]
"""Answers at once or by a future; the version is not ready before. True: the listener is unsubscribed."""


class Listeners:
    """Who listens to which kind of event. A listener that fails is reported and stays subscribed."""

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        self._report = report
        self._by_kind: dict[EventKind, tuple[Listener, ...]] = {}
        self._lock = Lock()

    def add(self, kind: EventKind, listener: Listener) -> None:
        with self._lock:
            self._by_kind[kind] = (*self._by_kind.get(kind, ()), listener)

    def remove(self, kind: EventKind, listener: Listener) -> None:
        """Nothing happens when it does not listen."""
        with self._lock:
            self._by_kind[kind] = tuple(one for one in self._by_kind.get(kind, ()) if one is not listener)

    def fire(self, events: Iterable[CatalogEvent]) -> Future[None]:
        """Call all listeners of all events; the future is done when every answer is there, failed ones included."""
        called = [(event, listener) for event in events for listener in self._by_kind.get(event.kind, ())]
        finished: Future[None] = futures.pending()
        left = len(called)
        lock = Lock()

        def answered() -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                finished.set_result(None)

        if not called:
            finished.set_result(None)
        for event, listener in called:
            self._call(event, listener, answered)
        return finished

    def _call(self, event: CatalogEvent, listener: Listener, answered: Callable[[], None]) -> None:
        def finish(answer: Future[Answer]) -> None:
            error = answer.exception()
            if error is not None:
                self._report(error)
            elif answer.result() is True:
                self.remove(event.kind, listener)
            answered()

        def answer() -> Future[Answer]:
            found = listener(event)
            return found if isinstance(found, Future) else futures.done(found)

        futures.started(answer).add_done_callback(finish)
