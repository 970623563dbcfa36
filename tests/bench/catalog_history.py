"""Versions of a catalog with 200 tables: decode, apply, recover, memory of what is retained, snapshots.

The rival keeps no structure between versions: every lookup is built again for each, as catalogs do that copy their
maps. The limits come from Apache Ignite 3 with 200 tables: 247 us to apply a version of a log that was read, and 568 MB
for 10,201 retained versions; ours has to be five times as fast, and to take a tenth.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache

from bench.harness import Curve, Fact, Race, Side, Workspace, sample
from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.commands.command import CatalogCommand, batch
from compaction.catalogs.commands.schema_commands import CreateIndex, DropIndex
from compaction.catalogs.commands.table_commands import AddColumns, DropColumns, RenameTable, SetTableProperties
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.manager.futures import InlineRunner
from compaction.catalogs.manager.history import CatalogHistory, trimmed
from compaction.catalogs.manager.manager import CatalogManager
from compaction.catalogs.model.applying import applied
from compaction.catalogs.model.catalog import EMPTY, Catalog, SharedMap
from compaction.catalogs.model.descriptors import IndexKind, changed, hybrid
from compaction.catalogs.model.entries import VersionedUpdate
from compaction.core.collecting import no_collection
from support.catalogs.memory_log import ListLog
from support.catalogs.rounds import World, column, table

TABLES = 200
COLUMNS = tuple(f"C{number}" for number in range(10))
MOST_MICROSECONDS = 247 / 5
MOST_BYTES = 568e6 / 10_201 / 10
START = 1_700_000_000_000
MAPS = frozenset(field.name for field in fields(EMPTY) if isinstance(getattr(EMPTY, field.name), SharedMap))


@cache
def base() -> Catalog:
    """200 tables of eleven columns, one version each."""
    world = World.started()
    for number in range(TABLES):
        world.run(table(f"T{number}", *COLUMNS))
    return world.catalog


def ddl(number: int) -> CatalogCommand:
    """Changes of one table after the other, which are taken back in the next turn: catalogs keep their size."""
    name, turn = f"T{number % TABLES}", number // TABLES % 6
    match turn:
        case 0:
            return RenameTable("PUBLIC", name, f"{name}X")
        case 1:
            return RenameTable("PUBLIC", f"{name}X", name)
        case 2:
            return CreateIndex("PUBLIC", f"{name}_I", name, ("C1",), IndexKind.HASH)
        case 3:
            return DropIndex("PUBLIC", f"{name}_I")
        case 4:
            return SetTableProperties("PUBLIC", name, None, number)
        case _:
            return SetTableProperties("PUBLIC", name, 0.5)


@cache
def values(count: int) -> tuple[bytes, ...]:
    """Of the log: updates after `base`."""
    catalog = base()
    found = []
    for number in range(count):
        update = VersionedUpdate(catalog.version + 1, 500, batch(catalog, (ddl(number),)).entries)
        catalog = applied(catalog, update, time_of(update.version))
        found.append(encode(update))
    return tuple(found)


def time_of(version: int) -> int:
    return hybrid(START + version * 1_000)


@cache
def updates(count: int) -> tuple[VersionedUpdate, ...]:
    found = [decode(data, "update") for data in values(count)]
    return tuple(item for item in found if isinstance(item, VersionedUpdate))


def decode_all(count: int) -> Callable[[], object]:
    data = values(count)
    return lambda: [decode(item, "update") for item in data]


def apply_all(count: int) -> Callable[[], CatalogHistory]:
    """Every version retained, as a manager recovers."""
    first, known = base(), updates(count)

    def run() -> CatalogHistory:
        history = CatalogHistory([first])
        with no_collection():
            for update in known:
                history = history.with_update(update, time_of(update.version))
        return history

    return run


def rebuilt(catalog: Catalog) -> Catalog:
    """The same catalog, none of whose maps shares anything."""
    maps = {field.name: getattr(catalog, field.name) for field in fields(catalog)}
    return changed(catalog, **{name: SharedMap(item.items()) for name, item in maps.items() if name in MAPS})


def rebuild_all(count: int) -> Callable[[], object]:
    """Every lookup built again for each version."""
    first, known = base(), updates(count)

    def run() -> list[Catalog]:
        catalogs = [first]
        for update in known:
            catalogs.append(rebuilt(applied(catalogs[-1], update, time_of(update.version))))
        return catalogs

    return run


def recover(count: int) -> Callable[[], object]:
    """A manager that starts on a log with a snapshot and so many updates, decoding included."""
    first = base()
    snapshot = encode(first.snapshot())
    stored = values(count)

    def run() -> None:
        events = {first.version: LogEvent(decode(snapshot, "snapshot"), first.activation_time, 1)}
        for number, data in enumerate(stored, first.version + 1):
            events[number] = LogEvent(decode(data, "update"), time_of(number), number)
        manager = CatalogManager(ListLog(events), runner=InlineRunner())
        manager.start()
        assert len(manager.history) == count + 1
        manager.close()

    return run


def memory(count: int) -> float:
    """Bytes per retained version, beyond the first; entries of updates that versions hold included."""
    data = values(count)
    first = CatalogHistory([base()])
    gc.collect()
    tracemalloc.start()
    history = first
    for number, item in enumerate(data, base().version + 1):
        update = decode(item, "update")
        assert isinstance(update, VersionedUpdate)
        history = history.with_update(update, time_of(number))
    del update
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(history) == count + 1
    return used / count


def snapshots(changes: int) -> tuple[int, int]:
    """Bytes of the snapshot of a catalog, each of whose tables had its columns changed so often: whole, and trimmed."""
    world = World(base())
    for number in range(changes):
        change = (
            AddColumns("PUBLIC", name, (column("X"),)) if number % 2 == 0 else DropColumns("PUBLIC", name, ("X",))
            for name in (f"T{item}" for item in range(TABLES))
        )
        world.run(*change)
    whole = world.catalog.snapshot()
    return len(encode(whole)), len(encode(trimmed(whole)))


def measure(workspace: Workspace) -> Iterator[Race | Curve | Fact]:
    """See the module."""
    count = workspace.pick(10_000, 300)
    rounds = workspace.pick(5, 1)
    decode_all(count)()
    taken = min(sample(decode_all(count)).cpu for _ in range(rounds))
    yield Fact(f"decode {count:,} updates", f"{count / taken:,.0f} versions/s", ">= 20,000", count / taken >= 20_000)
    taken = min(sample(apply_all(count)).cpu for _ in range(rounds)) / count * 1e6
    yield Fact(
        f"apply {count:,} versions, {TABLES} tables",
        f"{taken:.1f} us per version",
        f"<= {MOST_MICROSECONDS:.0f} us",
        taken <= MOST_MICROSECONDS,
    )
    used = memory(count)
    yield Fact(
        f"memory of {count:,} retained versions, {TABLES} tables",
        f"{used:,.0f} bytes per version",
        f"<= {MOST_BYTES:,.0f} bytes",
        used <= MOST_BYTES,
    )
    few = workspace.pick(2_000, 300)
    yield Race(
        f"apply {few:,} versions, {TABLES} tables",
        "versions",
        few,
        Side("shared", apply_all(few)),
        Side("every lookup built again", rebuild_all(few)),
        rounds=3,
    )
    changes = workspace.pick(50, 6)
    whole, small = snapshots(changes)
    yield Fact(
        f"snapshot, {TABLES} tables whose columns changed {changes} times",
        f"{small:,} bytes trimmed, {whole:,} whole: {whole / small:.1f}x",
    )
    yield Curve(
        "recovery by a manager, decoding included",
        "versions",
        workspace.pick((3_000, 10_000, 30_000, 100_000), (100, 400)),
        recover,
        "every lookup built again, values decoded before",
        rebuild_all,
        workspace.pick((1_000, 3_000), (100, 400)),
        most_exponent=1.1,
    )
