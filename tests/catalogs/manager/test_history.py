"""Versions by number and by time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.commands import schema_commands, table_commands
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.commands.table_commands import AddColumns, AlterColumn, DropColumns, DropTable, RenameTable
from compaction.catalogs.errors import CatalogNotFoundError, InapplicableEntryError, IndexStatusError
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.manager.history import START, CatalogHistory, trimmed
from compaction.catalogs.model.applying import restored
from compaction.catalogs.model.catalog import EMPTY, Catalog, SharedMap
from compaction.catalogs.model.descriptors import ColumnType, Index, IndexStatus, Table
from support.catalogs.logs import Stage, stage
from support.catalogs.memory_log import ListLog
from support.catalogs.rounds import World, column, table


def version(number: int, time: int) -> Catalog:
    return replace(EMPTY, version=number, activation_time=time)


def grown(*times: int) -> CatalogHistory:
    """Versions 1, 2, ... active at these times."""
    history = START
    for number, time in enumerate(times, 1):
        history = history.appended(version(number, time))
    return history


def numbers(history: CatalogHistory) -> list[int]:
    return [item.version for item in history]


@pytest.mark.parametrize(("at", "found"), [(0, None), (1, 1), (2, 1), (3, 3), (4, 3)])
def test_by_index_map_floor_on_keys_1_and_3(at: int, found: int | None) -> None:
    """By-index map: floor on keys {1,3}: 0 none, 1->1, 2->1, 3->3, 4->3."""
    history = CatalogHistory([version(1, 1), version(2, 3)])
    if found is None:
        with pytest.raises(CatalogNotFoundError, match="no catalog found for the time 0"):
            history.active(at)
    else:
        assert history.active(at).activation_time == found


def test_by_index_map_clear_head_keeps_the_key_itself() -> None:
    """By-index map: clearHead keeps the key itself."""
    history = grown(10, 20, 30, 40)
    cut = history.snapshotted(version(2, 20))
    assert numbers(cut) == [2, 3, 4]
    assert (cut.active(20).version, cut.active(19 + 11).version) == (2, 3)
    with pytest.raises(CatalogNotFoundError, match="version 1 not found: versions 2 to 4 are retained"):
        cut.catalog(1)
    with pytest.raises(CatalogNotFoundError, match="the earliest retained version 2 is active from 20 on"):
        cut.active(19)
    assert numbers(history) == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(0, 600), st.data())
def test_reads_are_those_of_a_list(steps: list[int], at: int, data: st.DataObject) -> None:
    times = [1]
    for step in steps:
        times.append(times[-1] + step)
    history = grown(*times[1:])
    cut = data.draw(st.integers(0, len(times) - 1))
    history = history.snapshotted(version(cut, times[cut]))
    assert (history.earliest.version, history.latest.version, len(history)) == (cut, len(steps), len(times) - cut)
    for number in range(-1, len(times) + 2):
        found = history.find(number)
        assert (found is not None and found.version == number) == (cut <= number < len(times))
    expected = [number for number in range(cut, len(times)) if times[number] <= at]
    if expected:
        assert history.active(at).version == expected[-1]
    else:
        with pytest.raises(CatalogNotFoundError):
            history.active(at)


def test_two_histories_may_grow_from_one() -> None:
    """A history does not change, whatever is appended to it, also when it is appended to twice."""
    base = grown(10, 20)
    one, other = base.appended(version(3, 30)), base.appended(version(3, 31))
    longer = one.appended(version(4, 40))
    assert [each.latest.activation_time for each in (base, one, other, longer)] == [20, 30, 31, 40]
    assert (numbers(base), numbers(other), numbers(longer)) == ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4])
    assert base.active(1000).version == 2
    assert base.find(3) is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (version(2, 30), "version 2: the version cannot be applied: version 2 is the one before it"),
        (version(4, 30), "version 4: the version cannot be applied"),
        (version(3, 20), "20 is not after 20, that of version 2"),
        (version(3, 19), "19 is not after 20"),
    ],
)
def test_a_version_follows_the_latest_and_is_active_later(wrong: Catalog, reason: str) -> None:
    with pytest.raises(InapplicableEntryError, match=reason):
        grown(10, 20).appended(wrong)
    with pytest.raises(InapplicableEntryError, match=reason):
        CatalogHistory([*grown(10, 20), wrong])


def test_a_snapshot_jumps_over_what_was_never_read() -> None:
    history = grown(10, 20).snapshotted(version(7, 70))
    assert numbers(history) == [7]
    assert numbers(history.appended(version(8, 80))) == [7, 8]


def test_an_old_snapshot_changes_nothing() -> None:
    history = grown(10, 20, 30).snapshotted(version(3, 30))
    assert history.snapshotted(version(2, 20)) is history
    assert numbers(history.snapshotted(version(3, 30))) == [3]


# The life of an index over the versions of a catalog.

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


# Column sets that no retained version reaches.


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
