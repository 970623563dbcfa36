"""Numbers of the types that a value is built from (docs/design/catalogs.md#types)."""

from __future__ import annotations

from enum import IntEnum


class TypeId(IntEnum):
    """Type of an object on the wire, by its number."""

    ALTER_COLUMN = 0
    ALTER_ZONE = 1
    NEW_ZONE = 2
    DROP_COLUMN = 3
    DROP_INDEX = 4
    DROP_TABLE = 5
    DROP_ZONE = 6
    MAKE_INDEX_AVAILABLE = 7
    REMOVE_INDEX = 8
    START_BUILDING_INDEX = 9
    NEW_COLUMN = 10
    NEW_INDEX = 11
    NEW_SYS_VIEW = 12
    NEW_TABLE = 13
    RENAME_TABLE = 14
    ID_GENERATOR = 15
    SNAPSHOT = 16
    VERSIONED_UPDATE = 17
    RENAME_INDEX = 18
    SET_DEFAULT_ZONE = 19
    NEW_SCHEMA = 20
    DROP_SCHEMA = 21
    HASH_INDEX = 22
    SORTED_INDEX = 23
    SCHEMA = 24
    STORAGE_PROFILE = 25
    STORAGE_PROFILES = 26
    SYSTEM_VIEW = 27
    TABLE = 28
    TABLE_COLUMN = 29
    TABLE_VERSION = 30
    TABLE_SCHEMA_VERSIONS = 31
    ZONE = 32
    ALTER_TABLE_PROPERTIES = 33
