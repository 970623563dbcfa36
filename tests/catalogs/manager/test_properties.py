"""Several processes over one log, in any order of commands, deliveries, cuts and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.codec import canonical
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.commands.table_commands import AddColumns, DropColumns, DropTable
from compaction.catalogs.errors import (
    CatalogClosedError,
    CatalogConflictError,
    CatalogNotFoundError,
    CatalogValidationError,
)
from compaction.catalogs.log.port import Renewal, SnapshotOutcome
from compaction.catalogs.manager.events import CatalogEvent, EventKind
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.manager.manager import CatalogManager, Executed
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.entries import Snapshot, VersionedUpdate
from support.catalogs.logs import ManualTime, Stage, stage
from support.catalogs.memory_log import ListLog
from support.catalogs.rounds import column, table

NAMES = ("A", "B", "C")


def command(number: int) -> CatalogCommand:
    name = NAMES[number % 3]
    return (
        table(name),
        DropTable("PUBLIC", name, if_exists=True),
        AddColumns("PUBLIC", name, (column("X"),), True, True),
        DropColumns("PUBLIC", name, ("X",), True, True),
    )[number // 3 % 4]


steps = st.lists(
    st.tuples(
        st.sampled_from(["execute", "pump", "compact", "restart", "advance"]), st.integers(0, 2), st.integers(0, 40)
    ),
    max_size=30,
)


@dataclass
class Processes:
    log: ListLog = field(default_factory=lambda: ListLog(held=True))
    time: ManualTime = field(default_factory=ManualTime)
    stages: list[Stage] = field(default_factory=list)
    answers: list[Future[Any]] = field(default_factory=list)
    versions: dict[int, str] = field(default_factory=dict)
    """What each version was when it was first read, without column sets that a cut may drop."""
    checked: dict[int, Catalog] = field(default_factory=dict)
    tokens: int = 0

    def start(self) -> None:
        one = stage(self.log, time=self.time, start=False)
        one.manager.start()
        self.stages.append(one)

    def step(self, action: str, which: int, number: int) -> None:
        one = self.stages[which]
        match action:
            case "execute":
                self.answers.append(one.manager.execute(command(number)))
            case "pump":
                self.log.pump()
            case "advance":
                self.time.advance(number * 50)
            case "compact":
                self.tokens += 1
                target = one.manager.latest.version - 1 - number % 3
                self.answers.append(one.manager.compact(target, self.tokens))
            case _:
                one.manager.close()
                self.stages[which] = stage(self.log, time=self.time, start=False)
                self.stages[which].manager.start()
        for each in self.stages:
            self.check(each)

    def check(self, one: Stage) -> None:
        history = list(one.manager.history)
        times = [catalog.activation_time for catalog in history]
        assert times == sorted(set(times))
        assert [catalog.version for catalog in history] == list(range(history[0].version, history[-1].version + 1))
        for catalog in history:
            assert one.manager.active(catalog.activation_time) is catalog
            if id(catalog) not in self.checked:
                self.checked[id(catalog)] = catalog
                shown = content(catalog)
                assert self.versions.setdefault(catalog.version, shown) == shown
        assert one.reported == []


def content(catalog: Catalog) -> str:
    """A version as readers see it."""
    shown = canonical.catalog(catalog)
    for schema in shown["schemas"]:
        for each in schema["tables"]:
            each["versions"] = [len(each["versions"]) + each.pop("base"), each["versions"][-1]]
    return canonical.text(shown)


@given(steps)
def test_processes_agree_whatever_happens(taken: list[tuple[str, int, int]]) -> None:
    """A version is the same in every process and never changes; what was answered is what the version shows; in the end
    all hold what a process holds that starts then.
    """
    world = Processes()
    for _ in range(3):
        world.start()
    world.log.pump()
    for action, which, number in taken:
        world.step(action, which, number)
    # Each round lets one command of each process come to its version.
    for _ in range(len(taken) + 5):
        world.log.pump()
        for item in world.stages:
            world.check(item)
        world.time.advance(2000)
    for answer in world.answers:
        assert answer.done()
        error = answer.exception(0)
        if error is None and isinstance(answer.result(0), Executed):
            assert answer.result(0).version in world.versions
        assert (
            error is None
            or type(error).__name__ == "CatalogClosedError"
            or isinstance(error, CatalogValidationError | CatalogNotFoundError)
        )
    world.start()
    first, *others = (list(item.manager.history) for item in world.stages)
    # A process keeps versions that a cut removed while it was away from the log only until it hears of the cut.
    assert all(other == first for other in others)


# Managers with their own threads, over one log, by the clock of the machine.

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
