"""From an object to a block: every word of it checked or counted."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from compaction.blocks.errors import CorruptBlockError, UnsuitableBlockError
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.index.registering import KnownPath
from compaction.blocks.index.tables import BlockState
from compaction.blocks.model import Block, RowFingerprint
from compaction.blocks.registration.describe import describe, described
from compaction.blocks.registration.foreign import (
    FoundOrder,
    OrderCheck,
    OrderSource,
    assigned_id,
    known_files,
    lost_columns,
    refuse_lost_columns,
)
from compaction.storage.errors import ObjectStoreUnavailableError
from compaction.storage.objects.store import ObjectInfo, ObjectStorage, open_objects
from support.blocks.block_stores import a_block
from support.blocks.blocks import PATH, footer_of, order_of, parquet, rows
from support.blocks.blocks import ULID as ID
from support.blocks.parquet_types import TYPES
from support.faults.proxies import Fault, FaultProxy
from support.object_stores import S3


@pytest.fixture
def folder(tmp_path: Path) -> ObjectStorage:
    return open_objects(str(tmp_path / "objects"))


def look(objects: ObjectStorage, data: bytes, path: str = PATH, **options: Any) -> Block:
    objects.put(path, data)
    return describe(objects, path, **({"tenant": "acme", "shard": 0, "level": 0} | options))


def test_a_foreign_block_is_read_and_counted(objects: ObjectStorage) -> None:
    table = rows(1000)
    block = look(objects, parquet(table, row_group_size=200, sorted_by=["service", "time"]))
    assert (block.id, block.tenant, block.shard, block.level, block.path) == (ID, "acme", 0, 0, PATH)
    assert (block.min_time, block.max_time, block.rows) == (0, 999, 1000)
    assert block.bytes == objects.head(PATH).size
    assert block.fingerprint == fingerprint(table)
    assert block.sort_key == ("service", "time")
    assert describe(objects, PATH, tenant="acme", shard=0, level=0, verify=True) == block


def test_a_block_of_ours_needs_its_footer_only(folder: ObjectStorage) -> None:
    """Its data may be anything: nobody looks, unless asked to verify."""
    table = rows(100)
    said = BlockMetadata(ID, "acme", 0, 2, "time", fingerprint(table), ("service", "time"), "job", 0, 1, ("a", "b"))
    data = parquet(table, said, row_group_size=30, compression="none")
    blank = b"PAR1" + bytes(len(data) - 12 - len(footer_of(data))) + data[-8 - len(footer_of(data)) :]
    block = look(folder, blank, level=2)
    assert block.fingerprint == fingerprint(table)
    assert block.sort_key == ("service", "time")
    with pytest.raises(CorruptBlockError, match=PATH):
        describe(folder, PATH, tenant="acme", shard=0, level=2, verify=True)


def test_rows_that_are_much_larger_than_their_file_are_refused_by_name(
    folder: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 bytes that would be 2 MB: said before any of it is decoded. A list of usual size in many rows is read."""
    monkeypatch.setattr("compaction.blocks.registration.describe.MOST_BYTES", 1 << 20)
    times = pa.array([0], pa.timestamp("us"))
    numbers = pa.nulls(250_000, pa.int64()).fill_null(0)
    sink = io.BytesIO()
    pq.write_table(pa.table({"ts": times, "l": pa.ListArray.from_arrays([0, len(numbers)], numbers)}), sink)
    with pytest.raises(UnsuitableBlockError, match=r"a row or page of column 'l.list.element' takes 2000000 bytes"):
        look(folder, sink.getvalue())
    usual = pa.table({"ts": pa.array(range(1000), pa.timestamp("us")), "l": pa.array([[7] * 100] * 1000)})
    assert look(folder, parquet(usual)).fingerprint == fingerprint(usual)


