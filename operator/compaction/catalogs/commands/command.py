"""Commands of a catalog: the form of all, the objects that names lead to, and columns as commands ask for them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from compaction.catalogs.errors import CatalogValidationError, IndexNotFoundError
from compaction.catalogs.model.applying import with_entries
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import (
    MINIMUM,
    NULL,
    UNASSIGNED,
    ColumnType,
    Constant,
    Default,
    Function,
    Index,
    Schema,
    Table,
    TableColumn,
    Zone,
    fault_of,
)
from compaction.catalogs.model.entries import Entry

# The form of a command, and the parts that all share: names, and the objects that names lead to.

PUBLIC: Final = "PUBLIC"
SYSTEM: Final = "SYSTEM"
SYSTEM_SCHEMAS: Final = frozenset({SYSTEM, "DEFINITION_SCHEMA", "INFORMATION_SCHEMA"})
_NO_BREAK: Final = frozenset("\x85\xa0\u2007\u202f")
"""Spaces that do not make a name blank."""


@dataclass(frozen=True, slots=True)
class Context:
    """`base`: the version that the batch starts from; `catalog`: with the entries of the commands before this one.
    `partitions`: of a zone that names no number.
    """

    base: Catalog
    catalog: Catalog
    partitions: int = 25


class CatalogCommand(Protocol):
    """Parameters are checked when it is made; CatalogValidationError says which is wrong."""

    def entries(self, context: Context) -> tuple[Entry, ...]:
        """Return the entries that carry the command out, in order; empty when nothing is to be done. Raises
        CatalogValidationError when the rules refuse it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries of a list of commands, which become one version; and which commands contributed."""

    entries: tuple[Entry, ...]
    applied: tuple[bool, ...]


def batch(catalog: Catalog, commands: Sequence[CatalogCommand], partitions: int = 25) -> Batch:
    """Every command sees what those before it do; one that is refused refuses all."""
    entries: list[Entry] = []
    applied: list[bool] = []
    scratch = catalog
    for command in commands:
        found = command.entries(Context(catalog, scratch, partitions))
        scratch = with_entries(scratch, found, MINIMUM)
        entries += found
        applied.append(bool(found))
    return Batch(tuple(entries), tuple(applied))


@cache
def _types(of: Any) -> dict[str, Any]:
    hints = get_type_hints(of)
    return {field.name: hints[field.name] for field in fields(of)}


def require_types(given: Any) -> None:
    """CatalogValidationError for a member that is not of its declared type: a command that took it would fail later, or
    write what no process reads.
    """
    for name, hint in _types(given.__class__).items():
        value = getattr(given, name)
        if not _is(value, hint):
            shown = hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
            said = re.sub(r"(\w+\.)+", "", shown)
            raise CatalogValidationError(f"{type(given).__name__}: {name} is {value!r:.80}, not {said}")


def _is(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_is(value, item) for item in get_args(hint))
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(item, get_args(hint)[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    # bool is an int of Python, and no number of a catalog.
    return isinstance(value, hint) and not (isinstance(value, bool) and hint is int)


def require_name(name: str | None, of: str) -> None:
    """CatalogValidationError when a name is missing or blank."""
    if name is None or all(item.isspace() and item not in _NO_BREAK for item in name):
        raise CatalogValidationError(f"the name of the {of} is missing or blank")


def require_user_schema(name: str | None) -> None:
    """CatalogValidationError for a name that is missing, or of a system schema."""
    require_name(name, "schema")
    if name in SYSTEM_SCHEMAS:
        raise CatalogValidationError(f"schema {name} belongs to the system and cannot be changed")


def require_once(names: Iterable[str], of: str = "column") -> None:
    """CatalogValidationError for a name that is listed twice."""
    seen: set[str] = set()
    for name in names:
        require_name(name, of)
        if name in seen:
            raise CatalogValidationError(f"{of} {name} is listed more than once")
        seen.add(name)


def schema_of(catalog: Catalog, name: str) -> Schema:
    """The schema of this name; CatalogValidationError when there is none."""
    schema = catalog.schema(name)
    if schema is None:
        raise CatalogValidationError(f"schema {name} does not exist")
    return schema


def table_of(catalog: Catalog, schema_name: str, name: str) -> tuple[Schema, Table]:
    """The table of this name; CatalogValidationError when it, or its schema, does not exist."""
    schema = schema_of(catalog, schema_name)
    table = catalog.table(schema, name)
    if table is None:
        raise CatalogValidationError(f"table {schema_name}.{name} does not exist")
    return schema, table


def zone_of(catalog: Catalog, name: str) -> Zone:
    """The zone of this name; CatalogValidationError when there is none."""
    zone = catalog.zone(name)
    if zone is None:
        raise CatalogValidationError(f"zone {name} does not exist")
    return zone


def index_of(catalog: Catalog, schema_name: str, name: str) -> tuple[Schema, Index]:
    """The alive index of this name; IndexNotFoundError when there is none."""
    schema = schema_of(catalog, schema_name)
    index = catalog.index(schema, name)
    if index is None:
        raise IndexNotFoundError(f"index {schema_name}.{name} does not exist")
    return schema, index


def index_by_id(catalog: Catalog, id: int) -> Index:
    """The index of this id; IndexNotFoundError when there is none."""
    index = catalog.indexes.get(id)
    if index is None:
        raise IndexNotFoundError(f"index {id} does not exist")
    return index


def require_free(catalog: Catalog, schema: Schema, name: str) -> None:
    """CatalogValidationError when a table, an alive index or a view has the name: they share one name space."""
    for kind, found in (
        ("index", catalog.index(schema, name)),
        ("table", catalog.table(schema, name)),
        ("system view", catalog.view(schema, name)),
    ):
        if found is not None:
            raise CatalogValidationError(f"{kind} {schema.name}.{name} already exists")


# Forms of commands: first fields, checks and the look-up. A command adds its fields after those of its form. Forms call
# each other by name: `super()` without arguments fails in dataclasses with slots.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckedCommand:
    """A command whose parameters are checked when it is made: types, then names in their order, then the rest."""

    _kind: ClassVar[str]
    """Kind of the object that `name` and `new_name` name."""

    def __post_init__(self) -> None:
        require_types(self)
        self._require_names()
        self._require_legal()

    def _require_names(self) -> None:
        for field in (item.name for item in fields(self)):
            if field == "schema":
                require_user_schema(getattr(self, field))
            elif field in ("name", "new_name", "table", "column"):
                require_name(getattr(self, field), self._kind if field.endswith("name") else field)

    def _require_legal(self) -> None:
        """CatalogValidationError for what else the command does not allow."""


@dataclass(frozen=True, slots=True)
class NamedCommand(CheckedCommand):
    """A command that names an object."""

    name: str


@dataclass(frozen=True, slots=True)
class InSchema(CheckedCommand):
    """A command that names an object in a schema of a user."""

    schema: str
    name: str


class OnExisting(ABC, Generic[T]):
    """A command on an object, which does nothing without it where it is asked to."""

    __slots__ = ()
    _lenient: ClassVar[str] = "if_exists"
    """The field that asks; commands have it in places of their own."""

    def entries(self, context: Context) -> tuple[Entry, ...]:
        try:
            found = self._found(context.catalog)
        except CatalogValidationError:
            if getattr(self, self._lenient):
                return ()
            raise
        return self._changes(context, found)

    @abstractmethod
    def _found(self, catalog: Catalog) -> T:
        """The object. CatalogValidationError when it, or its schema, does not exist."""

    @abstractmethod
    def _changes(self, context: Context, found: T, /) -> tuple[Entry, ...]:
        """As `entries`, of the object that was found."""


# Columns as commands ask for them, and what their types allow (docs/design/catalogs.md#columns).

_SHORT: Final = 2**15 - 1
PRECISION: Final = {
    ColumnType.DECIMAL: (1, _SHORT),
    ColumnType.TIME: (0, 9),
    ColumnType.DATETIME: (0, 9),
    ColumnType.TIMESTAMP: (0, 9),
    ColumnType.PERIOD: (1, 10),
    ColumnType.DURATION: (1, 10),
}
"""Least and largest precision, of the types that have one."""
SCALE: Final = {ColumnType.DECIMAL: (0, _SHORT)}
LENGTH: Final = {ColumnType.STRING: (1, 2**31 - 1), ColumnType.BYTE_ARRAY: (1, 2**31 - 1)}
VARIABLE_LENGTH: Final = 2**16
FUNCTIONS: Final = {"RAND_UUID": ColumnType.UUID}
"""Functions that a column of a primary key may default to, and their types."""
_WIDER: Final = {
    ColumnType.INT8: (ColumnType.INT16, ColumnType.INT32, ColumnType.INT64),
    ColumnType.INT16: (ColumnType.INT32, ColumnType.INT64),
    ColumnType.INT32: (ColumnType.INT64,),
    ColumnType.FLOAT: (ColumnType.DOUBLE,),
}
_GROWING: Final = frozenset(
    {*_WIDER, ColumnType.INT64, ColumnType.DOUBLE, ColumnType.STRING, ColumnType.BYTE_ARRAY, ColumnType.DECIMAL}
)
"""Types whose precision and length may grow when the type is named."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column to create. Precision, scale and length are given exactly where the type has them."""

    name: str
    type: ColumnType
    nullable: bool = True
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    default: Default = NULL

    def __post_init__(self) -> None:
        require_types(self)
        require_name(self.name, "column")
        if self.type in (ColumnType.NULL, ColumnType.STRUCT):
            raise CatalogValidationError(f"column {self.name}: no column has the type {self.type.name}")
        require_legal_default(self.name, self.type, self.default)
        _check(self, "length", self.length, LENGTH.get(self.type))
        _check(self, "precision", self.precision, PRECISION.get(self.type))
        _check(self, "scale", self.scale, SCALE.get(self.type))

    def column(self) -> TableColumn:
        """As entries have it, without an id."""
        precision = self.precision or 0
        length = max(precision, 1) if self.length is None else self.length
        return TableColumn(
            UNASSIGNED, self.name, self.type, self.nullable, precision, self.scale or 0, length, self.default
        )


