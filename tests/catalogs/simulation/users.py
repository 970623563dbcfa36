"""Participants with real state, and what they need of the catalog in truth, whatever they report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from catalogs.simulation.network import SkewedClock
from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import later
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import Role

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