def test_verifying_finds_other_rows(folder: ObjectStorage) -> None:
    said = BlockMetadata(fingerprint=fingerprint(rows(100, start=5)))
    assert look(folder, parquet(rows(100), said)).fingerprint == said.fingerprint
    with pytest.raises(CorruptBlockError, match="not those it was made of"):
        look(folder, parquet(rows(100), said), verify=True)


def test_a_fingerprint_of_another_number_of_rows_is_a_lie(folder: ObjectStorage) -> None:
    with pytest.raises(CorruptBlockError, match="99 rows"):
        look(folder, parquet(rows(100), BlockMetadata(fingerprint=RowFingerprint(99, 1))))


@pytest.mark.parametrize("field", ["id", "tenant", "shard", "level"])
def test_a_block_of_somebody_else_is_refused(folder: ObjectStorage, field: str) -> None:
    others: dict[str, Any] = {"id": str(ULID()), "tenant": "other", "shard": 7, "level": 3}
    other = others[field]
    said = dataclasses.replace(BlockMetadata(ID, "acme", 0, 0), **{field: other})
    with pytest.raises(UnsuitableBlockError, match=f"{field} is .?{other}"):
        look(folder, parquet(rows(3), said))
    if field in {"tenant", "shard"}:
        with pytest.raises(UnsuitableBlockError, match=f"lies where {field}"):
            look(folder, parquet(rows(3)), **{field: other})


def test_a_path_of_another_layout_needs_an_id(folder: ObjectStorage) -> None:
    identity = str(ULID())
    assert look(folder, parquet(rows(3)), "lake/part-0.parquet", block=identity).id == identity
    with pytest.raises(UnsuitableBlockError, match="ULID"):
        look(folder, parquet(rows(3)), "lake/part-0.parquet")


TIMES = {
    "s": (pa.timestamp("s"), [5, 7], (5_000_000, 7_000_000)),
    "ms": (pa.timestamp("ms"), [-5, 7], (-5_000, 7_000)),
    "us": (pa.timestamp("us", "UTC"), [5, 7], (5, 7)),
    "ns": (pa.timestamp("ns"), [-1, 7_999], (-1, 7)),
    "int64": (pa.int64(), [5, 7], (5, 7)),
}


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("unit", TIMES)
def test_times_are_microseconds(folder: ObjectStorage, unit: str, statistics: bool) -> None:
    kind, values, expected = TIMES[unit]
    table = pa.table({"time": pa.array(values, kind), "v": [1, 2]})
    block = look(folder, parquet(table, write_statistics=statistics), verify=True)
    assert (block.min_time, block.max_time) == expected


def test_the_time_column_is_found_or_asked_for(folder: ObjectStorage) -> None:
    stamp = pa.array([1], pa.timestamp("us"))
    later = pa.array([9], pa.timestamp("us"))
    assert look(folder, parquet(pa.table({"seen": stamp}))).max_time == 1
    assert look(folder, parquet(pa.table({"seen": stamp, "timestamp": later}))).max_time == 9
    both = pa.table({"seen": stamp, "sent": later})
    with pytest.raises(UnsuitableBlockError, match="'seen', 'sent'"):
        look(folder, parquet(both))
    assert look(folder, parquet(both), time_column="sent").max_time == 9
    assert look(folder, parquet(both, BlockMetadata(time_column="sent"))).max_time == 9
    for wanted in ("nothing", "text"):
        with pytest.raises(UnsuitableBlockError, match=wanted):
            look(folder, parquet(pa.table({"text": ["x"], "seen": stamp})), time_column=wanted)
    with pytest.raises(UnsuitableBlockError, match="none of timestamps: name it with --time-column"):
        look(folder, parquet(pa.table({"v": ["x"]})))


@pytest.mark.parametrize("statistics", [True, False])
def test_a_row_without_a_time_is_refused(folder: ObjectStorage, statistics: bool) -> None:
    table = pa.table({"time": pa.array([1, None], pa.timestamp("us"))})
    with pytest.raises(UnsuitableBlockError, match="no time"):
        look(folder, parquet(table, write_statistics=statistics))