def _check(spec: ColumnSpec, of: str, value: int | None, limits: tuple[int, int] | None) -> None:
    if limits is None:
        if value is not None:
            raise CatalogValidationError(f"column {spec.name}: the type {spec.type.name} has no {of}")
    elif value is None:
        raise CatalogValidationError(f"column {spec.name}: the type {spec.type.name} needs a {of}")
    elif not limits[0] <= value <= limits[1]:
        raise CatalogValidationError(
            f"column {spec.name}: the {of} {value} of the type {spec.type.name} is out of range {limits[0]}-{limits[1]}"
        )


def require_stored(columns: Iterable[ColumnSpec]) -> None:
    """CatalogValidationError for types that tables do not keep."""
    for column in columns:
        if column.type in (ColumnType.PERIOD, ColumnType.DURATION):
            raise CatalogValidationError(f"column {column.name}: tables do not keep the type {column.type.name}")


def require_legal_default(name: str, type: ColumnType, default: Default) -> None:
    """CatalogValidationError for a constant of another type than the column has, or one that no reader takes: a version
    that holds it could be read by nothing.
    """
    if not isinstance(default, Constant):
        return
    if default.type not in (type, ColumnType.NULL):
        raise CatalogValidationError(
            f"column {name}: its default is of the type {default.type.name}, the column of {type.name}"
        )
    fault = fault_of(default)
    if fault is not None:
        raise CatalogValidationError(f"column {name}: the default is not legal: {fault}")


