"""Several processes over one log, in any order of commands, deliveries, cuts and restarts."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.codec import canonical
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.commands.table_commands import AddColumns, DropColumns, DropTable
from compaction.catalogs.errors import CatalogNotFoundError, CatalogValidationError
from compaction.catalogs.manager.manager import Executed
from compaction.catalogs.model.catalog import Catalog
from support.catalogs.immediate_logs import ListLog
from support.catalogs.managers import ManualTime, Stage, stage
from support.catalogs.worlds import column, table

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