def test_an_empty_block_is_of_the_time_it_was_made(folder: ObjectStorage) -> None:
    block = look(folder, parquet(rows(0), sorted_by=["service"]), verify=True)
    made = ULID.from_str(ID).milliseconds * 1000
    assert (block.rows, block.min_time, block.max_time, block.fingerprint) == (0, made, made, RowFingerprint())


def test_unsorted_blocks_have_no_sort_key(folder: ObjectStorage) -> None:
    assert look(folder, parquet(rows(10).take(pa.array([*range(5, 10), *range(5)])))).sort_key == ()
    backwards = pa.concat_tables([rows(50, start=50), rows(50)])
    assert look(folder, parquet(backwards, row_group_size=50, sorted_by=["service", "time"])).sort_key == ()
    with pytest.raises(CorruptBlockError, match="nothing"):
        look(folder, parquet(rows(10), BlockMetadata(sort_key=("nothing",))))


def test_damaged_pages_are_corrupt_and_name_the_object(folder: ObjectStorage) -> None:
    data = bytearray(parquet(rows(5000), compression="zstd", write_page_checksum=True))
    for position in range(200, 230):
        data[position] ^= 0xFF
    with pytest.raises(CorruptBlockError, match=PATH):
        look(folder, bytes(data))


def test_malformed_metadata_is_corrupt(folder: ObjectStorage) -> None:
    class Lie(BlockMetadata):
        def encode(self) -> dict[bytes, bytes]:
            return {b"compaction.dev.shard": b"many"}

    with pytest.raises(CorruptBlockError, match=r"compaction\.dev\.shard"):
        look(folder, parquet(rows(1), Lie()))


def test_an_unreachable_store_makes_no_block_corrupt(s3: S3, proxy: FaultProxy) -> None:
    """An error of the store must come through the library below as what it is: quarantine is for broken blocks."""
    url = s3.bucket()
    s3.open(url).put(PATH, parquet(rows(200_000), row_group_size=20_000, compression="none"))
    store = s3.open(url, endpoint=proxy.endpoint)
    assert describe(store, PATH, tenant="acme", shard=0, level=0).rows == 200_000
    requests = len(proxy.seen)
    assert requests > 3
    for good in (0, 1, 2, requests - 1):
        proxy.clear()
        proxy.plan(Fault.PASS, times=good)
        proxy.plan(Fault.BUSY, times=100)
        with pytest.raises(ObjectStoreUnavailableError, match=PATH):
            describe(store, PATH, tenant="acme", shard=0, level=0)


# By what a block is sorted: what it declares is honoured and verified, else what its rows say.

SERVICE_TIME = ("service", "time")


def order(objects: ObjectStorage, data: bytes, **options: Any) -> FoundOrder:
    objects.put(PATH, data)
    found = described(objects, PATH, tenant="acme", shard=0, level=0, **options)
    assert found.block.sort_key == found.order.key
    return found.order


def backwards(table: pa.Table) -> pa.Table:
    return table.take(pa.array(range(len(table) - 1, -1, -1)))


@pytest.mark.parametrize("size", [7, 15, 20, 100])
def test_a_declared_order_holds_where_row_groups_share_a_first_key(folder: ObjectStorage, size: int) -> None:
    found = order(folder, parquet(rows(100), row_group_size=size, sorted_by=list(SERVICE_TIME)))
    assert (found.key, found.source, str(found)) == (SERVICE_TIME, OrderSource.DECLARED, "service, time (declared)")


