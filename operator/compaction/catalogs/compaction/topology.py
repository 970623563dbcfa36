"""The topology of a round from the spec: assignments name zones, decisions know their ids
(docs/design/catalog-compaction.md#rounds).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compaction.api.catalog.spec import PartitionAssignment, TopologySpec
from compaction.catalogs.compaction.round import Topology
from compaction.catalogs.manager.history import History
from compaction.catalogs.model.descriptors import Zone


def topology_of(spec: TopologySpec, asked: frozenset[str]) -> Topology:
    """What is known before the log was read."""
    return Topology(asked, frozenset(spec.participants), spec.min_participants)


def with_assignments(topology: Topology, spec: TopologySpec, history: History) -> Topology:
    """The declared assignments by id of the zone. A name counts for every zone that has, or had, it in the history: a
    zone that was renamed is not unassigned in the versions before, and one that was dropped is not unknown.
    """
    zones: dict[int, Zone] = {}
    names: dict[int, set[str]] = {}
    seen: object = None
    for version in history:
        if version.zones is seen:  # shared with the version before, as most are
            continue
        seen = version.zones
        for zone in version.zones.values():
            zones[zone.id] = zone
            names.setdefault(zone.id, set()).add(zone.name)
    assignments = {}
    for id, zone in zones.items():
        declared = [one for one in spec.assignments if one.zone in names[id]]
        if declared:
            assignments[id] = _placed(declared, zone)
    known = set().union(*names.values())
    unknown = dict.fromkeys(one.zone for one in spec.assignments if one.zone not in known)
    return replace(topology, assignments=assignments, unknown_zones=tuple(unknown))


def _placed(declared: Iterable[PartitionAssignment], zone: Zone) -> tuple[frozenset[str] | None, ...]:
    """The participants of each partition; several entries for one partition add up."""
    placed: list[frozenset[str] | None] = [None] * zone.partitions
    for one in declared:
        for partition in range(one.first_partition, min(one.last_partition + 1, zone.partitions)):
            placed[partition] = (placed[partition] or frozenset()) | frozenset(one.participants)
    return tuple(placed)
