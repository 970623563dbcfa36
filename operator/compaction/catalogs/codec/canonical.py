"""The canonical form: events and descriptors as values of JSON (docs/design/catalogs.md#canonical-form).

Keys are sorted, there are no spaces, characters outside of ASCII are escaped; strings may hold lone surrogates. Numbers
with a point are `{"bits": hex}`.
"""

from __future__ import annotations

import decimal
import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from compaction.catalogs.codec.entry_forms import TYPE_OF_ENTRY
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import (
    ColumnType,
    Date,
    DateTime,
    Decimal,
    Default,
    DurationValue,
    Function,
    Index,
    IndexKind,
    Period,
    SchemaContents,
    SystemView,
    Table,
    TableColumn,
    Time,
    Timestamp,
    Uuid,
    Zone,
)

Json = dict[str, Any]


def text(value: object) -> str:
    """A value of JSON as the canonical form writes it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def event(one: model.Event) -> Json:
    if isinstance(one, model.Snapshot):
        return {
            "@type": "SNAPSHOT",
            "activationTime": one.activation_time,
            "defaultZoneId": one.default_zone_id,
            "objectIdGenState": one.last_id,
            "schemas": [schema(contents) for contents in one.schemas],
            "version": one.version,
            "zones": [zone(each) for each in one.zones],
        }
    return {
        "@type": "VERSIONED_UPDATE",
        "delayDurationMs": one.delay,
        "entries": [entry(each) for each in one.entries],
        "version": one.version,
    }


def catalog(one: Catalog) -> Json:
    """A version: all lists by ascending id."""
    return {
        "defaultZoneId": one.default_zone_id,
        "objectIdGen": one.last_id,
        "schemas": [schema(contents) for contents in one.contents()],
        "time": one.activation_time,
        "version": one.version,
        "zones": [zone(each) for each in sorted(one.zones.values(), key=lambda each: each.id)],
    }


def fingerprint(one: Catalog) -> str:
    """SHA-256, in hex, of the canonical form of a version."""
    return hashlib.sha256(text(catalog(one)).encode("ascii")).hexdigest()


def entry(one: model.Entry) -> Json:
    return {"@type": TYPE_OF_ENTRY[type(one)].name, **_ENTRIES[type(one)](one)}


def zone(one: Zone) -> Json:
    return {
        "@type": "ZONE",
        "autoAdjust": one.auto_adjust,
        "consistencyMode": int(one.consistency_mode),
        "filter": one.filter,
        "id": one.id,
        "name": one.name,
        "partitions": one.partitions,
        "quorumSize": one.quorum_size,
        "replicas": one.replicas,
        "scaleDown": one.scale_down,
        "scaleUp": one.scale_up,
        "storageProfiles": list(one.storage_profiles),
        "updateTimestamp": one.update_timestamp,
    }


def schema(contents: SchemaContents) -> Json:
    return {
        "@type": "SCHEMA",
        "id": contents.schema.id,
        "indexes": [index(one) for one in contents.indexes],
        "name": contents.schema.name,
        "systemViews": [view(one) for one in contents.views],
        "tables": [table(one) for one in contents.tables],
        "updateTimestamp": contents.schema.update_timestamp,
    }


def table(one: Table) -> Json:
    names = {column.id: column.name for column in one.columns}
    return {
        "@type": "TABLE",
        "base": one.base,
        "colocationColumns": [names[id] for id in one.colocated_by],
        "colocationIsPk": one.colocation_column_ids is None,
        "id": one.id,
        "minStaleRowsCount": one.min_stale_rows_count,
        "name": one.name,
        "nextColumnId": one.next_column_id,
        "pkColumns": [names[id] for id in one.pk_column_ids],
        "pkIndexId": one.pk_index_id,
        "schemaId": one.schema_id,
        "staleRowsFraction": _double(one.stale_rows_fraction),
        "storageProfile": one.storage_profile,
        "updateTimestamp": one.update_timestamp,
        "versions": [[column(each) for each in columns] for columns in one.versions],
        "zoneId": one.zone_id,
    }


def column(one: TableColumn) -> Json:
    return {
        "default": _default(one.default),
        "id": one.id,
        "length": one.length,
        "name": one.name,
        "nullable": one.nullable,
        "precision": one.precision,
        "scale": one.scale,
        "type": one.type.name,
    }


def index(one: Index) -> Json:
    key, columns = ("columns", one.column_names) if one.column_ids is None else ("columnIds", one.column_ids)
    listed: list[object] = list(columns or ())
    if one.kind is IndexKind.SORTED:
        listed = [[named, int(order)] for named, order in zip(listed, one.collations, strict=True)]
    return {
        "@type": f"{one.kind.name}_INDEX",
        key: listed,
        "createdWithTable": one.created_with_table,
        "id": one.id,
        "name": one.name,
        "status": int(one.status),
        "tableId": one.table_id,
        "unique": one.unique,
        "updateTimestamp": one.update_timestamp,
    }


def view(one: SystemView) -> Json:
    return {
        "@type": "SYSTEM_VIEW",
        "columns": [column(each) for each in one.columns],
        "id": one.id,
        "name": one.name,
        "schemaId": one.schema_id,
        "updateTimestamp": one.update_timestamp,
        "viewType": int(one.kind),
    }


def _double(number: float) -> Json:
    return {"bits": struct.pack(">d", number).hex()}


def _default(one: Default) -> Json | None:
    if one is None:
        return None
    if isinstance(one, Function):
        return {"func": one.name}
    show = _VALUES.get(one.type)
    return {"const": one.type.name, "value": one.value if show is None else show(one.value)}


def _decimal(value: Decimal) -> Json:
    return {"scale": value.scale, "unscaled": format(decimal.Decimal(value.unscaled), "f")}


def _date(value: Date) -> str:
    """The year as it is, without a sign of its own or leading zeros."""
    return f"{value.year}-{value.month:02}-{value.day:02}"


def _time(value: Time) -> str:
    return f"{value.hour:02}:{value.minute:02}:{value.second:02}.{value.nano:09}"


def _date_time(value: DateTime) -> str:
    return f"{_date(value.date)}T{_time(value.time)}"


def _timestamp(value: Timestamp) -> Json:
    return {"epochSecond": value.second, "nano": value.nano}


def _uuid(value: Uuid) -> str:
    return f"{value.high & 0xFFFFFFFFFFFFFFFF:016x}-{value.low & 0xFFFFFFFFFFFFFFFF:016x}"


def _period(value: Period) -> Json:
    return {"days": value.days, "months": value.months, "years": value.years}


def _duration(value: DurationValue) -> Json:
    return {"nano": value.nano, "seconds": value.second}


_VALUES: Final[Mapping[ColumnType, Callable[[Any], object]]] = {
    ColumnType.FLOAT: lambda bits: {"bits": f"{bits:08x}"},
    ColumnType.DOUBLE: lambda bits: {"bits": f"{bits:016x}"},
    ColumnType.DECIMAL: _decimal,
    ColumnType.DATE: _date,
    ColumnType.TIME: _time,
    ColumnType.DATETIME: _date_time,
    ColumnType.TIMESTAMP: _timestamp,
    ColumnType.UUID: _uuid,
    ColumnType.BYTE_ARRAY: bytes.hex,
    ColumnType.PERIOD: _period,
    ColumnType.DURATION: _duration,
}


def _renamed(key: str) -> Callable[[Any], Json]:
    return lambda one: {key: one.id, "newName": one.name}


def _numbered(key: str) -> Callable[[Any], Json]:
    return lambda one: {key: one.id}


_ENTRIES: Final[Mapping[type, Callable[[Any], Json]]] = {
    model.NewZoneEntry: lambda one: {"descriptor": zone(one.zone)},
    model.AlterZoneEntry: lambda one: {"descriptor": zone(one.zone)},
    model.DropZoneEntry: _numbered("zoneId"),
    model.SetDefaultZoneEntry: _numbered("zoneId"),
    model.NewSchemaEntry: lambda one: {"descriptor": schema(one.contents)},
    model.DropSchemaEntry: _numbered("schemaId"),
    model.NewTableEntry: lambda one: {"descriptor": table(one.table)},
    model.DropTableEntry: _numbered("tableId"),
    model.RenameTableEntry: _renamed("tableId"),
    model.AlterTablePropertiesEntry: lambda one: {
        "minStaleRowsCount": one.min_stale_rows_count,
        "staleRowsFraction": None if one.stale_rows_fraction is None else _double(one.stale_rows_fraction),
        "tableId": one.id,
    },
    model.NewColumnsEntry: lambda one: {"columns": [column(each) for each in one.columns], "tableId": one.table_id},
    model.AlterColumnEntry: lambda one: {"descriptor": column(one.column), "tableId": one.table_id},
    model.DropColumnsEntry: lambda one: {"columns": list(one.names), "tableId": one.table_id},
    model.NewIndexEntry: lambda one: {"descriptor": index(one.index)},
    model.StartBuildingIndexEntry: _numbered("indexId"),
    model.MakeIndexAvailableEntry: _numbered("indexId"),
    model.DropIndexEntry: _numbered("indexId"),
    model.RemoveIndexEntry: _numbered("indexId"),
    model.RenameIndexEntry: _renamed("indexId"),
    model.NewSystemViewEntry: lambda one: {"descriptor": view(one.view)},
    model.AdvanceIdsEntry: lambda one: {"delta": one.delta},
}