def require_constant(name: str, default: Default) -> None:
    """CatalogValidationError for a function: only columns of a primary key may default to one."""
    if isinstance(default, Function):
        raise CatalogValidationError(f"column {name}: only columns of a primary key may default to a function")


def require_known_function(name: str, type: ColumnType, default: Default) -> None:
    """CatalogValidationError for a function that is not known, or of another type."""
    if isinstance(default, Function):
        returned = FUNCTIONS.get(default.name.upper())
        if returned is not type:
            reason = "is not known" if returned is None else f"returns {returned.name}, not {type.name}"
            raise CatalogValidationError(f"column {name}: the function {default.name} {reason}")


def require_possible_change(
    before: TableColumn, type: ColumnType | None, precision: int | None, scale: int | None, length: int | None
) -> None:
    """CatalogValidationError unless values of the column before are values of it after: types may become wider,
    precision and length may grow where the type is named.
    """
    growing = False
    if type is not None and type is not before.type and type not in _WIDER.get(before.type, ()):
        raise CatalogValidationError(f"column {before.name}: {before.type.name} cannot become {type.name}")
    if type is not None and before.type in _GROWING:
        growing = True
    for of, value, current, limits, grows in (
        ("precision", precision, before.precision, PRECISION, True),
        ("scale", scale, before.scale, SCALE, False),
        ("length", length, before.length, LENGTH, True),
    ):
        if value is None or value == current:
            continue
        if growing and before.type not in limits:
            continue
        if not growing or not grows or value < current:
            raise CatalogValidationError(
                f"column {before.name}: the {of} of the type {before.type.name} cannot become {value} from {current}"
            )
