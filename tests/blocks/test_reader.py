"""The reader: exactly the rows that are asked for, of one instant, in one schema; or a clear error."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compaction.blocks.errors import CorruptBlockError, SchemaConflictError, SnapshotExpiredError, UnsuitableBlockError
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.index.live_blocks import BlockFilter
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.reader import BlockReader, BlockSnapshot
from compaction.blocks.rebuild.rebuilding import rebuild_index
from compaction.blocks.store import BlockStore
from compaction.storage.errors import ObjectMissingError
from support.blocks.block_histories import compact_meanwhile, sweep
from support.blocks.block_stores import block_id, fill, upload
from support.blocks.blocks import rows


def times(snapshot: BlockSnapshot) -> list[int]:
    """The rows of a store filled by `fill`: each has a time of its own, in microseconds."""
    return sorted(time for batch in snapshot.batches() for time in batch.column("time").cast(pa.int64()).to_pylist())


def enter(store: BlockStore, number: int, table: pa.Table, **options: Any) -> str:
    time_column = options.pop("time_column", "")
    path = upload(store, number, table=table, **options)
    store.register([path], tenant="acme", shard=0, time_column=time_column)
    return path


def test_all_rows_of_all_live_blocks(block_store: BlockStore) -> None:
    fill(block_store, [1, 2, 3])
    snapshot = BlockReader(block_store, batch_rows=30).snapshot()
    batches = list(snapshot.batches())
    assert {batch.num_rows for batch in batches} <= {30, 10}
    assert pa.Table.from_batches(batches).equals(pa.concat_tables([rows(100, start=100 * n) for n in (1, 2, 3)]))
    assert [block.id for block in snapshot.blocks()] == [block_id(1), block_id(2), block_id(3)]


def test_an_empty_store_has_no_rows(block_store: BlockStore) -> None:
    snapshot = BlockReader(block_store).snapshot()
    assert (list(snapshot.batches()), snapshot.schema()) == ([], pa.schema([]))
    assert snapshot.stream().read_all().num_rows == 0


def test_a_snapshot_stays_what_it_was(block_store: BlockStore) -> None:
    fill(block_store, [1, 2])
    snapshot = BlockReader(block_store).snapshot()
    expected = times(snapshot)
    compact_meanwhile(block_store, "j", list(block_store.live().blocks), number=3)
    fill(block_store, [4])
    assert times(snapshot) == expected == list(range(100, 300))
    assert times(BlockReader(block_store).snapshot(version=snapshot.version)) == expected
    assert times(BlockReader(block_store).snapshot()) == [*range(100, 300), *range(400, 500)]


def test_filters_by_tenant_shard_and_level(block_store: BlockStore) -> None:
    fill(block_store, [1])
    fill(block_store, [2], tenant="other")
    fill(block_store, [3], shard=7)
    reader = BlockReader(block_store)
    assert times(reader.snapshot(BlockFilter(tenant="other"))) == list(range(200, 300))
    assert times(reader.snapshot(BlockFilter(shard=7))) == list(range(300, 400))
    assert times(reader.snapshot(BlockFilter(level=1))) == []


@pytest.mark.parametrize(("start", "end"), [(None, 149), (150, None), (100, 100), (199, 200), (145, 255), (300, 90)])
def test_rows_are_filtered_by_time_and_both_ends_are_included(
    block_store: BlockStore, start: int | None, end: int | None
) -> None:
    fill(block_store, [1, 2])
    snapshot = BlockReader(block_store, columns=("value", "time")).snapshot(BlockFilter(start=start, end=end))
    expected = [time for time in range(100, 300) if (start or 0) <= time <= (end if end is not None else 300)]
    assert times(snapshot) == expected
    only_values = BlockReader(block_store, columns=("value",)).snapshot(BlockFilter(start=start, end=end))
    values = [value for batch in only_values.batches() for value in batch.column("value").to_pylist()]
    assert sorted(values) == sorted(time % 100 for time in expected)
    assert all(batch.schema.names == ["value"] for batch in only_values.batches())


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("groups", [1000, 10])
def test_every_unit_of_time_is_filtered_alike(block_store: BlockStore, unit: str, groups: int) -> None:
    """With row groups of their own, and without; what lies between two microseconds belongs to the earlier one."""
    factor = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    at = [n * factor + (n % 2) * (factor - 1) for n in range(40)]
    table = pa.table({"service": ["s"] * 40, "time": pa.array(at, pa.timestamp(unit, "UTC")), "n": range(40)})
    enter(block_store, 1, table, row_group_size=groups)
    start, end = 10_000_000, 20_999_999
    found = [
        n
        for batch in BlockReader(block_store).snapshot(BlockFilter(start=start, end=end)).batches()
        for n in batch.column("n").to_pylist()
    ]
    assert found == list(range(10, 21))


def test_a_large_range_of_times_does_not_overflow(block_store: BlockStore) -> None:
    table = pa.table(
        {"service": ["s"], "time": pa.array([datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("ns", "UTC"))}
    )
    enter(block_store, 1, table)
    reader = BlockReader(block_store)
    assert sum(batch.num_rows for batch in reader.snapshot(BlockFilter(start=-(2**62), end=2**62)).batches()) == 1
    assert list(reader.snapshot(BlockFilter(start=2**62)).batches()) == []


def test_schemas_that_evolved_are_read_as_one(block_store: BlockStore) -> None:
    moment = pa.array([1, 2], pa.timestamp("us", "UTC"))
    enter(block_store, 1, pa.table({"service": ["a", "b"], "time": moment, "value": pa.array([1, 2], pa.int32())}))
    later = {"service": pa.array(["c", "c"]).dictionary_encode(), "time": moment, "value": pa.array([2**40, None])}
    enter(block_store, 2, pa.table(later | {"host": pa.array(["x", "y"], pa.large_string())}))
    snapshot = BlockReader(block_store).snapshot()
    assert snapshot.schema().field("value").type == pa.int64()
    table = snapshot.stream().read_all()
    assert table.column("service").to_pylist() == ["a", "b", "c", "c"]
    assert table.column("value").to_pylist() == [1, 2, 2**40, None]
    assert table.column("host").to_pylist() == [None, None, "x", "y"]


def test_schemas_that_contradict_are_an_error_and_each_block_can_be_read(block_store: BlockStore) -> None:
    moment = pa.array([1], pa.timestamp("us", "UTC"))
    enter(block_store, 1, pa.table({"service": ["a"], "time": moment, "value": ["text"]}))
    enter(block_store, 2, pa.table({"service": ["a"], "time": moment, "value": [1.5]}))
    snapshot = BlockReader(block_store).snapshot()
    with pytest.raises(SchemaConflictError, match="column value"):
        list(snapshot.batches())
    assert [batch.column("value").to_pylist() for block in snapshot.blocks() for batch in snapshot.read(block)] == [
        ["text"],
        [1.5],
    ]
    wanted = pa.schema([("time", pa.timestamp("us", "UTC")), ("value", pa.float64())])
    with pytest.raises(SchemaConflictError, match="column value"):
        list(snapshot.batches(wanted))


def test_a_column_that_no_block_has_is_an_error(block_store: BlockStore) -> None:
    fill(block_store, [1])
    with pytest.raises(UnsuitableBlockError, match="nor any other block has a column 'nothing'"):
        list(BlockReader(block_store, columns=("time", "nothing")).snapshot().batches())


def test_a_block_without_any_of_the_columns_has_its_rows_nevertheless(block_store: BlockStore) -> None:
    fill(block_store, [1])
    enter(block_store, 2, rows(3, start=200).append_column("host", pa.array(["x", "y", "z"])))
    snapshot = BlockReader(block_store, columns=("host",)).snapshot(BlockFilter(start=150))
    hosts = [host for batch in snapshot.batches() for host in batch.column("host").to_pylist()]
    assert hosts == [None] * 50 + ["x", "y", "z"]


TWO_TIMES = {
    "service": ["a", "b"], "made": pa.array([10, 20], pa.timestamp("us")),
    "time": pa.array([910, 920], pa.timestamp("us")),
}  # fmt: skip


@pytest.mark.parametrize("name", ["", "made"])
@pytest.mark.parametrize("metadata", [None, BlockMetadata(time_column="made")])
def test_the_time_is_the_column_that_the_block_was_registered_by(
    block_store: BlockStore, name: str, metadata: BlockMetadata | None
) -> None:
    """Also where nothing in the block says it, and another one would be taken without a name."""
    enter(block_store, 1, pa.table(TWO_TIMES), time_column="made", metadata=metadata)
    found = BlockReader(block_store, time_column=name).snapshot(BlockFilter(start=15, end=50))
    assert [batch.column("service").to_pylist() for batch in found.batches()] == [["b"]]


def test_another_column_is_refused_instead_of_rows_left_out(block_store: BlockStore) -> None:
    enter(block_store, 1, pa.table(TWO_TIMES), time_column="made")
    with pytest.raises(UnsuitableBlockError, match="not registered by the times in 'time': name another one"):
        list(BlockReader(block_store, time_column="time").snapshot(BlockFilter(start=15)).batches())


def test_a_block_of_which_nothing_tells_the_column_wants_its_name(block_store: BlockStore) -> None:
    table = pa.table(TWO_TIMES | {"time": ["x", "y"], "seen": TWO_TIMES["time"]})
    enter(block_store, 1, table, time_column="made", write_statistics=False)
    which = BlockFilter(start=15, end=50)
    with pytest.raises(UnsuitableBlockError, match="by which column it was registered does not show: name it"):
        list(BlockReader(block_store).snapshot(which).batches())
    found = BlockReader(block_store, time_column="made").snapshot(which)
    assert [batch.column("service").to_pylist() for batch in found.batches()] == [["b"]]


def test_after_the_grace_the_error_says_what_to_do(block_store: BlockStore) -> None:
    fill(block_store, [1, 2])
    snapshot = BlockReader(block_store).snapshot()
    compact_meanwhile(block_store, "j", list(block_store.live().blocks), number=3)
    assert sweep(block_store, grace=3600) == 0
    assert times(snapshot) == list(range(100, 300))
    assert sweep(block_store, grace=0) == 2
    with pytest.raises(SnapshotExpiredError, match=rf"{block_id(1)}.parquet: .*take a new snapshot"):
        list(snapshot.batches())
    assert times(BlockReader(block_store).snapshot()) == list(range(100, 300))


def test_what_vanishes_in_the_middle_of_a_block_is_the_same_error(block_store: BlockStore) -> None:
    table = rows(50_000)
    enter(block_store, 1, table.append_column("noise", pc.random(50_000)), row_group_size=5000, compression="none")
    reader = BlockReader(block_store, batch_rows=1000)
    batches = reader.snapshot().batches()
    next(batches)
    compact_meanwhile(block_store, "j", list(block_store.live().blocks), number=3)
    sweep(block_store, grace=0)
    with pytest.raises(SnapshotExpiredError, match="take a new snapshot"):
        list(batches)


def test_a_snapshot_of_an_index_that_was_lost_is_no_snapshot_of_the_new_one(
    block_store: BlockStore, tmp_path: Path
) -> None:
    """Its versions are of another history, and those before the end of the work are parts of the store."""
    fill(block_store, range(4))
    old = BlockReader(block_store).snapshot().version
    index = IndexDatabase.open(f"sqlite:///{tmp_path}/new.db")
    rebuild_index(block_store.objects, index, now=block_store.now())
    reader = BlockReader(replace(block_store, index=index))
    new = reader.snapshot()
    assert times(new) == list(range(400))
    for version in range(new.version):
        with pytest.raises(SnapshotExpiredError):
            reader.snapshot(version=version)
    assert old < new.version
    index.close()


def test_a_live_block_whose_object_is_lost_is_another_error(block_store: BlockStore) -> None:
    """A new snapshot would not help: it names the block and says that it is lost."""
    fill(block_store, [1])
    snapshot = BlockReader(block_store).snapshot()
    block_store.objects.delete([block.path for block in snapshot.blocks()])
    with pytest.raises(ObjectMissingError, match=f"block {block_id(1)} is live.*lost"):
        list(snapshot.batches())


def test_an_object_that_is_not_the_registered_one_is_refused(block_store: BlockStore) -> None:
    fill(block_store, [1])
    upload(block_store, 1, table=rows(99))
    with pytest.raises(CorruptBlockError, match="not the object that was registered"):
        list(BlockReader(block_store).snapshot().batches())


def test_damage_inside_of_a_block_is_named(block_store: BlockStore) -> None:
    fill(block_store, [1])
    (block,) = block_store.live().blocks
    data = bytearray(block_store.objects.get(block.path))
    data[20:60] = b"\xff" * 40
    block_store.objects.put(block.path, bytes(data))
    with pytest.raises(CorruptBlockError, match=block.path):
        list(BlockReader(block_store).snapshot().batches())


def peak(snapshot: BlockSnapshot) -> int:
    """Bytes of Arrow memory while all is read, at most, as far as they are held between two batches."""
    pool, most = pa.default_memory_pool(), 0
    before = pool.bytes_allocated()
    for batch in snapshot.batches():
        assert batch.num_rows
        most = max(most, pool.bytes_allocated() - before)
    return most


def test_memory_does_not_grow_with_the_number_of_blocks(block_store: BlockStore) -> None:
    reader = BlockReader(block_store, batch_rows=4096)
    table = rows(20_000).append_column("noise", pc.random(20_000))
    enter(block_store, 0, table, compression="none")
    few = peak(reader.snapshot())
    for number in range(1, 16):
        enter(block_store, number, table, compression="none")
    assert peak(reader.snapshot()) < few * 1.5


def test_memory_does_not_grow_with_the_size_of_row_groups(block_store: BlockStore) -> None:
    table = rows(1_000_000).select(["service", "time"]).append_column("noise", pc.random(1_000_000))
    enter(block_store, 1, table, compression="none", use_dictionary=False)
    assert table.nbytes > 20_000_000
    assert peak(BlockReader(block_store, batch_rows=4096).snapshot()) < 8_000_000


def test_a_snapshot_is_plain_data(block_store: BlockStore) -> None:
    """What a task in another process needs: version and filter; the store it opens itself."""
    fill(block_store, [1, 2])
    snapshot = BlockReader(block_store).snapshot(BlockFilter(end=150))
    version, which = pickle.loads(pickle.dumps((snapshot.version, snapshot.which)))
    fill(block_store, [0])
    assert times(BlockReader(block_store).snapshot(which, version=version)) == list(range(100, 151))


def test_other_engines_read_the_stream(block_store: BlockStore) -> None:
    fill(block_store, [1, 2])
    stream = BlockReader(block_store).snapshot().stream()
    found = polars.DataFrame(stream)
    assert (found.height, found["value"].max()) == (200, 99)
