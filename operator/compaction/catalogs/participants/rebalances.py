"""Zones whose partitions move, and from when on they need the catalog
(docs/design/catalog-compaction.md#rebalances).

Assignments of a zone's partitions are computed from one version of the zone. Until all partitions are where the newest
version wants them, that older version is needed, up to the instant before the next one that moves partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import Zone
from compaction.catalogs.participants.reports import Rebalance


@dataclass(frozen=True, slots=True)
class ZoneHistory:
    """Hybrid timestamps. `changes`: activation times of the zone's first kept version and of every later one that moves
    partitions, ascending. `dropped`: of the version without the zone, UNDEFINED while it exists.
    """

    zone_id: int
    changes: tuple[int, ...]
    dropped: int = UNDEFINED


@dataclass(frozen=True, slots=True)
class ZoneAssignments:
    """Live state of a zone: by partition, the hybrid timestamp of the catalog that its assignment was computed from.

    `stable`: where partitions are. `pending`: where they are on their way to. Planned ones wait for the pending ones,
    and count for nothing until they are pending themselves.
    """

    partitions: int
    stable: Mapping[int, int] = field(default_factory=dict)
    pending: Mapping[int, int] = field(default_factory=dict)


def moves_partitions(before: Zone, after: Zone) -> bool:
    """Return whether the assignments of a zone have to be computed again. Scale up and scale down are timers: the nodes
    that they add or remove do not depend on a version.
    """
    return _placement(before) != _placement(after)


def zone_histories(versions: Iterable[Catalog]) -> dict[int, ZoneHistory]:
    """Of every zone that has a table in one of the kept `versions`, ascending: others have nothing to move."""
    last: dict[int, Zone] = {}
    changes: dict[int, list[int]] = {}
    dropped: dict[int, int] = {}
    used: set[int] = set()
    for catalog in versions:
        used.update(table.zone_id for table in catalog.tables.values())
        for zone in catalog.zones.values():
            known = last.get(zone.id)
            if known is not zone and (known is None or moves_partitions(known, zone)):
                changes.setdefault(zone.id, []).append(catalog.activation_time)
            last[zone.id] = zone
        for id in last:
            if id not in catalog.zones:
                dropped.setdefault(id, catalog.activation_time)
    return {id: ZoneHistory(id, tuple(changes[id]), dropped.get(id, UNDEFINED)) for id in sorted(used & changes.keys())}


def rebalance_of(history: ZoneHistory, assignments: ZoneAssignments, now: int) -> Rebalance | None:
    """Return what the zone needs at `now`; None when it needs nothing older than that.

    A dropped zone with neither stable nor pending assignments is gone. `since` is the change that partitions have not
    followed yet.
    """
    if history.dropped and not assignments.stable and not assignments.pending:
        return None
    based = _based(history, assignments)
    following = next((change for change in history.changes if change > based and change <= now), UNDEFINED)
    if not following and UNDEFINED < history.dropped <= now:
        following = history.dropped
    return Rebalance(history.zone_id, following - 1, following) if following else None


def rebalances(
    histories: Mapping[int, ZoneHistory], assignments: Mapping[int, ZoneAssignments], now: int
) -> tuple[Rebalance, ...]:
    """Of all zones, by id; a zone without an entry in `assignments` has none yet."""
    none = ZoneAssignments(0)
    found = (rebalance_of(histories[id], assignments.get(id, none), now) for id in sorted(histories))
    return tuple(item for item in found if item is not None)


def _based(history: ZoneHistory, assignments: ZoneAssignments) -> int:
    """The oldest version that an assignment of the zone is computed from.

    Pending assignments replace the stable ones only when they cover all partitions: of those that are not covered the
    stable one is still the newest there is. A partition without any was computed from no version: the first counts.
    """
    every = range(assignments.partitions)
    if every and all(number in assignments.pending for number in every):
        return min(assignments.pending.values())
    first = history.changes[0]
    stable: Sequence[int] = [assignments.stable.get(number, first) for number in every]
    return min(stable, default=first)


def _placement(zone: Zone) -> tuple[object, ...]:
    return (
        zone.partitions,
        zone.replicas,
        zone.quorum_size,
        zone.filter,
        zone.storage_profiles,
        zone.consistency_mode,
    )
