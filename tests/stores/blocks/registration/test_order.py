"""By what a block is sorted: what it declares is honoured and verified, else what its rows say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.registration.describe import described
from compaction.blocks.registration.foreign import FoundOrder, OrderCheck, OrderSource
from compaction.storage.objects.store import ObjectStorage, open_objects
from support.stores.block_rows import order_of
from support.stores.blocks import PATH, parquet, rows
from support.stores.parquet_types import TYPES

SERVICE_TIME = ("service", "time")


@pytest.fixture
def folder(tmp_path: Path) -> ObjectStorage:
    return open_objects(str(tmp_path / "objects"))


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
