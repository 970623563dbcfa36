"""From an object to a block: every word of it checked or counted."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ulid import ULID

from compaction.blocks.errors import CorruptBlockError, UnsuitableBlockError
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.model import Block, RowFingerprint
from compaction.blocks.registration.describe import describe
from compaction.storage.errors import ObjectStoreUnavailableError
from compaction.storage.objects.store import ObjectStorage, open_objects
from support.faults.fault_proxy import Fault, FaultProxy
from support.stores.blocks import PATH, footer_of, parquet, rows
from support.stores.blocks import ULID as ID
from support.stores.s3 import S3


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
    other = {"id": str(ULID()), "tenant": "other", "shard": 7, "level": 3}[field]
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
