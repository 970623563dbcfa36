"""Columns as commands ask for them, and what their types allow (docs/design/catalogs.md#columns)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from compaction.catalogs.commands.command import require_name, require_types
from compaction.catalogs.errors import CatalogValidationError
from compaction.catalogs.model.descriptors import UNASSIGNED, Column
from compaction.catalogs.model.enums import ColumnType
from compaction.catalogs.model.values import NULL, Constant, Default, Function, fault_of

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

    def column(self) -> Column:
        """As entries have it, without an id."""
        precision = self.precision or 0
        length = max(precision, 1) if self.length is None else self.length
        return Column(UNASSIGNED, self.name, self.type, self.nullable, precision, self.scale or 0, length, self.default)


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
    before: Column, type: ColumnType | None, precision: int | None, scale: int | None, length: int | None
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
