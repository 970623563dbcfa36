"""Managers whose time a test moves, and whose calls of the log happen at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.log.port import UpdateLog
from compaction.catalogs.manager.clock import HybridClock
from compaction.catalogs.manager.events import CatalogEvent, EventKind
from compaction.catalogs.manager.futures import InlineRunner
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.manager.manager import CatalogManager, Executed
from compaction.catalogs.model.descriptors import hybrid

START = 1_700_000_000_000


@dataclass
class ManualTime:
    """Milliseconds that stand still until a test moves them; a timer by the same time."""

    milliseconds: int = START
    waiting: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    added: int = 0

    def now(self) -> int:
        return self.milliseconds

    def after(self, milliseconds: int, action: Callable[[], None]) -> None:
        self.added += 1
        self.waiting.append((self.milliseconds + milliseconds, self.added, action))

    def close(self) -> None:
        self.waiting.clear()

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and what is due happen at its time."""
        end = self.milliseconds + milliseconds
        while self.waiting and min(self.waiting)[0] <= end:
            first = min(self.waiting, key=lambda item: item[:2])
            self.waiting.remove(first)
            self.milliseconds = max(self.milliseconds, first[0])
            first[2]()
        self.milliseconds = end


@dataclass
class Stage:
    """A manager, its time, and what it reported."""

    manager: CatalogManager
    time: ManualTime
    reported: list[BaseException]

    def run(self, *commands: CatalogCommand) -> Executed:
        """A batch that is done when its version is active everywhere."""
        future = self.manager.execute(commands)
        self.time.advance(10_000)
        done = future.result(0)
        assert done is not None
        return done

    def heard(self, *kinds: EventKind) -> list[Any]:
        """Events of these kinds (all, without any) as they come."""
        found: list[CatalogEvent] = []
        for kind in kinds or EventKind:
            self.manager.listen(kind, found.append)
        return found


def stage(
    log: UpdateLog, *, time: ManualTime | None = None, delay: int = 500, skew: int = 500, start: bool = True
) -> Stage:
    """A manager over `log`; started, and version 1 active, unless it is not asked for."""
    time = time or ManualTime()
    reported: list[BaseException] = []
    manager = CatalogManager(
        log,
        settings=Settings(delay=delay, max_skew=skew),
        clock=HybridClock(time.now),
        timer=time,
        runner=InlineRunner(),
        report=reported.append,
    )
    if start:
        manager.start()
        time.advance(10_000)
        manager.initialization.result(0)
    return Stage(manager, time, reported)


def at(milliseconds: int) -> int:
    """A hybrid timestamp after the beginning of a test's time."""
    return hybrid(START + milliseconds)
