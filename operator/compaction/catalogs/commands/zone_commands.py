"""Commands of zones, and the filters of their nodes (docs/design/catalogs.md#zones)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from compaction.catalogs.commands.command import Context, NamedCommand, OnExisting, zone_of
from compaction.catalogs.errors import CatalogValidationError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import MINIMUM, ConsistencyMode, Zone
from compaction.catalogs.model.entries import AdvanceIdsEntry, Entry

# Filters of zones: paths of JSON, checked for their form (docs/design/catalogs.md#zones).

_NAME: Final = re.compile(r"[^\s.\[\]()*'\"]+|\*")
_STEPS: Final = re.compile(r"\s*(\*|-?\d+(\s*,\s*-?\d+)*|-?\d*\s*:\s*-?\d*(\s*:\s*-?\d+)?)\s*\]")
_NAMES: Final = re.compile(
    r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(\s*,\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))*\s*\]"""
)
_CONDITION: Final = re.compile(r"\s*\?\s*\(")


def require_path(filter: str | None) -> None:
    """CatalogValidationError when `filter` is no JSON path."""
    if filter is None:
        return
    path = filter.strip()
    if not path.startswith(("$", "@")):
        path = f"$.{path}"
    at = 1
    if path.endswith("."):
        raise CatalogValidationError(f"the filter {filter[:80]!a} is no JSON path: it ends with a dot")
    while at < len(path):
        end = _step(path, at)
        if end is None:
            raise CatalogValidationError(f"the filter {filter[:80]!a} is no JSON path: see character {at}")
        at = end


def _step(path: str, at: int) -> int | None:
    """Return the end of the step that begins at `at`; None when there is none."""
    if path.startswith("..", at):
        at += 2
    elif path.startswith(".", at):
        at += 1
    elif not path.startswith("[", at):
        return None
    if not path.startswith("[", at):
        found = _NAME.match(path, at)
        if found is None:
            return None
        return found.end() + 2 if path.startswith("()", found.end()) else found.end()
    for form in (_STEPS, _NAMES):
        if found := form.match(path, at + 1):
            return found.end()
    if found := _CONDITION.match(path, at + 1):
        return _condition_end(path, found.end())
    return None


def _condition_end(path: str, at: int) -> int | None:
    """After the `)]` that closes a condition; brackets in texts do not count."""
    depth, quote, start = 1, "", at
    while at < len(path):
        letter = path[at]
        if quote:
            at += letter == "\\"
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
            if not depth:
                closing = re.compile(r"\s*\]").match(path, at + 1)
                return closing.end() if closing and path[start:at].strip() else None
        at += 1
    return None


# Commands of zones (docs/design/catalogs.md#zones).

MAX_PARTITIONS: Final = 65_000
ALL_NODES: Final = "$..*"
NEVER: Final = 2**31 - 1
DEFAULT_ZONE: Final = "Default"
DEFAULT_PROFILE: Final = "default"
_REPLICAS: Final = 1


def default_quorum(replicas: int) -> int:
    """Two, less where there are fewer replicas, three from five replicas on."""
    return min(replicas, 2) if replicas <= 4 else 3


