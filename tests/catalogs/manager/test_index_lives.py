"""The life of an index over the versions of a catalog."""

from __future__ import annotations

import pytest

from compaction.catalogs.commands import schema_commands, table_commands
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.errors import IndexStatusError
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import Index, IndexStatus
from support.catalogs.immediate_logs import ListLog
from support.catalogs.managers import Stage, stage
from support.catalogs.worlds import table

CREATE = schema_commands.CreateIndex("PUBLIC", "I", "T", ("V",))
DROP = schema_commands.DropIndex("PUBLIC", "I")


def found(catalog: Catalog) -> Index | None:
    """The alive index I."""
    schema = catalog.schema("PUBLIC")
    assert schema is not None
    return catalog.index(schema, "I")


def built(steps: int) -> tuple[Stage, Index]:
    """An index that has come so far: registered, building, available."""
    one = stage(ListLog())
    one.run(table("T", "V"))
    one.run(CREATE)
    index = found(one.manager.latest)
    assert index is not None
    life: tuple[CatalogCommand, ...] = (
        schema_commands.StartBuildingIndex(index.id),
        schema_commands.MakeIndexAvailable(index.id),
    )
    for command in life[:steps]:
        one.run(command)
    return one, index


def test_index_lifecycle_drop_available() -> None:
    """Index lifecycle: drop AVAILABLE -> STOPPING and invisible by name."""
    one, index = built(2)
    one.run(DROP)
    assert found(one.manager.latest) is None
    assert one.manager.latest.indexes[index.id].status is IndexStatus.STOPPING


@pytest.mark.parametrize("steps", [0, 1])
def test_index_lifecycle_drop_before(steps: int) -> None:
    """Index lifecycle: drop REGISTERED/BUILDING -> removed."""
    one, index = built(steps)
    one.run(DROP)
    assert index.id not in one.manager.latest.indexes


@pytest.mark.parametrize(
    ("steps", "make"),
    [
        (0, schema_commands.MakeIndexAvailable),
        (1, schema_commands.StartBuildingIndex),
        (2, schema_commands.StartBuildingIndex),
        (2, schema_commands.MakeIndexAvailable),
    ],
)
def test_index_lifecycle_wrong_status(
    steps: int, make: type[schema_commands.StartBuildingIndex] | type[schema_commands.MakeIndexAvailable]
) -> None:
    """Index lifecycle: wrong previous status -> `It is impossible to change the index status:`; here the message names
    the index, its status and the one that cannot follow.
    """
    one, index = built(steps)
    command: CatalogCommand = make(index.id)
    refused = one.manager.execute(command)
    one.time.advance(10_000)
    error = refused.exception(0)
    assert isinstance(error, IndexStatusError)
    assert "cannot become" in str(error)
    assert one.manager.latest.version == 3 + steps


def test_index_lifecycle_recreated() -> None:
    """Index lifecycle: recreate with same name gets a new id, old still visible in the old version."""
    one, index = built(2)
    before = one.manager.latest.version
    one.run(DROP)
    one.run(CREATE)
    again = found(one.manager.latest)
    assert again is not None
    assert again.id > index.id
    old = found(one.manager.catalog(before))
    assert old is not None
    assert old.id == index.id
    assert one.manager.latest.indexes[index.id].status is IndexStatus.STOPPING


def test_index_lifecycle_recreated_table() -> None:
    """Index lifecycle: drop+recreate table likewise."""
    one, _ = built(2)
    before = one.manager.latest
    one.run(table_commands.DropTable("PUBLIC", "T"))
    one.run(table("T", "V"))
    schema, old_schema = one.manager.latest.schema("PUBLIC"), before.schema("PUBLIC")
    assert schema is not None
    assert old_schema is not None
    again, old = one.manager.latest.table(schema, "T"), one.manager.catalog(before.version).table(old_schema, "T")
    assert again is not None
    assert old is not None
    assert again.id > old.id
    assert again.pk_index_id > old.pk_index_id
    assert [index.id for index in one.manager.latest.indexes_of(again.id)] == [again.pk_index_id]
