"""What commands do: entries in order, ids, versions of columns, lives of indexes, names that return."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.catalogs.commands import schema_commands, table_commands, zone_commands
from compaction.catalogs.commands.command import CatalogCommand, ColumnSpec
from compaction.catalogs.errors import (
    CatalogValidationError,
    InapplicableEntryError,
    IndexNotFoundError,
    IndexStatusError,
)
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.applying import applied, restored
from compaction.catalogs.model.catalog import EMPTY
from compaction.catalogs.model.descriptors import ColumnType, IndexStatus, ViewKind, hybrid
from support.catalogs.rounds import World, column, table


def kinds(entries: tuple[model.Entry, ...]) -> list[str]:
    return [type(entry).__name__.removesuffix("Entry") for entry in entries]


def test_the_first_table_makes_the_default_zone() -> None:
    world = World.started()
    assert world.catalog.default_zone is None
    first = world.run(table("A"))
    assert kinds(first.entries) == ["NewZone", "SetDefaultZone", "NewTable", "NewIndex", "AdvanceIds"]
    assert first.entries[-1] == model.AdvanceIdsEntry(3)
    zone = world.catalog.default_zone
    assert zone is not None
    assert (zone.name, zone.id, zone.partitions, zone.quorum_size) == ("Default", 4, 25, 1)
    assert (world.table("A").id, world.table("A").pk_index_id) == (2, 3)
    assert kinds(world.run(table("B")).entries) == ["NewTable", "NewIndex", "AdvanceIds"]


def test_a_zone_that_only_has_the_name_of_the_default_is_not_taken() -> None:
    world = World.started()
    world.run(zone_commands.CreateZone("Default", ("p",)))
    with pytest.raises(CatalogValidationError, match="exists and is not the default"):
        world.run(table("A"))
    world.run(zone_commands.SetDefaultZone("Default"))
    world.run(table("A"))
    assert world.table("A").storage_profile == "p"


def test_a_batch_is_one_version_or_none() -> None:
    world = World.started()
    found = world.run(
        schema_commands.CreateSchema("PUBLIC", True), table("A", "V"), schema_commands.DropIndex("PUBLIC", "X", True),
        schema_commands.CreateIndex("PUBLIC", "I", "A", ("V",)),
    )  # fmt: skip
    assert found.applied == (False, True, False, True)
    assert world.catalog.version == 2
    with_table = world.index("I")
    assert with_table is not None
    assert (with_table.status, with_table.created_with_table) == (IndexStatus.AVAILABLE, True)
    with pytest.raises(CatalogValidationError):
        world.run(table("B"), table("C"), table("A"))
    assert world.catalog.version == 2


def test_the_life_of_an_index() -> None:
    world = World.started()
    world.run(table("T", "V"))
    created = world.run(schema_commands.CreateIndex("PUBLIC", "I", "T", ("V",)))
    assert kinds(created.entries) == ["NewIndex", "AdvanceIds"]
    index = world.index("I")
    assert index is not None
    assert (index.status, index.created_with_table) == (IndexStatus.REGISTERED, False)
    with pytest.raises(IndexStatusError, match="is REGISTERED and cannot become AVAILABLE"):
        world.run(schema_commands.MakeIndexAvailable(index.id))
    world.run(schema_commands.StartBuildingIndex(index.id))
    with pytest.raises(IndexStatusError, match="is BUILDING"):
        world.run(schema_commands.StartBuildingIndex(index.id))
    world.run(schema_commands.MakeIndexAvailable(index.id))
    with pytest.raises(CatalogValidationError, match="cannot be removed"):
        world.run(schema_commands.RemoveIndex(index.id))
    assert kinds(world.run(schema_commands.DropIndex("PUBLIC", "I")).entries) == ["DropIndex"]
    assert world.index("I") is None
    assert world.catalog.indexes[index.id].status is IndexStatus.STOPPING
    with pytest.raises(IndexNotFoundError, match=r"PUBLIC\.I does not exist"):
        world.run(schema_commands.RenameIndex("PUBLIC", "I", "J"))
    world.run(schema_commands.CreateIndex("PUBLIC", "I", "T", ("V",)))
    again = world.index("I")
    assert again is not None
    assert again.id > index.id
    assert [index.id for index in world.catalog.indexes_of(world.table("T").id)] == [3, index.id, again.id]
    world.run(schema_commands.RemoveIndex(index.id))
    assert index.id not in world.catalog.indexes
    with pytest.raises(IndexNotFoundError):
        world.run(schema_commands.RemoveIndex(index.id))
    assert world.index("I") is again or world.index("I") == again


@pytest.mark.parametrize("steps", [0, 1])
def test_an_index_that_was_never_available_is_removed_at_once(steps: int) -> None:
    world = World.started()
    world.run(table("T", "V"))
    world.run(schema_commands.CreateIndex("PUBLIC", "I", "T", ("V",)))
    index = world.index("I")
    assert index is not None
    if steps:
        world.run(schema_commands.StartBuildingIndex(index.id))
    assert kinds(world.run(schema_commands.DropIndex("PUBLIC", "I")).entries) == ["RemoveIndex"]


def test_a_dropped_table_leaves_its_stopping_indexes() -> None:
    world = World.started()
    world.run(table("T", "V"), schema_commands.CreateIndex("PUBLIC", "I", "T", ("V",)))
    index = world.index("I")
    assert index is not None
    world.run(schema_commands.DropIndex("PUBLIC", "I"))
    assert world.run(table_commands.DropTable("PUBLIC", "T")).entries == (
        model.RemoveIndexEntry(3),
        model.DropTableEntry(2),
    )
    assert list(world.catalog.indexes) == [index.id]
    assert restored(world.catalog.snapshot()) == world.catalog
    world.run(schema_commands.RemoveIndex(index.id))
    assert not len(world.catalog.indexes)


def test_names_return_and_ids_do_not() -> None:
    world = World.started()
    world.run(table("T"))
    first, before = world.table("T"), world.catalog
    world.run(table_commands.DropTable("PUBLIC", "T"))
    world.run(table("T"))
    assert world.table("T").id > first.id
    assert World(before).table("T") is first


def test_columns_keep_their_ids_and_a_name_that_returns_gets_another() -> None:
    world = World.started()
    world.run(table("T", "A", "B"))
    world.run(table_commands.DropColumns("PUBLIC", "T", ("A",)))
    world.run(table_commands.AddColumns("PUBLIC", "T", (column("C"), column("A"))))
    world.run(table_commands.AlterColumn("PUBLIC", "T", "B", ColumnType.INT64))
    world.run(table_commands.RenameTable("PUBLIC", "T", "U"))
    world.run(table_commands.SetTableProperties("PUBLIC", "U", 0.5))
    found = world.table("U")
    assert [(item.name, item.id) for item in found.columns] == [("ID", 0), ("B", 2), ("C", 3), ("A", 4)]
    assert (found.latest_version, found.next_column_id, found.stale_rows_fraction) == (4, 5, 0.5)
    assert [len(version) for version in found.versions] == [3, 2, 4, 4]
    assert found.columns[1].type is ColumnType.INT64
    assert world.index("T_PK") is None
    assert world.index("U_PK") is not None


def test_a_schema_is_dropped_with_what_is_in_it() -> None:
    world = World.started()
    world.run(table("A", "V"), table("B"), schema_commands.CreateIndex("PUBLIC", "I", "A", ("V",)))
    world.run(schema_commands.DropIndex("PUBLIC", "I"))
    found = world.run(schema_commands.DropSchema("PUBLIC", cascade=True))
    assert kinds(found.entries)[-3:] == ["DropTable", "DropTable", "DropSchema"]
    assert set(kinds(found.entries)[:-3]) == {"RemoveIndex"}
    assert world.catalog.schema("PUBLIC") is None
    for left in (world.catalog.tables, world.catalog.indexes, world.catalog.table_names, world.catalog.index_names):
        assert not len(left)
    assert kinds(world.run(schema_commands.CreateSchema("PUBLIC")).entries) == ["NewSchema", "AdvanceIds"]


def test_a_system_view_is_replaced_by_another_and_not_by_an_equal_one() -> None:
    world = World.started()
    view = schema_commands.CreateSystemView("V", (column("A"),), ViewKind.NODE)
    assert kinds(world.run(view).entries) == ["NewSystemView", "AdvanceIds"]
    assert world.run(view).applied == (False,)
    world.run(schema_commands.CreateSystemView("V", (column("B"),), ViewKind.NODE))
    (only,) = world.catalog.views.values()
    assert (only.id, only.columns[0].name) == (3, "B")


def test_zones_change_within_their_quorum() -> None:
    world = World.started()
    world.run(zone_commands.CreateZone("Z", ("p",), replicas=5, scale_up=3))
    assert kinds(world.run(zone_commands.AlterZone("Z")).entries) == ["AlterZone"]
    world.run(zone_commands.AlterZone("Z", replicas=2))
    zone = world.catalog.zone("Z")
    assert zone is not None
    assert (zone.replicas, zone.quorum_size, zone.scale_up, zone.scale_down) == (2, 2, 3, 2**31 - 1)
    world.run(zone_commands.RenameZone("Z", "Y"))
    world.run(zone_commands.SetDefaultZone("Y"))
    assert world.catalog.zone("Z") is None
    assert world.catalog.default_zone_id == zone.id


def test_a_change_touches_the_object_and_its_schema() -> None:
    world = World.started()
    world.run(table("A"), table("B"))
    before = world.catalog
    world.run(table_commands.AddColumns("PUBLIC", "A", (column("X"),)))
    time = hybrid(world.catalog.version * 1000)
    assert world.table("A").update_timestamp == time
    schema = world.catalog.schema("PUBLIC")
    assert schema is not None
    assert schema.update_timestamp == time
    assert world.catalog.activation_time == hybrid(world.catalog.version * 1000 + 5)
    assert world.table("B") is World(before).table("B")
    for name in ("zones", "indexes", "views", "table_names", "index_names", "table_indexes"):
        assert getattr(world.catalog, name) is getattr(before, name)


def test_every_version_is_its_snapshot() -> None:
    world = World.started()
    steps: list[CatalogCommand] = [
        table("A", "V", "W"),
        schema_commands.CreateIndex("PUBLIC", "I", "A", ("V",)),
        zone_commands.CreateZone("Z", ("p", "q")),
        table("B", "V", zone="Z"),
        table_commands.AddColumns("PUBLIC", "B", (ColumnSpec("S", ColumnType.STRING, length=9),)),
        schema_commands.CreateSystemView("V", (column("A"),), ViewKind.CLUSTER),
        table_commands.DropColumns("PUBLIC", "A", ("W",)),
        schema_commands.DropIndex("PUBLIC", "I"),
        table_commands.DropTable("PUBLIC", "B"),
    ]
    for step in steps:
        world.run(step)
        assert restored(world.catalog.snapshot()) == world.catalog


@pytest.mark.parametrize(
    "entry",
    [
        model.DropTableEntry(9),
        model.DropZoneEntry(9),
        model.SetDefaultZoneEntry(9),
        model.DropSchemaEntry(9),
        model.RemoveIndexEntry(9),
        model.DropIndexEntry(9),
        model.RenameIndexEntry(9, "A"),
        model.RenameTableEntry(9, "A"),
        model.AlterTablePropertiesEntry(9, None, None),
        model.DropColumnsEntry(9, ("A",)),
        model.DropColumnsEntry(2, ("ID",)),
        model.DropSchemaEntry(0),
    ],
    ids=lambda entry: type(entry).__name__.removesuffix("Entry"),
)
def test_an_entry_that_names_what_is_not_there_is_damage(entry: model.Entry) -> None:
    world = World.started()
    world.run(table("T", "V"))
    update = model.VersionedUpdate(world.catalog.version + 1, 0, (entry,))
    with pytest.raises(InapplicableEntryError, match=r"catalog version 3: .* cannot be applied: there is no") as caught:
        applied(world.catalog, update, hybrid(9000))
    assert caught.value.version == 3


def test_a_new_object_takes_an_id_of_its_own() -> None:
    world = World.started()
    world.run(table("T", "V"), zone_commands.CreateZone("Z", ("p",)))
    world.run(schema_commands.CreateSystemView("V", (column("A"),), ViewKind.NODE))
    (view,) = world.catalog.views.values()
    entries: list[model.Entry] = [
        model.NewTableEntry(world.table("T")),
        model.NewIndexEntry(next(world.catalog.indexes.values())),
        model.NewZoneEntry(next(world.catalog.zones.values())),
        model.NewSchemaEntry(world.catalog.contents()[0]),
        model.NewSystemViewEntry(replace(view, name="W")),
    ]
    for entry in entries:
        update = model.VersionedUpdate(world.catalog.version + 1, 0, (entry,))
        with pytest.raises(InapplicableEntryError, match="is taken"):
            applied(world.catalog, update, hybrid(9000))


def test_a_snapshot_that_contradicts_itself_is_damage() -> None:
    world = World.started()
    world.run(table("T", "V"))
    good = world.catalog.snapshot()
    public, system = good.schemas
    broken = [
        replace(good, schemas=(*good.schemas, public)),
        replace(good, zones=good.zones * 2),
        replace(good, schemas=(replace(public, tables=public.tables * 2), system)),
        replace(good, schemas=(replace(public, tables=()), replace(system, tables=public.tables))),
        replace(good, default_zone_id=99),
        replace(good, schemas=(replace(public, indexes=(replace(public.indexes[0], column_ids=None),)), system)),
    ]
    assert restored(broken[-1]).indexes[3].column_ids == ()
    broken[-1] = replace(
        good, schemas=(replace(public, indexes=(replace(public.indexes[0], column_ids=None, column_names=("X",)),)),)
    )
    for snapshot in broken:
        with pytest.raises(InapplicableEntryError, match="catalog version 2"):
            restored(snapshot)


def test_names_of_columns_in_old_indexes_become_ids() -> None:
    world = World.started()
    world.run(table("T", "V"))
    (index,) = world.catalog.indexes.values()
    old = replace(index, id=50, name="OLD", column_ids=None, column_names=("V", "ID"))
    entry = model.NewIndexEntry(old)
    found = applied(world.catalog, model.VersionedUpdate(3, 0, (entry,)), hybrid(9000)).indexes[50]
    assert (found.column_ids, found.column_names) == ((1, 0), None)


def test_a_delay_beyond_time_is_damage() -> None:
    with pytest.raises(InapplicableEntryError, match="the delay cannot be applied"):
        applied(EMPTY, model.VersionedUpdate(1, 2**62, ()), hybrid(1))


def test_an_update_follows_the_version_before_it() -> None:
    with pytest.raises(InapplicableEntryError, match="version 0 is the one before it"):
        applied(EMPTY, model.VersionedUpdate(2, 0, ()), hybrid(1))
