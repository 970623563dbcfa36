"""Commands that change the columns of a table (docs/design/catalogs.md#columns)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compaction.catalogs.codec.texts import text_order
from compaction.catalogs.commands.columns import (
    ColumnSpec,
    require_constant,
    require_known_function,
    require_legal_default,
    require_possible_change,
    require_stored,
)
from compaction.catalogs.commands.command import (
    Context,
    found_table,
    require_name,
    require_once,
    require_types,
    require_user_schema,
)
from compaction.catalogs.errors import CatalogValidationError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.descriptors import Column, Table
from compaction.catalogs.model.entries import Entry
from compaction.catalogs.model.enums import ColumnType
from compaction.catalogs.model.values import NULL, Default


@dataclass(frozen=True, slots=True)
class AddColumns:
    """Columns after the others. One that is not nullable needs a default for the rows that are there."""

    schema: str
    table: str
    columns: tuple[ColumnSpec, ...]
    if_table_exists: bool = False
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_user_schema(self.schema)
        require_name(self.table, "table")
        if not self.columns:
            raise CatalogValidationError(f"table {self.table}: no columns are named")
        require_once(column.name for column in self.columns)
        require_stored(self.columns)
        for column in self.columns:
            require_constant(column.name, column.default)
            if not column.nullable and column.default in (None, NULL):
                raise CatalogValidationError(f"column {column.name} is not nullable and has no default")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        found = found_table(context.catalog, self.schema, self.table, self.if_table_exists)
        if found is None:
            return ()
        table = found[1]
        added: list[Column] = []
        for column in self.columns:
            if table.column(column.name) is None:
                added.append(column.column())
            elif not self.if_not_exists:
                raise CatalogValidationError(f"table {self.table} has a column {column.name} already")
        return (model.NewColumns(tuple(added), table.id),) if added else ()


@dataclass(frozen=True, slots=True)
class DropColumns:
    """Columns that neither the primary key nor an alive index needs."""

    schema: str
    table: str
    columns: tuple[str, ...]
    if_table_exists: bool = False
    if_exists: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_user_schema(self.schema)
        require_name(self.table, "table")
        if not self.columns:
            raise CatalogValidationError(f"table {self.table}: no columns are named")
        for column in self.columns:
            require_name(column, "column")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        found = found_table(context.catalog, self.schema, self.table, self.if_table_exists)
        if found is None:
            return ()
        table = found[1]
        dropped: set[str] = set()
        for name in self.columns:
            column = table.column(name)
            if column is None:
                if self.if_exists:
                    continue
                raise CatalogValidationError(f"table {self.table} has no column {name}")
            if column.id in table.pk_column_ids:
                raise CatalogValidationError(f"column {name} belongs to the primary key and cannot be dropped")
            users = [
                index.name
                for index in context.catalog.indexes_of(table.id)
                if index.alive and column.id in (index.column_ids or ())
            ]
            if users:
                raise CatalogValidationError(f"column {name} cannot be dropped: {', '.join(users)} indexes it")
            dropped.add(name)
        return (model.DropColumns(table.id, tuple(sorted(dropped, key=text_order))),) if dropped else ()


@dataclass(frozen=True, slots=True)
class AlterColumn:
    """Another type, default or nullability of a column; None leaves each as it is. `default` NULL drops the default."""

    schema: str
    table: str
    column: str
    type: ColumnType | None = None
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    nullable: bool | None = None
    default: Default = None
    if_table_exists: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_user_schema(self.schema)
        require_name(self.table, "table")
        require_name(self.column, "column")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        found = found_table(context.catalog, self.schema, self.table, self.if_table_exists)
        if found is None:
            return ()
        table = found[1]
        before = table.column(self.column)
        if before is None:
            raise CatalogValidationError(f"table {self.table} has no column {self.column}")
        self._require_possible(table, before)
        require_legal_default(self.column, before.type if self.type is None else self.type, self.default)
        after = replace(
            before,
            type=before.type if self.type is None else self.type,
            precision=before.precision if self.precision is None else self.precision,
            scale=before.scale if self.scale is None else self.scale,
            length=before.length if self.length is None else self.length,
            nullable=before.nullable if self.nullable is None else self.nullable,
            default=before.default if self.default is None else self.default,
        )
        return () if after == before else (model.AlterColumn(after, table.id),)

    def _require_possible(self, table: Table, before: Column) -> None:
        if before.id in table.pk_column_ids:
            for of, value, current in (
                ("type", self.type, before.type),
                ("precision", self.precision, before.precision),
                ("scale", self.scale, before.scale),
            ):
                if value is not None and value != current:
                    raise CatalogValidationError(f"column {self.column} belongs to the primary key: its {of} is fixed")
            if self.nullable:
                raise CatalogValidationError(f"column {self.column} belongs to the primary key: it is never null")
            require_known_function(self.column, before.type, self.default)
        else:
            require_constant(self.column, self.default)
        require_possible_change(before, self.type, self.precision, self.scale, self.length)
        if self.nullable is False and before.nullable:
            raise CatalogValidationError(f"column {self.column} may hold nulls and cannot become not nullable")