def _quorum_range(replicas: int) -> tuple[int, int]:
    least = min(replicas, 2)
    return least, max(least, (replicas + 1) // 2)


def _require_range(of: str, value: int | None, least: int, most: int | None = None) -> None:
    if value is not None and (value < least or (most is not None and value > most)):
        raise CatalogValidationError(f"{of} {value} is out of range {least}-{most or NEVER}")


def _require_settings(zone: CreateZone | AlterZone) -> None:
    _require_range("number of replicas", zone.replicas, 1)
    _require_range("quorum", zone.quorum_size, 1)
    _require_range("scale up", zone.scale_up, 0)
    _require_range("scale down", zone.scale_down, 0)
    require_path(zone.filter)


@dataclass(frozen=True, slots=True)
class CreateZone(NamedCommand):
    """A zone. `scale_up`, `scale_down`: seconds after which data follows a node that came or went."""

    _kind = "zone"
    storage_profiles: tuple[str, ...]
    if_not_exists: bool = False
    partitions: int | None = None
    replicas: int | None = None
    quorum_size: int | None = None
    scale_up: int | None = None
    scale_down: int | None = None
    filter: str | None = None
    consistency_mode: ConsistencyMode = ConsistencyMode.STRONG_CONSISTENCY

    def _require_legal(self) -> None:
        _require_settings(self)
        _require_range("number of partitions", self.partitions, 1, MAX_PARTITIONS)
        replicas = _REPLICAS if self.replicas is None else self.replicas
        if self.quorum_size is not None:
            _require_range(f"quorum of {replicas} replicas", self.quorum_size, *_quorum_range(replicas))
        if not self.storage_profiles:
            raise CatalogValidationError(f"zone {self.name} has no storage profile")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        catalog = context.catalog
        if catalog.zone(self.name) is not None:
            if self.if_not_exists:
                return ()
            raise CatalogValidationError(f"zone {self.name} already exists")
        replicas = _REPLICAS if self.replicas is None else self.replicas
        zone = Zone(
            catalog.last_id,
            self.name,
            MINIMUM,
            self.storage_profiles,
            context.partitions if self.partitions is None else self.partitions,
            replicas,
            default_quorum(replicas) if self.quorum_size is None else self.quorum_size,
            0,
            0 if self.scale_up is None else self.scale_up,
            NEVER if self.scale_down is None else self.scale_down,
            ALL_NODES if self.filter is None else self.filter,
            self.consistency_mode,
        )
        return model.NewZoneEntry(zone), AdvanceIdsEntry(1)


@dataclass(frozen=True, slots=True)
class _ExistingZone(NamedCommand, OnExisting[Zone]):
    """A command on a zone."""

    _kind = "zone"

    def _found(self, catalog: Catalog) -> Zone:
        return zone_of(catalog, self.name)


@dataclass(frozen=True, slots=True)
class AlterZone(_ExistingZone):
    """Other settings of a zone; None leaves one as it is. There is an entry even when nothing changes."""

    if_exists: bool = False
    partitions: int | None = None
    replicas: int | None = None
    quorum_size: int | None = None
    scale_up: int | None = None
    scale_down: int | None = None
    filter: str | None = None
    storage_profiles: tuple[str, ...] | None = None

    def _require_names(self) -> None:
        # Refused first, before a blank name.
        if self.partitions is not None:
            raise CatalogValidationError(f"zone {self.name}: the number of partitions cannot be changed")
        _ExistingZone._require_names(self)

    def _require_legal(self) -> None:
        _require_settings(self)

    def _changes(self, context: Context, zone: Zone, /) -> tuple[Entry, ...]:
        replicas = zone.replicas if self.replicas is None else self.replicas
        least, most = _quorum_range(replicas)
        if self.quorum_size is None:
            quorum = min(max(zone.quorum_size, least), most)
        else:
            _require_range(f"quorum of {replicas} replicas", self.quorum_size, least, most)
            quorum = self.quorum_size
        changed = replace(
            zone,
            replicas=replicas,
            quorum_size=quorum,
            auto_adjust=0,
            scale_up=zone.scale_up if self.scale_up is None else self.scale_up,
            scale_down=zone.scale_down if self.scale_down is None else self.scale_down,
            filter=zone.filter if self.filter is None else self.filter,
            storage_profiles=zone.storage_profiles if self.storage_profiles is None else self.storage_profiles,
            update_timestamp=MINIMUM,
        )
        return (model.AlterZoneEntry(changed),)


@dataclass(frozen=True, slots=True)
class RenameZone(_ExistingZone):
    """Another name for a zone; the default zone may have any."""

    new_name: str
    if_exists: bool = False

    def _changes(self, context: Context, zone: Zone, /) -> tuple[Entry, ...]:
        if context.catalog.zone(self.new_name) is not None:
            raise CatalogValidationError(f"zone {self.new_name} already exists")
        return (model.AlterZoneEntry(replace(zone, name=self.new_name, update_timestamp=MINIMUM)),)


@dataclass(frozen=True, slots=True)
class SetDefaultZone(_ExistingZone):
    """Tables that name no zone are in this one."""

    if_exists: bool = False

    def _changes(self, context: Context, zone: Zone, /) -> tuple[Entry, ...]:
        if zone.id == context.catalog.default_zone_id:
            return ()
        return (model.SetDefaultZoneEntry(zone.id),)


@dataclass(frozen=True, slots=True)
class DropZone(_ExistingZone):
    """A zone without tables that is not the default."""

    if_exists: bool = False

    def _changes(self, context: Context, zone: Zone, /) -> tuple[Entry, ...]:
        catalog = context.catalog
        if zone.id == catalog.default_zone_id:
            raise CatalogValidationError(f"zone {self.name} is the default zone and cannot be dropped")
        tables = catalog.tables_in_zone(zone.id)
        if tables:
            raise CatalogValidationError(f"zone {self.name} cannot be dropped: table {tables[0].name} is in it")
        return (model.DropZoneEntry(zone.id),)


def lazy_default_zone(context: Context, id: int) -> Zone:
    """The zone for the first table that names none. CatalogValidationError when another zone has its name."""
    if context.catalog.zone(DEFAULT_ZONE) is not None:
        raise CatalogValidationError(
            f"zone {DEFAULT_ZONE} exists and is not the default; name a zone for the table, or set the default"
        )
    return Zone(
        id,
        DEFAULT_ZONE,
        MINIMUM,
        (DEFAULT_PROFILE,),
        context.partitions,
        _REPLICAS,
        default_quorum(_REPLICAS),
        0,
        0,
        NEVER,
        ALL_NODES,
        ConsistencyMode.STRONG_CONSISTENCY,
    )
