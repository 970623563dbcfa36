"""A worker that dies, or whose store stumbles, at one step of an attempt at blocks: every statement and commit of the
index and every request to the object store counted, one of them the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from compaction.api.job.job_status import JobReport
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.rewriting.rewriter import BlockAttempt
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.storage.errors import ObjectStoreUnavailableError
from compaction.storage.objects.store import ObjectStorage
from compaction.worker.tasks import objects_place
from support.blocks.blocks import secrets_of
from support.faults.store_faults import Death, Fault, Interrupted, When
from support.processes.worker_ports import FakeLease, ThreadEngine


@dataclass
class Mortal(Interrupted[IndexDatabase]):
    """As `Interrupted`, for requests to objects too. After the death every further call dies as well, so that nothing
    tidies up. A connection that is LOST is an answer that is lost: the request was carried out.
    """

    dead: bool = False
    end: Callable[[], None] | None = None
    """What to do instead of dying in Python."""
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Mortal:
        super().__enter__()
        original = ObjectStorage._try

        def attempt(objects: ObjectStorage, path: str, call: Callable[[], Any]) -> Any:
            words = call.__qualname__.split(".")
            return self._request(f"objects {words[1]}", path, lambda: original(objects, path, call))

        self._stack.enter_context(patch.object(ObjectStorage, "_try", attempt))
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


def attempt(connection: BlockStoreConnection, job: BlockJob, engine: ThreadEngine, mortal: Mortal) -> JobReport:
    """The first attempt, through the index that may be interrupted."""
    place = objects_place(job.store.url, job.store.credentials_secret_name, secrets_of(connection))
    store = BlockStore(place.open(), mortal.database)
    with mortal:
        return BlockAttempt(
            job=job,
            token=1,
            store=store,
            place=place,
            worker="mortal",
            lease=FakeLease(),
            engine=engine,
            monotonic=lambda: 0.0,
            sleep=lambda _: None,
        ).run()
