"""A worker that dies, or whose store stumbles, at one step of an attempt at blocks: every statement and commit of the
index and every request to the object store counted, one of them the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from compaction.exceptions import ObjectStoreUnavailableError
from compaction.stores.blocks.objects import Objects
from support.index_faults import Death, Fault, Interrupted, When


@dataclass
class Mortal(Interrupted):
    """As `Interrupted`, for requests to objects too. After the death every further call dies as well, so that nothing
    tidies up. A connection that is LOST is an answer that is lost: the request was carried out.
    """

    dead: bool = False
    end: Callable[[], None] | None = None
    """What to do instead of dying in Python."""
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Mortal:
        super().__enter__()
        original = Objects._try

        def attempt(objects: Objects, path: str, call: Callable[[], Any]) -> Any:
            words = call.__qualname__.split(".")
            return self._request(f"objects {words[1]}", path, lambda: original(objects, path, call))

        self._stack.enter_context(patch.object(Objects, "_try", attempt))
        return self

    def _request(self, name: str, path: str, run: Callable[[], Any]) -> Any:
        number = self._next(name)
        mine = number == self.at
        if self.dead or (mine and self.when is When.BEFORE):
            self._stop(path)
        answer = run()
        if mine:
            self._stop(path)
        return answer

    def _stop(self, path: str) -> None:
        if self.fault is Fault.LOST:
            raise ObjectStoreUnavailableError(path, "no answer, as the test wants it")
        self._die()

    def _next(self, name: str) -> int:
        with self._counting:
            self.calls.append(name)
            return len(self.calls) - 1

    def _call(self, name: str, connection: Any, run: Callable[[], object]) -> None:
        number = self._next(name)
        mine = number == self.at
        if self.dead or (mine and self.when is When.BEFORE):
            self._end(connection)
        run()
        if mine:
            self._end(connection)

    def _end(self, connection: Any) -> None:
        if self.fault is Fault.DEATH:
            self.dead = True
            if self.end is not None:
                self.end()
        super()._end(connection)

    def _die(self) -> None:
        self.dead = True
        if self.end is not None:
            self.end()
        raise Death
