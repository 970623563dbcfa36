"""Numbers of the format with names (docs/design/catalogs.md#primitives)."""

from __future__ import annotations

from enum import IntEnum


class ColumnType(IntEnum):
    """Type of a column or of a constant, by its number on the wire."""

    NULL = 0
    BOOLEAN = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT = 6
    DOUBLE = 7
    DECIMAL = 8
    DATE = 9
    TIME = 10
    DATETIME = 11
    TIMESTAMP = 12
    UUID = 13
    STRING = 15
    BYTE_ARRAY = 16
    PERIOD = 17
    DURATION = 18
    STRUCT = 19


class IndexStatus(IntEnum):
    """Life of an index. It is alive until it is stopping: names belong to alive indexes only."""

    REGISTERED = 0
    BUILDING = 1
    AVAILABLE = 2
    STOPPING = 3


class IndexKind(IntEnum):
    """How an index keeps its columns; protocol 1 writes this number before each index."""

    HASH = 0
    SORTED = 1


class Collation(IntEnum):
    """Order of one column of a sorted index: bit 0 ascending, bit 1 nulls first."""

    DESC_NULLS_LAST = 0
    ASC_NULLS_LAST = 1
    DESC_NULLS_FIRST = 2
    ASC_NULLS_FIRST = 3


class ConsistencyMode(IntEnum):
    """What a zone does when most replicas of a partition are lost."""

    STRONG_CONSISTENCY = 0
    HIGH_AVAILABILITY = 1


class ViewKind(IntEnum):
    """Whether a system view shows one node or the cluster."""

    NODE = 0
    CLUSTER = 1
