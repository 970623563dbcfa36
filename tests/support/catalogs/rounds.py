"""Histories made by commands, and rounds of participants that report what a test says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction.api.catalog.reasons import UNDEFINED, Finding, Reason
from compaction.catalogs.commands.command import Batch, CatalogCommand, ColumnSpec, batch
from compaction.catalogs.commands.schema_commands import CreateSchema, CreateSystemSchema
from compaction.catalogs.commands.table_commands import CreateTable, PrimaryKey
from compaction.catalogs.compaction.deciding import Compaction, Cut, compacting
from compaction.catalogs.compaction.round import ParticipantAnswer, Round, Topology, Unanswered
from compaction.catalogs.manager.history import CatalogHistory
from compaction.catalogs.model.applying import applied
from compaction.catalogs.model.catalog import EMPTY, Catalog
from compaction.catalogs.model.descriptors import ColumnType, Index, Table, Zone, hybrid
from compaction.catalogs.model.entries import VersionedUpdate
from compaction.catalogs.participants.reports import Cause, IndexBuild, PartitionReport, Rebalance, Report, Role

# Histories of the reference, line by line.

UPDATES = "catalog.update."


def records(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def puts(record: Any) -> Iterator[tuple[int, bytes, int]]:
    """Version, value and timestamp of what a record put into the log."""
    for transaction in record["txns"]:
        for key, data in transaction["puts"]:
            if key.startswith(UPDATES) and transaction["succeeded"]:
                yield int(key.removeprefix(UPDATES)), bytes.fromhex(data), transaction["timestamp"]


# DDL as commands read it.

THREE_NAMES = """
- {type: CREATE_ZONE, zone: FAST, storageProfiles: [default], partitions: 1, replicas: 1}
- type: CREATE_TABLE
  schema: PUBLIC
  table: T0
  zone: FAST
  columns: [{name: ID, type: INT32, nullable: false}]
  pk: {columns: [ID]}
- {type: RENAME_TABLE, schema: PUBLIC, table: T0, newName: T1}
- {type: RENAME_TABLE, schema: PUBLIC, table: T1, newName: T2}
- {type: RENAME_TABLE, schema: PUBLIC, table: T2, newName: T3}
"""
"""A table of one partition, renamed three times."""


# A catalog that commands change, one version each, without a log.

INT = ColumnType.INT32


def column(name: str, nullable: bool = True) -> ColumnSpec:
    return ColumnSpec(name, INT, nullable)


def table(name: str, *columns: str, zone: str | None = None) -> CreateTable:
    """A table with the key ID and further columns."""
    return CreateTable("PUBLIC", name, (column("ID", False), *map(column, columns)), PrimaryKey(("ID",)), zone=zone)


@dataclass
class World:
    """The latest version; each batch that changes something makes one, a second later."""

    catalog: Catalog = EMPTY

    @classmethod
    def started(cls) -> World:
        world = cls()
        world.run(CreateSchema("PUBLIC"), CreateSystemSchema("SYSTEM"))
        return world

    def run(self, *commands: CatalogCommand) -> Batch:
        found = batch(self.catalog, commands)
        if found.entries:
            version = self.catalog.version + 1
            self.catalog = applied(self.catalog, VersionedUpdate(version, 5, found.entries), hybrid(version * 1000))
        return found

    def table(self, name: str) -> Table:
        schema = self.catalog.schema("PUBLIC")
        assert schema is not None
        found = self.catalog.table(schema, name)
        assert found is not None
        return found

    def index(self, name: str) -> Index | None:
        schema = self.catalog.schema("PUBLIC")
        assert schema is not None
        return self.catalog.index(schema, name)


NAMES = ("node1", "node2", "node3")
NOW = hybrid(10_000_000)


def timeline(*times: int) -> CatalogHistory:
    """Versions 1, 2, ... that hold nothing, active at these times."""
    return CatalogHistory([Catalog(version, time, 0) for version, time in enumerate(times, 1)])


@dataclass
class Story:
    """A catalog with its whole history; each batch of commands is a version, a second after the one before."""

    world: World = field(default_factory=World.started)
    versions: list[Catalog] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = [self.world.catalog]

    def run(self, *commands: CatalogCommand) -> Catalog:
        self.world.run(*commands)
        assert self.world.catalog is not self.versions[-1], "the commands changed nothing"
        self.versions.append(self.world.catalog)
        return self.world.catalog

    @property
    def latest(self) -> Catalog:
        return self.versions[-1]

    @property
    def history(self) -> CatalogHistory:
        return CatalogHistory(self.versions)

    def cut(self, version: int) -> None:
        self.versions = [item for item in self.versions if item.version >= version]

    def zone(self) -> Zone:
        found = self.latest.default_zone
        assert found is not None
        return found


def partitions(catalog: Catalog, minimum: int, *, without: Iterable[tuple[int, int]] = ()) -> list[PartitionReport]:
    """Every partition of every table, but for those (table id, partition)."""
    left_out = set(without)
    return [
        PartitionReport(table.id, partition, Role.REPLICA, minimum)
        for table in catalog.tables.values()
        for partition in range(catalog.zones[table.zone_id].partitions)
        if (table.id, partition) not in left_out
    ]


def report(
    name: str,
    minimum: int,
    held: Iterable[PartitionReport] = (),
    *,
    cause: Cause = Cause.LOW_WATERMARK,
    transactions: int = NOW,
    oldest_transaction: int = UNDEFINED,
    low_watermark: int | None = None,
    builds: tuple[IndexBuild, ...] = (),
    moves: tuple[Rebalance, ...] = (),
    clock: int = NOW,
) -> Report:
    watermark = minimum if low_watermark is None else low_watermark
    return Report(
        name, minimum, cause, "", transactions, oldest_transaction, watermark, tuple(held), builds, moves, 0, clock
    )


def answer(one: Report) -> ParticipantAnswer:
    return ParticipantAnswer(one, NOW, NOW)


def round_of(
    reports: Iterable[Report],
    *,
    watermark: int = NOW,
    unanswered: tuple[Unanswered, ...] = (),
    topology: Topology | None = None,
    dry_run: bool = False,
) -> Round:
    answers = tuple(map(answer, reports))
    asked = frozenset(item.name for item in answers) | {item.name for item in unanswered}
    return Round(NOW, watermark, topology or Topology(asked), answers, unanswered, 500, dry_run)


def all_on(catalog: Catalog, names: Iterable[str] = NAMES) -> Mapping[int, tuple[frozenset[str], ...]]:
    """Every partition of every zone is on each of these participants."""
    every = frozenset(names)
    return {zone.id: (every,) * zone.partitions for zone in catalog.zones.values()}


def decided(story: Story, times: Mapping[str, int], **changes: object) -> Compaction:
    """Participants that hold everything and report these minimums; changes are of the topology."""
    held = partitions(story.latest, NOW)
    reports = [report(name, time, held) for name, time in times.items()]
    assignments = all_on(story.latest)
    topology = Topology(frozenset(times), assignments=assignments, **changes)  # type: ignore[arg-type]
    return compacting(round_of(reports, topology=topology), story.history, NOW)


def cut_to(found: Compaction) -> int:
    """The version that is cut to; fails with the reason when none is."""
    assert isinstance(found.step, Cut), found.step
    return found.step.candidate.version


def stopped(found: Compaction, reason: Reason) -> Finding:
    """Why nothing is cut, which must be this."""
    assert isinstance(found.step, Finding), found.step
    assert found.step.reason is reason, found.step
    return found.step
