"""What `kubectl get` shows and filters by: printer columns and the description of one resource."""

from dataclasses import dataclass
from enum import StrEnum


class ColumnType(StrEnum):
    """OpenAPI types of a printer column; kubectl shows a date as an age."""

    STRING = "string"
    INTEGER = "integer"
    DATE = "date"


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One column of `kubectl get`; `wide` columns appear with `-o wide` only."""

    name: str
    path: str
    description: str
    type: ColumnType = ColumnType.STRING
    wide: bool = False


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """Names, columns and selectable fields of a kind."""

    kind: str
    plural: str
    singular: str
    short_name: str
    columns: tuple[PrinterColumn, ...]
    selectable: tuple[str, ...]
