"""Managers with their own threads, over one log, by the clock of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Lock, Thread
from time import sleep
from typing import Any

import pytest

from compaction.catalogs.errors import CatalogClosedError, CatalogConflictError
from compaction.catalogs.log.port import Renewal, SnapshotOutcome
from compaction.catalogs.manager.events import CatalogEvent, EventKind
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.manager.manager import CatalogManager, Executed
from compaction.catalogs.model.entries import Snapshot, VersionedUpdate
from support.catalogs.immediate_logs import ListLog
from support.catalogs.worlds import table

LONG = 120
QUICK = Settings(delay=1, max_skew=1, slowest_append=1)


class SharedLog(ListLog):
    """One call at a time; delivers from a thread of its own, as a log elsewhere does."""

    def __init__(self) -> None:
        super().__init__(held=True)
        self.lock = Lock()
        self.open = True
        self.thread = Thread(target=self._deliver, daemon=True)
        self.thread.start()

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        with self.lock:
            return super().append(update, timestamp)

    def save_snapshot(self, snapshot: Snapshot, token: int) -> SnapshotOutcome:
        with self.lock:
            return super().save_snapshot(snapshot, token)

    def end(self) -> None:
        self.open = False
        self.thread.join(LONG)

    def _deliver(self) -> None:
        while self.open:
            with self.lock:
                self.pump()
            sleep(0)


@contextmanager
def managers(count: int) -> Iterator[list[CatalogManager]]:
    log = SharedLog()
    made = [CatalogManager(log, settings=QUICK) for _ in range(count)]
    for item in made:
        item.start()
    for item in made:
        item.initialization.result(LONG)
    yield made
    for item in made:
        item.close()
    log.end()


def test_ddl_concurrency() -> None:
    """DDL concurrency: 30 CREATE TABLE from 10 threads on one node, none may hit the retry limit."""
    with managers(1) as (manager,), ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda number: manager.execute(table(f"T{number}")).result(LONG), range(30)))
        assert sorted(answer.version for answer in answers if answer) == list(range(2, 32))
        assert len(manager.latest.tables) == 30


def test_processes_that_write_at_once_agree() -> None:
    """Each answer is what its version shows, in every process; whatever was refused for conflicts left no trace."""
    with managers(3) as all_managers:
        answers: list[Future[Any]] = [
            manager.execute(table(f"T{number}_{round}"))
            for round in range(5)
            for number, manager in enumerate(all_managers)
        ]
        wait(answers, LONG)
        errors = [error for answer in answers if (error := answer.exception(0)) is not None]
        assert {type(error) for error in errors} <= {CatalogConflictError}
        done = [answer.result(0) for answer in answers if answer.exception(0) is None]
        assert sorted(item.version for item in done) == list(range(2, 2 + len(done)))
        last = max(item.version for item in done)
        for manager in all_managers:
            manager.ready(last).result(LONG)
        first, *others = (list(manager.history) for manager in all_managers)
        assert all(other == first for other in others)
        assert len(first[-1].tables) == len(done)


def test_readers_and_a_listener_while_history_is_cut() -> None:
    with managers(2) as (writer, other):
        heard: list[int] = []

        def listener(event: CatalogEvent) -> None:
            assert other.catalog(event.version).version == event.version
            heard.append(event.version)

        other.listen(EventKind.TABLE_CREATE, listener)
        done: Executed | None = None
        for number in range(10):
            done = writer.execute(table(f"T{number}")).result(LONG)
        assert done is not None
        assert done.version == 11
        other.ready(11).result(LONG)
        assert heard == list(range(2, 12))
        assert writer.compact(9, 1).result(LONG) is SnapshotOutcome.SAVED
        after = writer.execute(table("AFTER")).result(LONG)
        assert after is not None
        other.wait_complete(after.time).result(LONG)
        assert [item.version for item in other.history] == [9, 10, 11, 12]
        assert other.active_version(after.time) == 12


def test_close_while_commands_wait() -> None:
    log = SharedLog()
    manager = CatalogManager(log, settings=Settings(delay=3_600_000))
    manager.start()
    answers = [manager.execute(table(f"T{number}")) for number in range(50)]
    manager.close()
    log.end()
    assert {type(answer.exception(LONG)) for answer in answers} == {CatalogClosedError}
    with pytest.raises(CatalogClosedError, match="may have reached the log or not"):
        manager.execute(table("LATE")).result(LONG)
