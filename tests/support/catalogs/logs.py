"""An update log under test: in memory or in etcd, with watches that collect what they deliver."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.log.port import LogEvent, Recovered, UpdateLog, Watch
from compaction.catalogs.manager.clock import HybridClock
from compaction.catalogs.manager.events import CatalogEvent, EventKind
from compaction.catalogs.manager.futures import InlineRunner
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.manager.manager import CatalogManager, Executed
from compaction.catalogs.model.descriptors import hybrid, later
from compaction.catalogs.model.entries import AdvanceIdsEntry, Snapshot, VersionedUpdate
from support.catalogs.memory_log import MemoryUpdateLog
from support.clocks import eventually

DELAY = 5
"""Milliseconds between the timestamp of an update and its activation."""


def update(version: int, delta: int = 1) -> VersionedUpdate:
    return VersionedUpdate(version, DELAY, (AdvanceIdsEntry(delta),))


def at(version: int) -> int:
    """When a version of the tests is written."""
    return hybrid(1_000 * version)


def snapshot(version: int, activation: int | None = None) -> Snapshot:
    """What replaces `update(version)` written `at(version)`."""
    return Snapshot(version, later(at(version), DELAY) if activation is None else activation, version, (), (), None)


def fill(log: UpdateLog, last: int, first: int = 1) -> None:
    """Append versions, each in its own second."""
    for version in range(first, last + 1):
        assert log.append(update(version), at(version))


def versions(found: Recovered) -> list[int]:
    return [event.event.version for event in found.events]


@dataclass
class Collector:
    """What a watch delivered, and the error it failed with."""

    events: list[LogEvent] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def deliver(self, event: LogEvent) -> None:
        self.events.append(event)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)

    @property
    def shown(self) -> list[str]:
        """`3` for the update of version 3, `s3` for its snapshot."""
        return [f"{'s' if isinstance(event.event, Snapshot) else ''}{event.event.version}" for event in self.events]


class Store(Protocol):
    """One log, which several objects may use."""

    def open(self) -> UpdateLog:
        """Another user of the same log."""
        ...

    def settle(self, collector: Collector, count: int) -> list[str]:
        """Wait until so many events came; what came."""
        ...

    def forget_history(self) -> None:
        """As a compaction of etcd's history."""
        ...


@dataclass
class MemoryStore:
    """All users share one object."""

    log: MemoryUpdateLog = field(default_factory=MemoryUpdateLog)

    def open(self) -> UpdateLog:
        return self.log

    def settle(self, collector: Collector, count: int) -> list[str]:
        self.log.pump()
        assert len(collector.events) >= count
        return collector.shown

    def forget_history(self) -> None:
        self.log.forget_history()


def wait_for(collector: Collector, count: int) -> list[str]:
    """Events that a thread delivers; also one too many, if it comes at once."""
    until(lambda: len(collector.events) >= count or bool(collector.errors), f"{count} events: {collector.shown[-5:]}")
    time.sleep(0.05)
    return collector.shown


def until(met: Callable[[], bool], what: str) -> None:
    """`eventually`, of what a thread of this process does within milliseconds."""
    eventually(met, what, pause=0.01)


def watched(log: UpdateLog, after: int | None = None) -> tuple[Collector, Watch]:
    """A watch from a revision on, by default from now."""
    collector = Collector()
    start = log.recover().revision if after is None else after
    return collector, log.watch(start, collector.deliver, collector.failed)


# Managers whose time a test moves, and whose calls of the log happen at once.

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


def stamp(milliseconds: int) -> int:
    """A hybrid timestamp after the beginning of a test's time."""
    return hybrid(START + milliseconds)
