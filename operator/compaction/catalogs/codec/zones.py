"""Zones and their storage profiles (types 25, 26 and 32)."""

from __future__ import annotations

from typing import Final

from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, TypeId
from compaction.catalogs.model.descriptors import ConsistencyMode, Zone

ZONE: Final = frozenset({TypeId.ZONE.value})
_PROFILE: Final = frozenset({TypeId.STORAGE_PROFILE.value})
_PROFILES: Final = frozenset({TypeId.STORAGE_PROFILES.value})
_MODE: Final = tuple(ConsistencyMode)


def read_profile(reader: NestedReader) -> str:
    return reader.text()


def write_profile(writer: ObjectWriter, profile: str) -> None:
    writer.text(profile)


def read_profiles_1(reader: NestedReader) -> tuple[str, ...]:
    return reader.texts()


def write_profiles_1(writer: ObjectWriter, profiles: tuple[str, ...]) -> None:
    writer.texts(profiles)


def read_profiles_2(reader: NestedReader) -> tuple[str, ...]:
    return reader.objects(_PROFILE)


def write_profiles_2(writer: ObjectWriter, profiles: tuple[str, ...]) -> None:
    writer.objects(TypeId.STORAGE_PROFILE, profiles)


def read_zone_1(reader: NestedReader) -> Zone:
    """Without a quorum: it follows from the replicas."""
    id, name, updated = reader.number(), reader.text(), reader.discarded_timestamp()
    profiles = reader.texts()
    partitions, replicas, adjust = reader.number(), reader.number(), reader.number()
    quorum = min(replicas, 2) if replicas <= 4 else 3
    return Zone(id, name, updated, profiles, partitions, replicas, quorum, adjust, *_read_rest(reader))


def read_zone_2(reader: NestedReader) -> Zone:
    id, name, updated = reader.number(), reader.text(), reader.timestamp()
    profiles: tuple[str, ...] = reader.object(_PROFILES)
    partitions, replicas, quorum = reader.number(), reader.number(), reader.number()
    reader.residue.append(reader.number())
    return Zone(id, name, updated, profiles, partitions, replicas, quorum, 0, *_read_rest(reader))


def _read_rest(reader: NestedReader) -> tuple[int, int, str, ConsistencyMode]:
    up, down, filter = reader.number(), reader.number(), reader.text()
    mode = reader.byte()
    if mode >= len(_MODE):
        reader.corrupt(f"{mode} is no consistency mode", reader.at - 1)
    return up, down, filter, _MODE[mode]


def write_zone_1(writer: ObjectWriter, zone: Zone) -> None:
    _write_head(writer, zone)
    writer.texts(zone.storage_profiles)
    writer.number(zone.partitions)
    writer.number(zone.replicas)
    writer.number(zone.auto_adjust)
    _write_rest(writer, zone)


def write_zone_2(writer: ObjectWriter, zone: Zone) -> None:
    _write_head(writer, zone)
    writer.object(TypeId.STORAGE_PROFILES, zone.storage_profiles)
    writer.number(zone.partitions)
    writer.number(zone.replicas)
    writer.number(zone.quorum_size)
    writer.number(writer.instead(zone.auto_adjust))
    _write_rest(writer, zone)


def _write_head(writer: ObjectWriter, zone: Zone) -> None:
    writer.number(zone.id)
    writer.text(zone.name)
    writer.timestamp(zone.update_timestamp)


def _write_rest(writer: ObjectWriter, zone: Zone) -> None:
    writer.number(zone.scale_up)
    writer.number(zone.scale_down)
    writer.text(zone.filter)
    writer.byte(zone.consistency_mode)
