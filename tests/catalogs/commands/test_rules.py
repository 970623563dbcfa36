"""What commands refuse, each rule with a command that breaks it (docs/design/catalogs.md#commands)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.commands import schema_commands, table_commands, zone_commands
from compaction.catalogs.commands.command import LENGTH, PRECISION, SCALE, CatalogCommand, ColumnSpec
from compaction.catalogs.commands.table_commands import PrimaryKey
from compaction.catalogs.errors import CatalogValidationError, NoStorageProfileError
from compaction.catalogs.model.descriptors import (
    Collation,
    ColumnType,
    Constant,
    Date,
    DateTime,
    Decimal,
    DurationValue,
    Function,
    IndexKind,
    Period,
    Time,
    Timestamp,
    Uuid,
    Value,
    ViewKind,
)
from compaction.catalogs.model.entries import NewColumnsEntry, VersionedUpdate
from support.catalogs.rounds import INT, World, column, table

COLUMNS = (column("ID", False), column("V"))
KEY = PrimaryKey(("ID",))
SORTED = (Collation.ASC_NULLS_LAST,)


def created(*columns: ColumnSpec, key: PrimaryKey = KEY, colocation: tuple[str, ...] | None = None) -> CatalogCommand:
    return table_commands.CreateTable("PUBLIC", "N", columns, key, colocation)


def added(*columns: ColumnSpec) -> CatalogCommand:
    return table_commands.AddColumns("PUBLIC", "T", columns)


def altered(column: str, type: ColumnType | None = None, **others: object) -> CatalogCommand:
    return table_commands.AlterColumn("PUBLIC", "T", column, type, **others)  # type: ignore[arg-type]


PARAMETERS: dict[str, tuple[Callable[[], object], str]] = {
    "schema name": (lambda: schema_commands.CreateSchema(" "), "missing or blank"),
    "reserved": (lambda: schema_commands.CreateSchema("DEFINITION_SCHEMA"), "reserved"),
    "not reserved": (lambda: schema_commands.CreateSystemSchema("S"), "not the name of a system schema"),
    "table in system": (lambda: table_commands.DropTable("SYSTEM", "T"), "belongs to the system"),
    "no columns": (lambda: created(), "has no columns"),
    "columns twice": (lambda: created(*COLUMNS, column("V")), "V is listed more than once"),
    "no key": (lambda: created(*COLUMNS, key=PrimaryKey(())), "has no primary key"),
    "key of others": (lambda: created(*COLUMNS, key=PrimaryKey(("X",))), "no column of table N"),
    "key twice": (lambda: created(*COLUMNS, key=PrimaryKey(("ID", "ID"))), "more than once"),
    "nullable key": (lambda: created(*COLUMNS, key=PrimaryKey(("V",))), "is nullable"),
    "sorted key": (lambda: created(*COLUMNS, key=PrimaryKey(("ID",), IndexKind.SORTED)), "needs a collation"),
    "colocation": (lambda: created(*COLUMNS, colocation=("V",)), "not part of the primary key"),
    "no colocation": (lambda: created(*COLUMNS, colocation=()), "by no column"),
    "function": (lambda: created(*COLUMNS, ColumnSpec("U", INT, default=Function("rand_uuid"))), "primary key may"),
    "unknown function": (lambda: created(ColumnSpec("ID", INT, False, default=Function("f"))), "f is not known"),
    "function's type": (lambda: created(ColumnSpec("ID", INT, False, default=Function("rand_UUID"))), "returns UUID"),
    "period": (lambda: created(*COLUMNS, ColumnSpec("P", ColumnType.PERIOD, precision=2)), "do not keep"),
    "null": (lambda: ColumnSpec("N", ColumnType.NULL), "no column has the type NULL"),
    "length": (lambda: ColumnSpec("N", ColumnType.STRING), "needs a length"),
    "length 0": (lambda: ColumnSpec("N", ColumnType.STRING, length=0), "the length 0 .* out of range 1-"),
    "no length": (lambda: ColumnSpec("N", INT, length=1), "INT32 has no length"),
    "precision": (lambda: ColumnSpec("N", ColumnType.TIME), "needs a precision"),
    "precision 10": (lambda: ColumnSpec("N", ColumnType.TIME, precision=10), "out of range 0-9"),
    "precision 11": (lambda: ColumnSpec("N", ColumnType.DURATION, precision=11), "out of range 1-10"),
    "scale": (lambda: ColumnSpec("N", ColumnType.DECIMAL, precision=1), "needs a scale"),
    "no scale": (lambda: ColumnSpec("N", ColumnType.TIME, precision=1, scale=1), "has no scale"),
    "added without default": (lambda: added(column("X", False)), "not nullable and has no default"),
    "nothing added": (lambda: added(), "no columns are named"),
    "nothing dropped": (lambda: table_commands.DropColumns("PUBLIC", "T", ()), "no columns are named"),
    "fraction": (lambda: table_commands.SetTableProperties("PUBLIC", "T", 1.5), "out of range 0-1"),
    "fraction nan": (lambda: table_commands.SetTableProperties("PUBLIC", "T", math.nan), "out of range 0-1"),
    "count": (lambda: table_commands.SetTableProperties("PUBLIC", "T", None, -1), "negative"),
    "partitions": (lambda: zone_commands.CreateZone("Z", ("p",), partitions=65_001), "out of range 1-65000"),
    "replicas": (lambda: zone_commands.CreateZone("Z", ("p",), replicas=0), "number of replicas 0"),
    "quorum": (lambda: zone_commands.CreateZone("Z", ("p",), replicas=3, quorum_size=3), "quorum of 3 replicas 3"),
    "profiles": (lambda: zone_commands.CreateZone("Z", ()), "no storage profile"),
    "filter": (lambda: zone_commands.CreateZone("Z", ("p",), filter="bad[["), "no JSON path"),
    "alter partitions": (lambda: zone_commands.AlterZone("Z", partitions=1), "cannot be changed"),
    "scale up": (lambda: zone_commands.AlterZone("Z", scale_up=-1), "scale up -1"),
    "index columns": (lambda: schema_commands.CreateIndex("PUBLIC", "I", "T", ()), "has no columns"),
    "index collations": (
        lambda: schema_commands.CreateIndex("PUBLIC", "I", "T", ("V",), IndexKind.SORTED),
        "needs a coll",
    ),
    "view columns": (lambda: schema_commands.CreateSystemView("V", (), ViewKind.NODE), "has no columns"),
}


@pytest.mark.parametrize(("make", "reason"), PARAMETERS.values(), ids=list(PARAMETERS))
def test_wrong_parameters_are_refused_before_any_catalog_is_read(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(CatalogValidationError, match=reason):
        make()


STATE: dict[str, tuple[CatalogCommand, str]] = {
    "schema": (schema_commands.CreateSchema("PUBLIC"), "PUBLIC already exists"),
    "system schema": (schema_commands.DropSchema("SYSTEM", True), "SYSTEM belongs to the system"),
    "rename, key's index": (table_commands.RenameTable("PUBLIC", "T", "T2"), "index PUBLIC.T2_PK already exists"),
    "rename of none": (table_commands.RenameTable("PUBLIC", "X", "T", True), "table PUBLIC.T already exists"),
    "no schema": (schema_commands.DropSchema("S"), "S does not exist"),
    "not empty": (schema_commands.DropSchema("PUBLIC"), "is not empty"),
    "table": (table("T"), "table PUBLIC.T already exists"),
    "table of an index": (table("I"), "index PUBLIC.I already exists"),
    "key's index": (table("T2", "A"), "index PUBLIC.T2_PK already exists"),
    "no table": (table_commands.DropTable("PUBLIC", "X"), "table PUBLIC.X does not exist"),
    "rename": (table_commands.RenameTable("PUBLIC", "T", "I"), "index PUBLIC.I already exists"),
    "profile": (table_commands.CreateTable("PUBLIC", "N", COLUMNS, KEY, storage_profile="p"), "no storage profile p"),
    "zone": (table("N", zone="X"), "zone X does not exist"),
    "zone twice": (zone_commands.CreateZone("Z", ("p",)), "zone Z already exists"),
    "default zone": (zone_commands.DropZone("Default"), "is the default zone"),
    "zone in use": (zone_commands.DropZone("Z"), "table T3 is in it"),
    "zone renamed": (zone_commands.RenameZone("Z", "Default"), "zone Default already exists"),
    "altered quorum": (
        zone_commands.AlterZone("Z", replicas=3, quorum_size=1),
        "quorum of 3 replicas 1 is out of range 2-2",
    ),
    "column twice": (added(column("V")), "has a column V already"),
    "no column": (table_commands.DropColumns("PUBLIC", "T", ("X",)), "no column X"),
    "key's column": (table_commands.DropColumns("PUBLIC", "T", ("ID",)), "belongs to the primary key"),
    "index's column": (table_commands.DropColumns("PUBLIC", "T", ("V",)), "cannot be dropped: I, T2_PK indexes it"),
    "narrower": (altered("V", ColumnType.INT16), "INT32 cannot become INT16"),
    "other type": (altered("V", ColumnType.STRING), "INT32 cannot become STRING"),
    "key's type": (altered("ID", ColumnType.INT64), "its type is fixed"),
    "key's null": (altered("ID", nullable=True), "it is never null"),
    "not null": (altered("V", nullable=False), "cannot become not nullable"),
    "shorter": (altered("S", ColumnType.STRING, length=5), "length of the type STRING cannot become 5 from 10"),
    "length alone": (altered("S", length=50), "cannot become 50 from 10"),
    "precision": (altered("D", ColumnType.DECIMAL, precision=4), "cannot become 4 from 5"),
    "scale": (altered("D", ColumnType.DECIMAL, scale=3), "cannot become 3 from 2"),
    "function": (altered("V", default=Function("rand_uuid")), "only columns of a primary key"),
    "index": (schema_commands.CreateIndex("PUBLIC", "I", "T", ("V",)), "index PUBLIC.I already exists"),
    "index of none": (schema_commands.CreateIndex("PUBLIC", "J", "T", ("X",)), "no column X"),
    "unique": (schema_commands.CreateIndex("PUBLIC", "J", "T", ("V",), unique=True), "lacks columns that place"),
    "key's index dropped": (schema_commands.DropIndex("PUBLIC", "T_PK"), "belongs to the primary key of table T"),
    "no schema of a table": (table_commands.RenameTable("NOPE", "T", "U"), "schema NOPE does not exist"),
}


@pytest.mark.parametrize(("command", "reason"), STATE.values(), ids=list(STATE))
def test_what_the_catalog_does_not_allow_is_refused(command: CatalogCommand, reason: str) -> None:
    world = World.started()
    text, number = ColumnSpec("S", ColumnType.STRING, length=10), ColumnSpec("D", ColumnType.DECIMAL, True, 5, 2)
    world.run(table_commands.CreateTable("PUBLIC", "T", (*COLUMNS, text, number), KEY))
    world.run(
        schema_commands.CreateIndex("PUBLIC", "I", "T", ("V",)),
        schema_commands.CreateIndex("PUBLIC", "T2_PK", "T", ("V",)),
    )
    world.run(zone_commands.CreateZone("Z", ("p",)), table("T3", zone="Z"))
    before = world.catalog
    with pytest.raises(CatalogValidationError, match=reason):
        world.run(zone_commands.CreateZone("OK", ("p",)), command)
    assert world.catalog is before


def test_a_zone_without_profiles_has_an_error_of_its_own() -> None:
    world = World.started()
    world.run(zone_commands.CreateZone("Z", ("p",)))
    world.run(zone_commands.AlterZone("Z", storage_profiles=()))
    with pytest.raises(NoStorageProfileError, match="zone Z has no storage profile"):
        world.run(table("T", zone="Z"))


IF: list[CatalogCommand] = [
    schema_commands.CreateSchema("PUBLIC", True),
    schema_commands.DropSchema("X", False, True),
    zone_commands.AlterZone("X", True),
    zone_commands.RenameZone("X", "Y", True),
    zone_commands.SetDefaultZone("X", True),
    zone_commands.SetDefaultZone("Default"),
    zone_commands.DropZone("X", True),
    zone_commands.CreateZone("Default", ("p",), True),
    table_commands.CreateTable("PUBLIC", "T", COLUMNS, KEY, if_not_exists=True),
    table_commands.DropTable("X", "T", True),
    table_commands.DropTable("PUBLIC", "X", True),
    table_commands.RenameTable("PUBLIC", "X", "Y", True),
    table_commands.SetTableProperties("PUBLIC", "T"),
    table_commands.SetTableProperties("PUBLIC", "X", 0.5, None, True),
    table_commands.AddColumns("PUBLIC", "T", (column("V"),), False, True),
    table_commands.AddColumns("PUBLIC", "X", (column("V"),), True),
    table_commands.DropColumns("PUBLIC", "T", ("X",), False, True),
    table_commands.DropColumns("PUBLIC", "X", ("X",), True),
    table_commands.AlterColumn("PUBLIC", "X", "V", if_table_exists=True),
    table_commands.AlterColumn("PUBLIC", "T", "V", INT),
    schema_commands.CreateIndex("PUBLIC", "T_PK", "T", ("V",), if_not_exists=True),
    schema_commands.DropIndex("X", "I", True),
    schema_commands.RenameIndex("PUBLIC", "X", "Y", True),
]


@pytest.mark.parametrize("command", IF, ids=lambda command: type(command).__name__)
def test_commands_that_have_nothing_to_do_write_nothing(command: CatalogCommand) -> None:
    world = World.started()
    world.run(table("T", "V"))
    before = world.catalog
    found = world.run(command)
    assert (found.entries, found.applied) == ((), (False,))
    assert world.catalog is before


@pytest.mark.parametrize(
    "filter", ["$..*", "$", "$.a.b", "$['a','b']", "$[0]", "$[0, 1]", "$[1:2]", "$.a[*]", "$[?(@.r == 'a)' && (@.x))]",
               '$[?(@.storage=="SSD")]', "$.é", "region", "$.length()"],
)  # fmt: skip
def test_paths_of_json_are_filters(filter: str) -> None:
    assert zone_commands.CreateZone("Z", ("p",), filter=filter).filter == filter


@pytest.mark.parametrize("filter", ["bad[[", "$.", "$[", "$[?(@.a]", "$[?()]", "$['a]", "$a", "$..", "$.a b", "$[a]"])
def test_other_texts_are_none(filter: str) -> None:
    with pytest.raises(CatalogValidationError, match="no JSON path"):
        zone_commands.CreateZone("Z", ("p",), filter=filter)


def test_a_constant_default_serves_a_column_that_is_not_nullable() -> None:
    world = World.started()
    world.run(table("T"))
    world.run(added(ColumnSpec("N", INT, False, default=Constant(INT, 5))))
    assert [item.name for item in world.table("T").columns] == ["ID", "N"]


LAST_NANO = 999_999_999
ENDS: dict[ColumnType, tuple[tuple[Value, ...], tuple[Value, ...]]] = {
    ColumnType.INT8: ((-128, 127), (-129, 128, True)),
    ColumnType.INT16: ((-32_768, 32_767), (-32_769, 32_768)),
    ColumnType.INT32: ((-(2**31), 2**31 - 1), (-(2**31) - 1, 2**31, "1")),
    ColumnType.INT64: ((-(2**63), 2**63 - 1), (-(2**63) - 1, 2**63)),
    ColumnType.BOOLEAN: ((False, True), (0, None)),
    ColumnType.FLOAT: ((0, 2**32 - 1), (-1, 2**32)),
    ColumnType.DOUBLE: ((0, 2**64 - 1), (-1, 2**64)),
    ColumnType.DECIMAL: ((Decimal(-32_768, 0), Decimal(32_767, -1)), (Decimal(-32_769, 1), Decimal(32_768, 1), 1)),
    ColumnType.DATE: (
        (Date(-999_999_999, 1, 1), Date(999_999_999, 12, 31), Date(0, 2, 29), Date(-4, 2, 29)),
        (
            Date(-1_000_000_000, 1, 1),
            Date(10**9, 1, 1),
            Date(2024, 2, 30),
            Date(2023, 2, 29),
            Date(1, 0, 1),
            Date(1, 1, 0),
        ),
    ),
    ColumnType.TIME: (
        (Time(0, 0, 0, 0), Time(23, 59, 59, LAST_NANO)),
        (
            Time(24, 0, 0, 0),
            Time(25, 0, 0, 0),
            Time(0, 60, 0, 0),
            Time(0, 0, 60, 0),
            Time(0, 0, 0, 10**9),
            Time(-1, 0, 0, 0),
        ),
    ),
    ColumnType.DATETIME: (
        (DateTime(Date(-999_999_999, 1, 1), Time(0, 0, 0, 0)),),
        (
            DateTime(Date(2024, 2, 30), Time(0, 0, 0, 0)),
            DateTime(Date(2024, 2, 1), Time(24, 0, 0, 0)),
            Date(2024, 2, 1),
        ),
    ),
    # The first and the last moment of the reference: no year lies as far before the epoch as the last one after it.
    ColumnType.TIMESTAMP: (
        (Timestamp(-31_557_014_167_219_200, 0), Timestamp(31_556_889_864_403_199, LAST_NANO)),
        (
            Timestamp(-31_557_014_167_219_201, 0),
            Timestamp(31_556_889_864_403_200, 0),
            Timestamp(0, -1),
            Timestamp(0, 2 * 10**9),
        ),
    ),
    ColumnType.UUID: ((Uuid(-(2**63), 2**63 - 1),), (Uuid(2**63, 0), Uuid(0, -(2**63) - 1))),
    ColumnType.STRING: (("", "\x00\U0001f600"), (b"", 1)),
    ColumnType.BYTE_ARRAY: ((b"", b"\x00"), ("",)),
    ColumnType.PERIOD: ((Period(-(2**31), 0, 2**31 - 1),), (Period(2**31, 0, 0), Period(0, -(2**31) - 1, 0))),
    ColumnType.DURATION: (
        (DurationValue(-(2**63), 0), DurationValue(2**63 - 1, LAST_NANO)),
        (DurationValue(2**63, 0), DurationValue(0, -1), DurationValue(0, 10**9)),
    ),
}
"""Legal values at both ends of each type, and values beyond them."""


def test_every_type_of_constants_has_its_ends() -> None:
    assert set(ENDS) == set(ColumnType) - {ColumnType.NULL, ColumnType.STRUCT}


@pytest.mark.parametrize("kind", list(ENDS), ids=lambda kind: kind.name)
def test_a_constant_is_legal_up_to_both_ends_of_its_type(kind: ColumnType) -> None:
    """A default that a command takes is one that readers take, and the other way round."""
    limits: dict[str, Any] = {
        of: 3 for of, where in (("precision", PRECISION), ("scale", SCALE), ("length", LENGTH)) if kind in where
    }
    legal, beyond = ENDS[kind]
    for value in legal:
        spec = ColumnSpec("N", kind, default=Constant(kind, value), **limits)
        update = VersionedUpdate(1, 0, (NewColumnsEntry((spec.column(),), 1),))
        assert decode(encode(update), "value") == update
    for value in beyond:
        with pytest.raises(CatalogValidationError, match="column N: the default is not legal"):
            ColumnSpec("N", kind, default=Constant(kind, value), **limits)
    with pytest.raises(CatalogValidationError, match=f"its default is of the type {kind.name}"):
        ColumnSpec("N", INT if kind is not INT else ColumnType.INT64, default=Constant(kind, legal[0]))
