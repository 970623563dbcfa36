"""What must hold of the version to cut to, in order; the first that does not ends the attempt
(docs/design/catalog-compaction.md#checks).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compaction.api.catalog.reasons import Finding, Reason
from compaction.catalogs.compaction.round import Round
from compaction.catalogs.manager.history import History
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import Index, Table, Zone
from compaction.catalogs.model.enums import IndexStatus

_CONSTRUCTION = (IndexStatus.REGISTERED, IndexStatus.BUILDING)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A cut to `candidate`. `following` is the version after it, active at the required time; `current` the one active
    now, by hybrid timestamp `now` of the coordinator's clock.
    """

    round: Round
    history: History
    candidate: Catalog
    following: Catalog
    current: Catalog
    now: int


def index_construction(attempt: Attempt) -> Finding | None:
    """An index that is being built needs the versions since it was registered.

    It stands in the way while a participant reports that it builds it, and while the version that everything needs
    from the required time on has it under construction. An index whose construction ended in that version is done: its
    building version may become the snapshot, without a further change of the catalog.
    """
    built_by = {
        build.index_id: (answer.name, build.since)
        for answer in reversed(attempt.round.by_name.values())
        for build in answer.report.index_builds
    }
    for index in sorted(attempt.candidate.indexes.values(), key=lambda index: index.id):
        if index.id in built_by:
            name, since = built_by[index.id]
            message = f"participant {name} builds index {index.id} ({index.name}); versions are cut when it has ended"
            return Finding(Reason.INDEX_CONSTRUCTION, message, name, f"index {index.id}", since)
        if index.status in _CONSTRUCTION and _under_construction(attempt.following.indexes.get(index.id)):
            message = (
                f"index {index.id} ({index.name}) of table {index.table_id} is {index.status.name.lower()} in version "
                f"{attempt.candidate.version} and not available in the next one; versions are cut when it is available "
                "or removed"
            )
            return Finding(Reason.INDEX_CONSTRUCTION, message, "", f"index {index.id}")
    return None


def _under_construction(index: Index | None) -> bool:
    return index is not None and index.status in _CONSTRUCTION


def zones(attempt: Attempt) -> Finding | None:
    """Every zone of the expected topology exists. Partitions of a zone whose name is misspelt there would be counted,
    and not be expected where they must be: that is too little to cut by.
    """
    for name in attempt.round.topology.unknown_zones:
        message = (
            f"the topology assigns partitions of zone {name}, which the catalog does not have: correct the name in "
            "topology.assignments, or take the entry out"
        )
        return Finding(Reason.MISSING_ZONE, message, "", f"zone {name}")
    return None


def partitions(attempt: Attempt) -> Finding | None:
    """Every partition of every table of the candidate that exists now is where it must be. Tables, partitions and
    participants beyond that are ignored. A catalog without participants has no holders.
    """
    if attempt.round.topology.alone:
        return None
    held = _held(attempt.round)
    for table in _tables(attempt.candidate):
        if table.id not in attempt.current.tables:
            continue
        found = _table(attempt, table, attempt.candidate.zones[table.zone_id], held)
        if found is not None:
            return found
    return None


Held = dict[tuple[int, int], frozenset[str]]
"""(table id, partition) -> names of the participants that report it."""


def _held(round: Round) -> Held:
    held: dict[tuple[int, int], set[str]] = {}
    for answer in round.by_name.values():
        for one in answer.report.partitions:
            held.setdefault((one.table_id, one.partition), set()).add(answer.name)
    return {place: frozenset(names) for place, names in held.items()}


def _tables(catalog: Catalog) -> Iterator[Table]:
    yield from sorted(catalog.tables.values(), key=lambda table: table.id)


def _table(attempt: Attempt, table: Table, zone: Zone, held: Held) -> Finding | None:
    assigned = attempt.round.topology.assignments.get(zone.id)
    for partition in range(zone.partitions):
        holders = held.get((table.id, partition), frozenset())
        if assigned is None:
            found = _counted(attempt.round, table, zone, partition, holders)
        else:
            names = assigned[partition] if partition < len(assigned) else None
            found = _assigned(attempt.round, table, zone, partition, holders, names)
        if found is not None:
            return found
    return None


def _counted(round: Round, table: Table, zone: Zone, partition: int, holders: frozenset[str]) -> Finding | None:
    wanted = min(zone.replicas, max(1, len(round.topology.asked | round.topology.expected)))
    if len(holders) >= wanted:
        return None
    message = (
        f"partition {partition} of table {table.id} ({table.name}) in zone {zone.id} ({zone.name}) is reported by "
        f"{len(holders)} participants, {wanted} replicas are expected; check the participants that should hold it"
    )
    return Finding(Reason.MISSING_PARTITION, message, "", f"table {table.id} partition {partition}")


def _assigned(
    round: Round, table: Table, zone: Zone, partition: int, holders: frozenset[str], names: frozenset[str] | None
) -> Finding | None:
    place = f"partition {partition} of table {table.id} ({table.name}) in zone {zone.id} ({zone.name})"
    subject = f"table {table.id} partition {partition}"
    if names is None:
        message = f"{place} is assigned to no participant; name its participants in the topology"
        return Finding(Reason.MISSING_ASSIGNMENT, message, "", subject)
    for name in sorted(names - holders):
        if name not in round.by_name:
            message = (
                f"participant {name} holds {place} and was not found when the round began: start it, or assign the "
                "partition to another"
            )
            return Finding(Reason.MISSING_PARTICIPANT, message, name, subject)
        message = f"participant {name} does not report {place}, which it is assigned to; it does when it has started it"
        return Finding(Reason.MISSING_PARTITION, message, name, subject)
    return None


def deleted_tables(attempt: Attempt) -> Finding | None:
    """A table of the candidate that was deleted since: its partitions are not checked, so no reader may still see it,
    at the coordinator's watermark or at that of a participant, which may be behind.
    """
    time, name = attempt.round.lowest_watermark
    watermark = attempt.history.find_active(time)
    for table in _tables(attempt.candidate):
        if table.id in attempt.current.tables:
            continue
        if watermark is None or table.id in watermark.tables:
            owner = f"participant {name}" if name else "the coordinator"
            message = (
                f"table {table.id} ({table.name}) is deleted and can be read at the low watermark of {owner}; versions "
                "are cut when the watermark has passed its deletion"
            )
            return Finding(Reason.DELETED_TABLE_READABLE, message, name, f"table {table.id}")
    return None


CHECKS = (index_construction, zones, partitions, deleted_tables)
"""In this order; the first finding ends the attempt."""
