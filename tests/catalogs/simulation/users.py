"""Participants with real state, and what they need of the catalog in truth, whatever they report."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import hybrid, later
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import Role

# Virtual time: what happens is on a heap, in the order of its time; the same seed gives the same run.

START = 1_750_000_000_000
"""Milliseconds since the epoch at which every run begins."""


@dataclass
class Schedule:
    """Milliseconds since `START`."""

    now: int = 0
    _due: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def after(self, milliseconds: float, happens: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (self.now + max(1, int(milliseconds)), self._number, happens))

    def run(self, until: int, check: Callable[[], None]) -> None:
        """Everything until then; `check` after each."""
        while self._due and self._due[0][0] <= until:
            self.now, _, happens = heapq.heappop(self._due)
            happens()
            check()
        self.now = until


@dataclass
class SkewedClock:
    """A hybrid clock that is off by `offset` milliseconds and never goes back, unless its process restarts."""

    schedule: Schedule
    offset: int = 0
    _last: int = 0

    def __call__(self) -> int:
        self._last = max(self._last, hybrid(START + self.schedule.now + self.offset))
        return self._last

    def restart(self) -> None:
        self._last = 0


@dataclass
class Network:
    """Delays of messages, and those that are lost."""

    schedule: Schedule
    dice: random.Random
    loss: float = 0.0

    def send(self, arrives: Callable[[], None]) -> None:
        if self.dice.random() < self.loss:
            return
        slow = self.dice.random() < 0.01
        self.schedule.after(self.dice.uniform(3_000, 15_000) if slow else self.dice.uniform(1, 80), arrives)


PARTITIONS = 3
AVAILABILITY, UPDATE, SKEW = 10_000, 4_000, 500


@dataclass
class PartitionEntries:
    """A replica's log: the version that each entry needs, and how many of them the last checkpoint holds."""

    entries: list[int] = field(default_factory=list)
    durable: int = 0
    checkpoint: int | None = None


class User:
    """One participant. Its transactions write into partitions of all users: a replay needs what they needed."""

    def __init__(self, name: str, number: int, clock: SkewedClock) -> None:
        self.name, self.number, self.clock = name, number, clock
        self.one = ReferenceParticipant(name, clock=clock)
        self.transactions: dict[int, int] = {}
        self.partitions: dict[tuple[int, int], PartitionEntries] = {}
        self.builds: dict[int, int] = {}
        self.moves: dict[int, int] = {}
        self.found, self.known = True, 0
        self.running = self.started = 0
        self.arrived: dict[int, Catalog] = {}

    def learn(self, catalog: Catalog) -> None:
        """A version arrives, before it is active; versions are taken in order."""
        self.arrived[catalog.version] = catalog
        while (following := self.arrived.pop(self.known + 1, None)) is not None:
            self.known = following.version
            self._take(following)

    def _take(self, catalog: Catalog) -> None:
        self.one.versions.add(catalog.version, catalog.activation_time)
        wanted = {(id, partition) for id in catalog.tables for partition in range(PARTITIONS)}
        for key in sorted(wanted - self.partitions.keys()):
            self.partitions[key] = PartitionEntries()
            self.one.add_partition(*key, Role.PRIMARY if key[1] == self.number else Role.REPLICA)
        for key in sorted(self.partitions.keys() - wanted):
            del self.partitions[key]
            self.one.remove_partition(*key)

    def begin(self) -> None:
        begun = self.one.begin()
        self.transactions[begun] = self.one.versions.active(begun)[0]

    def finish(self, begun: int) -> None:
        del self.transactions[begun]
        self.one.finish(begun)

    def begin_checkpoint(self) -> int:
        """Its number; 0 when one is under way already."""
        if self.running:
            return 0
        self.started += 1
        self.running = self.started
        self.one.begin_checkpoint()
        for entries in self.partitions.values():
            entries.checkpoint = len(entries.entries)
        return self.running

    def finish_checkpoint(self, number: int, succeeded: bool) -> None:
        """Of this number, unless a restart has ended it."""
        if not number or number != self.running:
            return
        self.running = 0
        self.one.finish_checkpoint(succeeded)
        for entries in self.partitions.values():
            if succeeded and entries.checkpoint is not None:
                entries.durable = entries.checkpoint
            entries.checkpoint = None

    def move_watermark(self) -> None:
        candidate = later(self.clock(), -(AVAILABILITY + SKEW))
        self.one.move_watermark(candidate)

    def restart(self, earliest: int) -> None:
        """As after a crash: the clock is right again, transactions are gone, builds and moves go on."""
        self.clock.restart()
        self.transactions.clear()
        self.running = 0
        for entries in self.partitions.values():
            entries.checkpoint = None
        self.one.restart(earliest)

    def needs(self, active: Catalog | None) -> Iterator[tuple[int, str]]:
        """Versions that it would ask for now, and for what. `active`: at its low watermark."""
        for begun, version in self.transactions.items():
            yield version, f"transaction {begun}"
        for key, entries in self.partitions.items():
            if (left := entries.entries[entries.durable :]) != []:
                yield min(left), f"replay of table {key[0]} partition {key[1]}"
        for index, version in self.builds.items():
            yield version, f"build of index {index}"
        for zone, version in self.moves.items():
            yield version, f"rebalance {zone}"
        if active is not None and self.one.watermark.value != UNDEFINED:
            yield active.version, "a read at its low watermark"
