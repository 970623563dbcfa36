"""What listeners get, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from compaction.catalogs.commands import schema_commands, table_commands, zone_commands
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.manager.events import (
    CatalogEvent,
    ColumnAltered,
    ColumnsAdded,
    ColumnsDropped,
    EventKind,
    IndexCreated,
    TableCreated,
    TablePropertiesAltered,
    TableRenamed,
    VersionsSkipped,
    ZoneAltered,
    ZoneCreated,
)
from compaction.catalogs.model.descriptors import ColumnType, IndexKind, ViewKind, later
from support.catalogs.logs import Stage, stage
from support.catalogs.memory_log import ListLog
from support.catalogs.rounds import column, table

KINDS: list[tuple[CatalogCommand, list[str]]] = [
    (table("T", "A"), ["ZONE_CREATE", "SET_DEFAULT_ZONE", "TABLE_CREATE", "INDEX_CREATE"]),
    (table_commands.AddColumns("PUBLIC", "T", (column("B"),)), ["TABLE_ALTER"]),
    (table_commands.AlterColumn("PUBLIC", "T", "B", ColumnType.INT64), ["TABLE_ALTER"]),
    (table_commands.DropColumns("PUBLIC", "T", ("B",)), ["TABLE_ALTER"]),
    (table_commands.SetTableProperties("PUBLIC", "T", 0.5), ["TABLE_ALTER"]),
    (table_commands.RenameTable("PUBLIC", "T", "U"), ["TABLE_ALTER"]),
    (schema_commands.CreateIndex("PUBLIC", "I", "U", ("A",), IndexKind.HASH), ["INDEX_CREATE"]),
    (schema_commands.RenameIndex("PUBLIC", "I", "J"), []),
    (schema_commands.StartBuildingIndex(5), ["INDEX_BUILDING"]),
    (schema_commands.MakeIndexAvailable(5), ["INDEX_AVAILABLE"]),
    (schema_commands.DropIndex("PUBLIC", "J"), ["INDEX_STOPPING"]),
    (schema_commands.RemoveIndex(5), ["INDEX_REMOVED"]),
    (table_commands.DropTable("PUBLIC", "U"), ["INDEX_REMOVED", "TABLE_DROP"]),
    (schema_commands.CreateSchema("S"), []),
    (schema_commands.DropSchema("S"), []),
    (zone_commands.CreateZone("Z", ("default",)), ["ZONE_CREATE"]),
    (zone_commands.AlterZone("Z", replicas=3), ["ZONE_ALTER"]),
    (zone_commands.DropZone("Z"), ["ZONE_DROP"]),
    (schema_commands.CreateSystemView("V", (column("C"),), ViewKind.NODE), ["SYSTEM_VIEW_CREATE"]),
]


def test_every_command_has_its_events() -> None:
    """In the order of the entries, each with the version and the revision of the log; none for schemas, names of
    indexes and the generator.
    """
    log = ListLog()
    one = stage(log)
    heard = one.heard()
    for command, expected in KINDS:
        done = one.run(command)
        assert done.applied == (True,)
        assert [event.kind.value for event in heard] == expected
        assert {(event.version, event.revision) for event in heard} <= {(done.version, log.revision)}
        heard.clear()


def test_events_carry_descriptors_and_ids() -> None:
    one = stage(ListLog())
    heard = one.heard()
    one.run(table("T", "A"))
    catalog = one.manager.latest
    made, key = heard[2], heard[3]
    assert isinstance(heard[0], ZoneCreated)
    assert isinstance(made, TableCreated)
    assert isinstance(key, IndexCreated)
    assert heard[0].zone == catalog.zone("Default")
    assert made.table == catalog.tables[made.table.id]
    assert key.index == catalog.indexes[key.index.id]
    heard.clear()
    one.run(
        table_commands.AddColumns("PUBLIC", "T", (column("B"),)),
        table_commands.AlterColumn("PUBLIC", "T", "A", ColumnType.INT64),
        table_commands.DropColumns("PUBLIC", "T", ("B",)),
        table_commands.SetTableProperties("PUBLIC", "T", None, 7),
        table_commands.RenameTable("PUBLIC", "T", "U"),
        zone_commands.AlterZone("Default", replicas=3),
    )
    added, altered, dropped, properties, renamed, zone = heard
    assert isinstance(added, ColumnsAdded)
    assert [item.name for item in added.columns] == ["B"]
    assert isinstance(altered, ColumnAltered)
    assert altered.column.type is ColumnType.INT64
    assert isinstance(dropped, ColumnsDropped)
    assert dropped.names == ("B",)
    assert isinstance(properties, TablePropertiesAltered)
    assert (properties.stale_rows_fraction, properties.min_stale_rows_count) == (None, 7)
    assert isinstance(renamed, TableRenamed)
    assert (renamed.table_id, renamed.name) == (made.table.id, "U")
    assert isinstance(zone, ZoneAltered)
    assert zone.zone == one.manager.latest.zone("Default")


def test_a_listener_reads_the_version_of_its_event() -> None:
    one = stage(ListLog())
    seen: list[Any] = []

    def listener(event: CatalogEvent) -> None:
        assert isinstance(event, TableCreated)
        catalog = one.manager.catalog(event.version)
        ready = one.manager.ready(event.version)
        seen.append((catalog is one.manager.latest, catalog.tables[event.table.id] == event.table, ready.done()))

    one.manager.listen(EventKind.TABLE_CREATE, listener)
    one.run(table("T"))
    assert seen == [(True, True, False)]
    assert one.manager.ready(2).done()


def pending_listener(one: Stage, kind: EventKind = EventKind.TABLE_CREATE) -> list[Future[bool | None]]:
    """A listener that answers when the test does."""
    answers: list[Future[bool | None]] = []

    def listener(_: CatalogEvent) -> Future[bool | None]:
        answers.append(Future())
        return answers[-1]

    one.manager.listen(kind, listener)
    return answers


def test_the_next_version_waits_for_the_listeners_of_the_one_before() -> None:
    """Update log: applied revision waits for handler. A version is readable before it is ready."""
    log = ListLog()
    one, other = stage(log), stage(log)
    answers = pending_listener(one)
    for name in ("A", "B"):
        other.run(table(name))
    assert (len(answers), one.manager.latest.version) == (1, 2)
    ready = [one.manager.ready(version) for version in (2, 3)]
    answers[0].set_result(None)
    assert [each.done() for each in ready] == [True, False]
    assert (len(answers), one.manager.latest.version) == (2, 3)
    answers[1].set_result(None)
    assert [each.done() for each in ready] == [True, True]


def test_a_listener_may_run_commands() -> None:
    """It gets a future, and must not wait for it."""
    one = stage(ListLog())
    made: list[Any] = []

    def listener(event: CatalogEvent) -> None:
        if event.version == 2:
            made.append(one.manager.execute(table("FOLLOWER")))

    one.manager.listen(EventKind.TABLE_CREATE, listener)
    one.run(table("T"))
    one.time.advance(10_000)
    assert made[0].result(0).version == 3


@pytest.mark.parametrize("late", [False, True])
def test_true_unsubscribes(late: bool) -> None:
    one = stage(ListLog())
    calls: list[int] = []

    def listener(event: CatalogEvent) -> bool | Future[bool | None]:
        calls.append(event.version)
        answer: Future[bool | None] = Future()
        answer.set_result(len(calls) == 2)
        return answer if late else len(calls) == 2

    one.manager.listen(EventKind.TABLE_CREATE, listener)
    for name in "ABC":
        one.run(table(name))
    assert calls == [2, 3]


def test_unlisten_ends_events() -> None:
    one = stage(ListLog())
    heard: list[CatalogEvent] = []
    other: list[CatalogEvent] = []
    listener = heard.append
    one.manager.listen(EventKind.TABLE_CREATE, listener)
    one.manager.listen(EventKind.TABLE_CREATE, other.append)
    one.run(table("A"))
    one.manager.unlisten(EventKind.TABLE_CREATE, listener)
    one.manager.unlisten(EventKind.ZONE_DROP, listener)
    one.run(table("B"))
    assert ([event.version for event in heard], [event.version for event in other]) == ([2], [2, 3])


def fails(_: CatalogEvent) -> None:
    raise KeyError("listener")


def fails_later(_: CatalogEvent) -> Future[bool | None]:
    answer: Future[bool | None] = Future()
    answer.set_exception(KeyError("listener"))
    return answer


@pytest.mark.parametrize("failing", [fails, fails_later])
def test_a_failing_listener_is_reported_and_stops_nothing(failing: Callable[[CatalogEvent], Any]) -> None:
    one = stage(ListLog())
    one.manager.listen(EventKind.TABLE_CREATE, failing)
    heard = one.heard(EventKind.TABLE_CREATE)
    for name in "AB":
        one.run(table(name))
    assert [event.version for event in heard] == [2, 3]
    assert [type(error) for error in one.reported] == [KeyError, KeyError]
    assert one.manager.ready(3).done()


def test_a_version_is_ready_after_a_snapshot_too() -> None:
    """A process that was away reads a snapshot in place of the versions it has not read: it hears how far it went, and
    of none of them.
    """
    log = ListLog()
    one, other = stage(log), stage(log)
    log.held = True
    ready = one.manager.ready(4)
    heard = one.heard()
    for name in "ABCD":
        other.manager.execute(table(name))
        (watch,) = [each for each in log.watches if each.deliver == other.manager._offer]
        watch.after = log.revision
        watch.deliver(log.events[log.version])
    assert other.manager.latest.version == 5
    other.manager.compact(4, 1)
    log.pump()
    assert heard[0] == VersionsSkipped(log.revision, 4, 1)
    assert ready.done()
    assert [event.version for event in heard[1:]] == [5, 5]
    assert list(one.manager.history) == list(other.manager.history)


def test_a_cut_has_no_events() -> None:
    one = stage(ListLog())
    for name in "ABC":
        one.run(table(name))
    heard = one.heard()
    one.manager.compact(3, 1)
    assert (heard, one.manager.earliest.version, one.manager.ready(4).done()) == ([], 3, True)


def test_descriptors_bear_the_time_of_the_log() -> None:
    """updateTimestamp: equals metastorage timestamp of the revision; drop table bumps its schema's; child and schema
    equal after an update.
    """
    log = ListLog()
    one = stage(log)
    done = one.run(table("T"))
    catalog = one.manager.latest
    stored = log.events[2].timestamp
    assert later(stored, 500) == done.time
    schema = catalog.schema("PUBLIC")
    assert schema is not None
    made = catalog.table(schema, "T")
    assert made is not None
    assert (made.update_timestamp, schema.update_timestamp) == (stored, stored)
    assert [index.update_timestamp for index in catalog.indexes_of(made.id)] == [stored]
    one.run(table_commands.DropTable("PUBLIC", "T"))
    after = one.manager.latest.schema("PUBLIC")
    assert after is not None
    assert after.update_timestamp == log.events[3].timestamp > stored


def test_a_timestamp_too_early_is_moved_by_the_log() -> None:
    """The activation time of an answer is that of the log."""
    log = ListLog()
    ahead, behind = stage(log, start=False, skew=120_000), stage(log, start=False, skew=120_000)
    ahead.time.milliseconds += 60_000
    ahead.manager.start()
    ahead.time.advance(5000)
    ahead.manager.execute(table("A"))
    behind.manager.start()
    done = behind.manager.execute(table("B"))
    behind.time.advance(200_000)
    result = done.result(0)
    assert result is not None
    times = [item.activation_time for item in behind.manager.history]
    assert times == sorted(set(times))
    assert result.time == times[-1]


def test_an_event_of_the_log_moves_the_clock() -> None:
    log = ListLog()
    one = stage(log)
    far = later(one.manager.clock.read(), 500)
    (watch,) = log.watches
    update = log.events[1].event
    watch.deliver(LogEvent(type(update)(2, 0, ()), far, 2))  # type: ignore[call-arg, arg-type]
    assert one.manager.clock.now() > far
