"""Ranges end where lakeFS ends them, metaranges list them, and both have the ids of their content."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.errors import CorruptRangeError, RangeRecordError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import frame_value
from compaction.staging.format.messages import RangeData
from compaction.staging.format.ranges import (
    BreakRule,
    RangeInfo,
    RangeWriter,
    TableKind,
    break_points,
    read_metarange,
    table_id,
    write_metarange,
    write_ranges,
)
from compaction.staging.format.table_reader import BytesSource, TableReader
from support.depth import examples
from support.stores.plain_tables import PlainTableWriter
from support.stores.staging_tables import ANY_RECORDS, SHAPES, Record, numbered, records_of, table
from support.stores.staging_trees import fnv

RANGE_IDS = {
    0: "5105eaf20d56aa444d5402b4eab9d952aecff97791980db9141ca8e2590ce149",
    1: "d7eb61915af2b4e654b0af709e33cec957bde322ed511f5d1353b22453b2c822",
    17: "08d7c94a70ab8d6ae052906db746e017949106024b53a6fd4435e1476ddc59e8",
    100: "6bece21dbf4ec0c35c5b8f37c6632ab28c02e3d32891ebafba6ce078186cf012",
    5000: "c6782425b0d459135305c191cc479d8e9099f70a0da513d7645b67557c756e62",
    40000: "2995638001ae5e003c0e632cd7b9a1d85eabd5d8157346834d55843fe018356e",
}


class Stored(io.BytesIO):
    """A sink that keeps what it was closed with."""

    def __init__(self, every: list[tuple[RangeInfo, bytes]]) -> None:
        super().__init__()
        self.every = every

    def store(self, info: RangeInfo) -> None:
        self.every.append((info, self.getvalue()))


def cut(records: list[Record], rule: BreakRule, step: int) -> list[tuple[RangeInfo, bytes]]:
    """The ranges of these records, given in batches of `step`."""
    every: list[tuple[RangeInfo, bytes]] = []
    batches = (RecordColumns.of(records[at : at + step]) for at in range(0, len(records), step))
    infos = list(write_ranges(batches, lambda: Stored(every), rule))
    assert infos == [info for info, _ in every]
    return every


def plainly_cut(records: list[Record], rule: BreakRule) -> list[list[Record]]:
    """The same, record by record."""
    found: list[list[Record]] = []
    writer: PlainTableWriter | None = None
    for key, value in records:
        if writer is None:
            writer = PlainTableWriter()
            found.append([])
        writer.add(key, value)
        found[-1].append((key, value))
        size = writer.estimate
        if size >= rule.min_bytes and (size >= rule.max_bytes or fnv(key) % rule.raggedness == 0):
            writer = None
    return found


@pytest.mark.parametrize("count", RANGE_IDS)
def test_a_range_has_the_id_of_its_content(count: int) -> None:
    out = io.BytesIO()
    writer = RangeWriter(out)
    for at in range(0, count, 999):
        writer.add(RecordColumns.of(numbered(count)[at : at + 999]))
    info = writer.finish()
    assert info.id == RANGE_IDS[count]
    assert out.getvalue() == table(numbered(count))
    assert table_id(TableReader(BytesSource(out.getvalue())), TableKind.RANGES) == info.id


@pytest.mark.parametrize("raggedness", [1, 3, 16, 1000, 1024, 50_000])
def test_break_points_are_where_the_hash_says(raggedness: int) -> None:
    for records in (numbered(3000), *SHAPES.values()):
        columns = RecordColumns.of(records)
        expected = [place for place, (key, _) in enumerate(records) if fnv(key) % raggedness == 0]
        assert break_points(columns.keys, raggedness) == expected
        assert break_points(columns.slice(5, 9).keys, raggedness) == [item - 5 for item in expected if 5 <= item < 9]


@settings(max_examples=examples(100))
@given(ANY_RECORDS, st.integers(0, 9000), st.integers(9, 9000), st.integers(1, 30), st.integers(1, 70))
def test_ranges_end_where_the_rule_says(records: list[Record], low: int, high: int, raggedness: int, step: int) -> None:
    rule = BreakRule(low, high, raggedness)
    found = cut(records, rule, step)
    expected = plainly_cut(records, rule)
    assert [records_of(TableReader(BytesSource(data))) for _, data in found] == expected
    for (info, data), part in zip(found, expected, strict=True):
        assert (info.min_key, info.max_key, info.count) == (part[0][0], part[-1][0], len(part))
        assert data == table(part)


def test_ranges_are_cut_by_size_within_a_batch() -> None:
    records = SHAPES["sizes"]
    rule = BreakRule(10_000, 30_000, 7)
    found = cut(records, rule, 10_000)
    assert [info.count for info, _ in found] == [len(part) for part in plainly_cut(records, rule)]
    assert len(found) > 4


@pytest.mark.parametrize("size", [1, 5 << 20], ids=["in one batch", "from batch to batch"])
@pytest.mark.parametrize("raggedness", [1, 1 << 40], ids=["two ranges", "one range"])
@pytest.mark.parametrize("second", [b"a", b"b"])
def test_ranges_do_not_overlap(size: int, raggedness: int, second: bytes) -> None:
    """Whether a range ends between the two keys or not."""
    batches = [RecordColumns.of([(b"b", b"x" * size)]), RecordColumns.of([(second, b"")])]
    with pytest.raises(RangeRecordError, match="not greater") as refused:
        list(write_ranges(batches, lambda: Stored([]), BreakRule(raggedness=raggedness)))
    assert refused.value.key == second


def test_a_metarange_lists_ranges_by_their_keys() -> None:
    found = [info for info, _ in cut(numbered(3000), BreakRule(0, 1 << 20, 300), 10_000)]
    out = io.BytesIO()
    info = write_metarange(reversed(found), out)
    assert (info.count, info.min_key, info.max_key) == (len(found), found[0].max_key, found[-1].max_key)
    reader = TableReader(BytesSource(out.getvalue(), "meta"))
    assert reader.properties.user[b"type"] == b"metaranges"
    assert list(read_metarange(reader, "meta")) == found
    assert list(read_metarange(reader, "meta", found[3].min_key)) == found[3:]
    assert table_id(reader, TableKind.METARANGES) == info.id


def test_ranges_that_overlap_have_no_metarange() -> None:
    one, other = RangeInfo("1" * 64, b"a", b"c", 2, 10), RangeInfo("2" * 64, b"c", b"d", 2, 10)
    with pytest.raises(RangeRecordError, match="overlaps range 1111"):
        write_metarange([one, other], io.BytesIO())


def test_an_empty_metarange_is_a_table_without_records() -> None:
    out = io.BytesIO()
    info = write_metarange([], out)
    assert (info.count, info.min_key, info.estimated_size) == (0, b"", 8)
    assert list(read_metarange(TableReader(BytesSource(out.getvalue())), "meta")) == []


def listed(**change: Any) -> tuple[bytes, bytes]:
    data = RangeData(**({"min_key": b"a", "max_key": b"c", "estimated_size": 1, "count": 1} | change))
    return b"c", frame_value(b"1" * 64, data.encode())


@pytest.mark.parametrize(
    "record",
    [listed(max_key=b"d"), listed(min_key=b"d"), (b"c", b""), (b"c", frame_value(b"1", b"\xff")), (b"c", b"\x01\x01")],
)
def test_records_that_list_no_range_are_refused(record: Record) -> None:
    with pytest.raises(CorruptRangeError, match="meta: damaged"):
        list(read_metarange(TableReader(BytesSource(table([record]), "meta")), "meta"))


def test_listed_ranges_that_overlap_are_refused() -> None:
    later = (b"e", listed(min_key=b"b", max_key=b"e")[1])
    with pytest.raises(CorruptRangeError, match="contradict"):
        list(read_metarange(TableReader(BytesSource(table([listed(), later]), "meta")), "meta"))