@pytest.mark.parametrize("size", [10, 100])
def test_a_declared_order_that_rows_do_not_have_is_told(folder: ObjectStorage, size: int) -> None:
    """Across row groups as within one. The rows here are backwards by time, and one of services is out of place."""
    table = pa.concat_tables([rows(60, start=40), rows(40)])
    found = order(folder, parquet(table, row_group_size=size, sorted_by=list(SERVICE_TIME)))
    assert (found.key, found.source) == ((), OrderSource.NONE)
    assert found.why == (
        "a merge sorts it, by time, the default; declares service, time, but row 60 belongs before row 59"
    )


def test_rows_in_the_order_of_time_are_found_and_others_are_not(folder: ObjectStorage) -> None:
    assert str(order(folder, parquet(rows(100), row_group_size=10))) == "time (found)"
    assert str(order(folder, parquet(backwards(rows(100))))) == "none (a merge sorts it, by time, the default)"
    swapped = rows(100).take(pa.array([*range(50), 51, 50, *range(52, 100)]))
    found = order(folder, parquet(swapped, sorted_by=["service", "time"]))
    assert found.why.endswith("row 51 belongs before row 50")


def test_the_wanted_order_is_looked_for_unless_another_is_declared(folder: ObjectStorage) -> None:
    by_weight = rows(100).append_column("weight", pa.array(range(100)))
    wanted: dict[str, Any] = {"sort_key": ("weight", "time")}
    assert str(order(folder, parquet(by_weight), **wanted)) == "weight, time (as wanted)"
    declared = parquet(by_weight, sorted_by=list(SERVICE_TIME))
    assert order(folder, declared, **wanted).key == SERVICE_TIME
    assert str(order(folder, parquet(rows(100)), **wanted)) == "time (found)", "no such column"
    found = order(folder, parquet(backwards(by_weight)), **wanted)
    assert str(found) == "none (a merge sorts it, by weight, time, as wanted)"


def test_what_a_block_of_ours_says_is_believed_until_its_rows_are_read(folder: ObjectStorage) -> None:
    table = backwards(rows(100))
    data = parquet(table, BlockMetadata(fingerprint=fingerprint(table), sort_key=SERVICE_TIME))
    assert order(folder, data).key == SERVICE_TIME
    assert order(folder, data, verify=True).key == ()


def test_a_declared_order_that_bounds_do_not_prove_is_read_for(folder: ObjectStorage) -> None:
    """A writer that gives a fingerprint spares the reading of rows, but not where its footer leaves it open."""
    for table, key in ((rows(100), SERVICE_TIME), (backwards(rows(100)), ())):
        said = BlockMetadata(fingerprint=fingerprint(table))
        assert order(folder, parquet(table, said, row_group_size=15, sorted_by=list(SERVICE_TIME))).key == key


def test_an_empty_block_keeps_what_it_declares(folder: ObjectStorage) -> None:
    assert order(folder, parquet(rows(0))).key == ("time",)


VALUES = {
    pa.int64(): st.integers(-2, 2),
    pa.string(): st.sampled_from(["", "a", "aa", "b", "ä", "z"]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan")]),
    pa.bool_(): st.booleans(),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["", "a", "aa", "b", "ä", "z"]),
}


