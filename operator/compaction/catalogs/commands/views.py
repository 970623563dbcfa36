"""The command of system views."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compaction.catalogs.commands.columns import ColumnSpec
from compaction.catalogs.commands.command import (
    SYSTEM,
    Context,
    require_free,
    require_name,
    require_once,
    require_types,
    schema_of,
)
from compaction.catalogs.errors import CatalogValidationError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.descriptors import View
from compaction.catalogs.model.entries import AdvanceIds, Entry
from compaction.catalogs.model.enums import ViewKind
from compaction.catalogs.model.hybrid import MINIMUM


@dataclass(frozen=True, slots=True)
class CreateSystemView:
    """A system view; another one of its name is replaced, an equal one is left as it is."""

    name: str
    columns: tuple[ColumnSpec, ...]
    kind: ViewKind

    def __post_init__(self) -> None:
        require_types(self)
        require_name(self.name, "system view")
        if not self.columns:
            raise CatalogValidationError(f"system view {self.name} has no columns")
        require_once(column.name for column in self.columns)

    def entries(self, context: Context) -> tuple[Entry, ...]:
        catalog = context.catalog
        schema = schema_of(catalog, SYSTEM)
        columns = tuple(spec.column() for spec in self.columns)
        view = View(catalog.last_id, schema.id, self.name, MINIMUM, columns, self.kind)
        before = catalog.view(schema, self.name)
        if before is None:
            require_free(catalog, schema, self.name)
        elif replace(before, id=view.id, update_timestamp=MINIMUM) == view:
            return ()
        return model.NewSystemView(view), AdvanceIds(1)
