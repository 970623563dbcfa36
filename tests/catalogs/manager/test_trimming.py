"""Column sets that no retained version reaches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.commands.table_commands import AddColumns, AlterColumn, DropColumns, DropTable, RenameTable
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.manager.history import trimmed
from compaction.catalogs.model.applying import restored
from compaction.catalogs.model.catalog import Catalog, SharedMap
from compaction.catalogs.model.descriptors import ColumnType, Table
from support.catalogs.immediate_logs import ListLog
from support.catalogs.managers import Stage, stage
from support.catalogs.worlds import World, column, table


def add(name: str, of: str = "T") -> AddColumns:
    return AddColumns("PUBLIC", of, (column(name),))


def drop(name: str, of: str = "T") -> DropColumns:
    return DropColumns("PUBLIC", of, (name,))


CHANGES: list[CatalogCommand] = [
    table("T", "A"),
    add("B"),
    table("U", "A"),
    drop("B"),
    add("B"),
    AlterColumn("PUBLIC", "T", "A", ColumnType.INT64),
    add("C", "U"),
    RenameTable("PUBLIC", "U", "V"),
    add("D"),
    table("W"),
]


def changed_by(commands: list[CatalogCommand]) -> Stage:
    one = stage(ListLog())
    for command in commands:
        assert one.run(command).applied == (True,)
    return one


def of(catalog: Catalog, name: str) -> Table:
    schema = catalog.schema("PUBLIC")
    assert schema is not None
    found = catalog.table(schema, name)
    assert found is not None
    return found


def test_a_cut_drops_column_sets_before_the_one_in_use() -> None:
    """Numbers and ids stay: the next column gets the id that it would have got."""
    one = changed_by(CHANGES)
    before = one.manager.catalog(7)
    assert one.manager.compact(7, 1, trim=True).result(0) is SnapshotOutcome.SAVED
    after = one.manager.catalog(7)
    assert (of(before, "T").base, len(of(before, "T").versions)) == (1, 5)
    assert (of(after, "T").base, of(after, "T").versions) == (5, of(before, "T").versions[4:])
    assert of(after, "T").latest_version == of(before, "T").latest_version == 5
    assert of(after, "T").next_column_id == of(before, "T").next_column_id
    assert of(after, "U") is not None
    assert [of(catalog, "T").latest_version for catalog in one.manager.history] == [5, 5, 5, 6, 6]
    assert {of(catalog, "T").base for catalog in one.manager.history} == {5}
    one.run(add("E"))
    assert of(one.manager.latest, "T").columns[-1].id == of(before, "T").next_column_id + 1


@pytest.mark.parametrize("version", range(2, 12))
def test_a_process_that_reads_the_snapshot_holds_the_same_versions(version: int) -> None:
    """One was there all the time, one starts afterwards; then both go on."""
    log = ListLog()
    one = stage(log)
    for command in CHANGES:
        one.run(command)
    one.manager.compact(version, 1).result(0)
    restarted = stage(log, time=one.time)
    assert list(restarted.manager.history) == list(one.manager.history)
    for command in (add("X"), drop("X"), DropTable("PUBLIC", "V"), table("X")):
        one.run(command)
    assert list(restarted.manager.history) == list(one.manager.history)
    one.manager.compact(one.manager.latest.version - 1, 1).result(0)
    assert list(restarted.manager.history) == list(one.manager.history)
    assert list(stage(log, time=one.time).manager.history) == list(one.manager.history)


def test_versions_stay_shared_after_a_cut() -> None:
    """What a version did not change is still the object of the version before."""
    one = changed_by(CHANGES)
    one.manager.compact(7, 1, trim=True).result(0)
    history = list(one.manager.history)
    assert all(of(catalog, "T") is of(history[0], "T") for catalog in history[:3])
    assert of(history[-1], "T") is of(history[-2], "T")
    assert history[1].zones is history[2].zones


def test_without_trimming_all_sets_stay() -> None:
    one = changed_by(CHANGES)
    before = list(one.manager.history)[7:]
    one.manager.compact(7, 1).result(0)
    assert list(one.manager.history) == before
    assert of(one.manager.earliest, "T").base == 1


def test_a_version_that_someone_else_retains_keeps_its_sets() -> None:
    """`retained`: versions before the snapshot that a reader still has."""
    one = changed_by(CHANGES)
    snapshot = one.manager.catalog(11).snapshot()
    kept = restored(trimmed(snapshot, [one.manager.catalog(4)]))
    assert (of(kept, "T").base, of(kept, "V").base) == (2, 1)
    assert of(restored(trimmed(snapshot)), "T").base == 6
    assert trimmed(trimmed(snapshot)) == trimmed(snapshot)


def test_a_trimmed_snapshot_is_a_value_and_smaller() -> None:
    world = World.started()
    world.run(table("T", *(f"C{number}" for number in range(20))))
    for _ in range(20):
        world.run(add("X"))
        world.run(drop("X"))
    whole = world.catalog.snapshot()
    small = trimmed(whole)
    assert decode(encode(small), "snapshot") == small
    assert len(encode(small)) * 20 < len(encode(whole))
    contents = [schema for schema in small.schemas if schema.schema.name == "PUBLIC"]
    assert [(item.base, len(item.versions)) for item in contents[0].tables] == [(41, 1)]


@given(st.dictionaries(st.integers(0, 500), st.integers(), max_size=300), st.data())
def test_changes_of_a_map_lead_from_one_to_the_other(start: dict[int, int], data: st.DataObject) -> None:
    """Whether buckets are shared, or the map has grown in between."""
    before: SharedMap[int, int] = SharedMap(start.items())
    after = before
    for key, value in data.draw(st.lists(st.tuples(st.integers(0, 500), st.none() | st.integers()), max_size=60)):
        after = after.without(key) if value is None else after.put(key, value)
    replayed = before
    for key, found in after.changes_since(before):
        replayed = replayed.without(key) if found is None else replayed.put(key, found)
    assert replayed == after
    assert list(after.changes_since(after)) == []


def test_an_untouched_catalog_is_passed_over() -> None:
    """A snapshot that dropped nothing leaves the later versions as they are."""
    one = changed_by([table("A"), table("B"), table("C")])
    later = [one.manager.catalog(version) for version in (3, 4)]
    one.manager.compact(2, 1, trim=True).result(0)
    assert [mine is theirs for mine, theirs in zip(list(one.manager.history)[1:], later, strict=True)] == [True, True]
    assert replace(one.manager.earliest, version=2) == one.manager.earliest