@given(st.data())
def test_neighbours_are_compared_as_the_merge_sorts(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    key = tuple(f"c{place}" for place in range(len(kinds)))
    row = st.fixed_dictionaries({name: st.none() | VALUES[kind] for name, kind in zip(key, kinds, strict=True)})
    found = data.draw(st.lists(row, max_size=12))
    if data.draw(st.booleans()):
        found.sort(key=lambda item: order_of(item, key))
        swapped = data.draw(st.integers(0, max(0, len(found) - 1)))
        found = [*found[:swapped], *found[swapped + 1 :], *found[swapped : swapped + 1]] if swapped % 2 else found
    orders = [order_of(item, key) for item in found]
    broken = next((place for place in range(1, len(orders)) if orders[place] < orders[place - 1]), None)
    check, start = OrderCheck(key), 0
    while start < len(found):
        count = data.draw(st.integers(1, len(found)))
        columns = [
            pa.array([item[name] for item in found[start : start + count]], kind)
            for name, kind in zip(key, kinds, strict=True)
        ]
        check.update(pa.record_batch(columns, names=list(key)))
        start += count
    assert (check.broken, check.holds) == (broken, broken is None)


@pytest.mark.parametrize("name", TYPES)
def test_values_of_every_type_are_compared_or_have_no_order(name: str) -> None:
    """What cannot be compared is in no order, and no error."""
    column = TYPES[name].slice(0, 50)
    check = OrderCheck(("c",))
    for _ in range(2):
        check.update(pa.record_batch([column], names=["c"]))
    assert check.unordered or check.broken is not None or name == "null"
    nested = ("list", "large_list", "fixed_size_list", "struct", "map", "tensor")
    assert check.unordered == (name.startswith(nested)), name


# Columns that only the folders of a file hold.

DAY = 86_400_000_000
NOON = 1_793_491_200_000_000 + DAY // 2
"""Of 2026-11-01, in UTC."""


@pytest.mark.parametrize(
    ("path", "times", "instants", "refused"),
    [
        ("date=2026-11-01/a.parquet", (NOON, NOON + 1), True, ""),
        ("lake/dt=2026-11-01/a.parquet", (NOON - DAY // 2, NOON + DAY // 2 - 1), True, ""),
        ("year=2026/month=11/day=01/hour=12/a.parquet", (NOON, NOON + 5), True, ""),
        ("Year=2026/Month=11/a.parquet", (NOON, NOON + 20 * DAY), True, ""),
        ("date=2026-11-01/a.parquet", (NOON, NOON + 1), False, "'date' .*its times have no time zone to prove it by"),
        ("date=2026-11-01/a.parquet", (NOON, NOON + DAY), True, "'date'"),
        ("date=2026-11-02/a.parquet", (NOON, NOON), True, "'date'"),
        ("date=2026-11-01/region=eu/a.parquet", (NOON, NOON), True, "'region'"),
        ("day=1/a.parquet", (NOON, NOON + 30 * DAY), True, "'day'"),
        ("month=11/a.parquet", (NOON, NOON + 365 * DAY), True, "'month'"),
        ("year=2026/month=10/day=1/a.parquet", (NOON, NOON), True, "'month'"),
        ("date=20261101/a.parquet", (NOON, NOON), True, "'date'"),
        ("date=2026-11-01/a.parquet", (-(2**62), 2**62), True, "'date'"),
    ],
)
def test_a_column_of_the_path_is_no_loss_where_all_times_prove_it(
    path: str, times: tuple[int, int], instants: bool, refused: str
) -> None:
    lost = lost_columns(path, ("ts", "id"))
    assert lost
    if not refused:
        refuse_lost_columns(path, lost, times, instants)
        return
    with pytest.raises(UnsuitableBlockError, match=refused):
        refuse_lost_columns(path, lost, times, instants)


WRITTEN = datetime(2026, 11, 1, 12, 0, 7, 345_678, UTC)


@pytest.mark.parametrize("micros", [0, 345_000, 345_678], ids=["a HEAD", "a listing", "a folder"])
def test_a_file_is_the_same_however_exactly_its_time_is_said(micros: int) -> None:
    """MinIO, Ceph and Google say milliseconds in a listing and seconds in the answer to a HEAD."""
    head, found = (ObjectInfo("lake/a.parquet", 10, "", WRITTEN.replace(microsecond=item)) for item in (0, micros))
    assert assigned_id(found) == assigned_id(head)
    block = replace(a_block(1), id=assigned_id(head), path=head.path, bytes=10)
    second = int(WRITTEN.timestamp()) * 1_000_000
    for changed_at, same in ((second + 345_677, False), (second + 1_000_000, True)):
        known = {head.path: KnownPath(block, BlockState.LIVE, changed_at)}
        assert known_files([found], known, {head.path: assigned_id(found)}) == (known if same else {}, {})
