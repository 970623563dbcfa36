"""Histories made by commands, and rounds of participants that report what a test says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compaction.api.catalog.reasons import UNDEFINED, Finding, Reason
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.compaction.deciding import Compaction, Cut, compacting
from compaction.catalogs.compaction.round import ParticipantAnswer, Round, Topology, Unanswered
from compaction.catalogs.manager.history import CatalogHistory
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import Zone, hybrid
from compaction.catalogs.participants.reports import Cause, IndexBuild, PartitionReport, Rebalance, Report, Role
from support.catalogs.worlds import World

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
