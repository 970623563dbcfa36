"""Events and errors as a history shows them (docs/design/catalogs.md#histories)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from compaction.catalogs.errors import CatalogNotFoundError
from compaction.catalogs.manager import events
from compaction.catalogs.replay.parsing import ERRORS

Json = dict[str, Any]
_ERRORS: Final[Mapping[type, str]] = {**ERRORS, CatalogNotFoundError: "CatalogNotFoundException"}


def error(one: BaseException) -> Json:
    """The class alone: messages are each side's own. An error that the reference does not have bears our name."""
    return {"error": _ERRORS.get(type(one), type(one).__name__)}


def without_message(result: Any) -> Any:
    """A result of the reference, an error reduced to its class."""
    if isinstance(result, dict) and isinstance(result.get("error"), dict):
        return {"error": result["error"].get("class")}
    return result


def event(one: events.CatalogEvent) -> Json:
    """With the name of the reference's class of parameters."""
    name, show = _SHOWN[type(one)]
    return {
        "catalogVersion": one.version,
        "causalityToken": one.revision,
        "event": one.kind.value,
        "params": f"{name}EventParameters",
        **show(one),
    }


def _table(one: Any) -> Json:
    return {"tableId": one.table_id}


def _index(one: Any) -> Json:
    return {"indexId": one.index_id}


def _zone(one: Any) -> Json:
    return {"zoneId": one.zone_id}


_SHOWN: Final[Mapping[type, tuple[str, Callable[[Any], Json]]]] = {
    events.TableCreated: ("CreateTable", lambda one: {"tableDescriptorId": one.table.id, "tableId": one.table.id}),
    events.TableDropped: ("DropTable", _table),
    events.TableRenamed: ("RenameTable", lambda one: {"newTableName": one.name, "tableId": one.table_id}),
    events.ColumnsAdded: ("AddColumn", _table),
    events.ColumnsDropped: ("DropColumn", _table),
    events.ColumnAltered: ("AlterColumn", _table),
    events.TablePropertiesAltered: ("AlterTableProperties", _table),
    events.IndexCreated: ("CreateIndex", lambda one: {"indexDescriptorId": one.index.id}),
    events.IndexBuilding: ("StartBuildingIndex", _index),
    events.IndexAvailable: ("MakeIndexAvailable", _index),
    events.IndexStopping: ("StoppingIndex", _index),
    events.IndexRemoved: ("RemoveIndex", _index),
    events.ZoneCreated: ("CreateZone", lambda one: {"zoneDescriptorId": one.zone.id}),
    events.ZoneAltered: ("AlterZone", lambda one: {"zoneDescriptorId": one.zone.id}),
    events.ZoneDropped: ("DropZone", _zone),
    # The reference has no class of its own for it.
    events.DefaultZoneSet: ("DropZone", _zone),
    events.SystemViewCreated: ("CreateSystemView", lambda one: {"descriptorId": one.view.id}),
}
