"""The canonical form: events and descriptors as values of JSON (docs/design/catalogs.md#canonical-form).

Keys are sorted, there are no spaces, characters outside of ASCII are escaped; strings may hold lone surrogates. Numbers
with a point are `{"bits": hex}`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from compaction.catalogs.codec.constants import Json, show_default, show_double
from compaction.catalogs.codec.entry_forms import TYPE_OF_ENTRY
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import Index, IndexKind, SchemaContents, SystemView, Table, TableColumn, Zone


def text(value: object) -> str:
    """A value of JSON as the canonical form writes it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def event(item: model.Event) -> Json:
    if isinstance(item, model.Snapshot):
        return {
            "@type": "SNAPSHOT",
            "activationTime": item.activation_time,
            "defaultZoneId": item.default_zone_id,
            "objectIdGenState": item.last_id,
            "schemas": [schema(contents) for contents in item.schemas],
            "version": item.version,
            "zones": [zone(each) for each in item.zones],
        }
    return {
        "@type": "VERSIONED_UPDATE",
        "delayDurationMs": item.delay,
        "entries": [entry(each) for each in item.entries],
        "version": item.version,
    }


def catalog(item: Catalog) -> Json:
    """A version: all lists by ascending id."""
    return {
        "defaultZoneId": item.default_zone_id,
        "objectIdGen": item.last_id,
        "schemas": [schema(contents) for contents in item.contents()],
        "time": item.activation_time,
        "version": item.version,
        "zones": [zone(each) for each in sorted(item.zones.values(), key=lambda each: each.id)],
    }


def fingerprint(item: Catalog) -> str:
    """SHA-256, in hex, of the canonical form of a version."""
    return hashlib.sha256(text(catalog(item)).encode("ascii")).hexdigest()


def entry(item: model.Entry) -> Json:
    return {"@type": TYPE_OF_ENTRY[type(item)].name, **_ENTRIES[type(item)](item)}


def zone(item: Zone) -> Json:
    return {
        "@type": "ZONE",
        "autoAdjust": item.auto_adjust,
        "consistencyMode": int(item.consistency_mode),
        "filter": item.filter,
        "id": item.id,
        "name": item.name,
        "partitions": item.partitions,
        "quorumSize": item.quorum_size,
        "replicas": item.replicas,
        "scaleDown": item.scale_down,
        "scaleUp": item.scale_up,
        "storageProfiles": list(item.storage_profiles),
        "updateTimestamp": item.update_timestamp,
    }


def schema(contents: SchemaContents) -> Json:
    return {
        "@type": "SCHEMA",
        "id": contents.schema.id,
        "indexes": [index(item) for item in contents.indexes],
        "name": contents.schema.name,
        "systemViews": [view(item) for item in contents.views],
        "tables": [table(item) for item in contents.tables],
        "updateTimestamp": contents.schema.update_timestamp,
    }


def table(item: Table) -> Json:
    names = {column.id: column.name for column in item.columns}
    return {
        "@type": "TABLE",
        "base": item.base,
        "colocationColumns": [names[id] for id in item.colocated_by],
        "colocationIsPk": item.colocation_column_ids is None,
        "id": item.id,
        "minStaleRowsCount": item.min_stale_rows_count,
        "name": item.name,
        "nextColumnId": item.next_column_id,
        "pkColumns": [names[id] for id in item.pk_column_ids],
        "pkIndexId": item.pk_index_id,
        "schemaId": item.schema_id,
        "staleRowsFraction": show_double(item.stale_rows_fraction),
        "storageProfile": item.storage_profile,
        "updateTimestamp": item.update_timestamp,
        "versions": [[column(each) for each in columns] for columns in item.versions],
        "zoneId": item.zone_id,
    }


def column(item: TableColumn) -> Json:
    return {
        "default": show_default(item.default),
        "id": item.id,
        "length": item.length,
        "name": item.name,
        "nullable": item.nullable,
        "precision": item.precision,
        "scale": item.scale,
        "type": item.type.name,
    }


def index(item: Index) -> Json:
    key, columns = ("columns", item.column_names) if item.column_ids is None else ("columnIds", item.column_ids)
    listed: list[object] = list(columns or ())
    if item.kind is IndexKind.SORTED:
        listed = [[named, int(order)] for named, order in zip(listed, item.collations, strict=True)]
    return {
        "@type": f"{item.kind.name}_INDEX",
        key: listed,
        "createdWithTable": item.created_with_table,
        "id": item.id,
        "name": item.name,
        "status": int(item.status),
        "tableId": item.table_id,
        "unique": item.unique,
        "updateTimestamp": item.update_timestamp,
    }


def view(item: SystemView) -> Json:
    return {
        "@type": "SYSTEM_VIEW",
        "columns": [column(each) for each in item.columns],
        "id": item.id,
        "name": item.name,
        "schemaId": item.schema_id,
        "updateTimestamp": item.update_timestamp,
        "viewType": int(item.kind),
    }


def _renamed(key: str) -> Callable[[Any], Json]:
    return lambda item: {key: item.id, "newName": item.name}


def _numbered(key: str) -> Callable[[Any], Json]:
    return lambda item: {key: item.id}


_ENTRIES: Final[Mapping[type, Callable[[Any], Json]]] = {
    model.NewZoneEntry: lambda item: {"descriptor": zone(item.zone)},
    model.AlterZoneEntry: lambda item: {"descriptor": zone(item.zone)},
    model.DropZoneEntry: _numbered("zoneId"),
    model.SetDefaultZoneEntry: _numbered("zoneId"),
    model.NewSchemaEntry: lambda item: {"descriptor": schema(item.contents)},
    model.DropSchemaEntry: _numbered("schemaId"),
    model.NewTableEntry: lambda item: {"descriptor": table(item.table)},
    model.DropTableEntry: _numbered("tableId"),
    model.RenameTableEntry: _renamed("tableId"),
    model.AlterTablePropertiesEntry: lambda item: {
        "minStaleRowsCount": item.min_stale_rows_count,
        "staleRowsFraction": None if item.stale_rows_fraction is None else show_double(item.stale_rows_fraction),
        "tableId": item.id,
    },
    model.NewColumnsEntry: lambda item: {"columns": [column(each) for each in item.columns], "tableId": item.table_id},
    model.AlterColumnEntry: lambda item: {"descriptor": column(item.column), "tableId": item.table_id},
    model.DropColumnsEntry: lambda item: {"columns": list(item.names), "tableId": item.table_id},
    model.NewIndexEntry: lambda item: {"descriptor": index(item.index)},
    model.StartBuildingIndexEntry: _numbered("indexId"),
    model.MakeIndexAvailableEntry: _numbered("indexId"),
    model.DropIndexEntry: _numbered("indexId"),
    model.RemoveIndexEntry: _numbered("indexId"),
    model.RenameIndexEntry: _renamed("indexId"),
    model.NewSystemViewEntry: lambda item: {"descriptor": view(item.view)},
    model.AdvanceIdsEntry: lambda item: {"delta": item.delta},
}
