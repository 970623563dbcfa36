"""What is written is read, from any key to any other; what is damaged ends in an error that names object and byte."""

from __future__ import annotations

import hashlib
import io
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compaction.staging.errors import CorruptRangeError, RangeRecordError, StagingStoreError, UnsupportedRangeError
from compaction.staging.format import table_reader, table_writer
from compaction.staging.format.columns import BINARY, RecordColumns
from compaction.staging.format.table_parts import FOOTER_BYTES, masked_checksum
from compaction.staging.format.table_reader import BytesSource, FileSource, TableReader
from compaction.staging.format.table_writer import MAX_KEY_BYTES, TableWriter
from support.staging.staging_tables import (
    ANY_RECORDS,
    SHAPES,
    PlainTableWriter,
    Record,
    RocksDbTables,
    numbered,
    properties,
    read_plain,
    records_of,
    rocksdb_tables,
    table,
    write_plain,
)
from support.timing import at_depth, examples

NAME = "repo/_lakefs/range"
MASK = 0xA282EAD8


def opened(data: bytes, *, ignore_range_deletions: bool = False) -> TableReader:
    return TableReader(BytesSource(data, NAME), ignore_range_deletions=ignore_range_deletions)


@pytest.mark.parametrize("shape", SHAPES)
def test_records_of_every_shape_are_read(shape: str) -> None:
    data = table(SHAPES[shape])
    assert records_of(opened(data)) == SHAPES[shape] == list(read_plain(data))


@settings(max_examples=examples(200))
@given(ANY_RECORDS, st.binary(max_size=8), st.binary(max_size=8), st.integers(1, 5000))
def test_any_records_are_read_from_any_key_to_any_other(
    records: list[Record], start: bytes, stop: bytes, batch_bytes: int
) -> None:
    reader = opened(table(records))
    for last in (stop, None):
        found = [pair for batch in reader.batches(start, last, batch_bytes=batch_bytes) for pair in batch.pairs()]
        assert found == [record for record in records if start <= record[0] and (last is None or record[0] < last)]
    for key, value in records:
        assert reader.get(key) == value
    assert reader.get(start) == dict(records).get(start)


@pytest.mark.parametrize("sifted", [0, 64 << 10], ids=["large blocks", "small blocks"])
@pytest.mark.parametrize("shape", SHAPES)
def test_single_records_of_every_shape(shape: str, sifted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "SIFTED_BYTES", sifted)
    records = dict(SHAPES[shape])
    reader = opened(table(SHAPES[shape]))
    for key in list(records)[:: max(1, len(records) // at_depth(short=40, deep=150))]:
        for other in (key, key + b"\0", key[:-1], key + b"\xff"):
            assert reader.get(other) == records.get(other)


def test_a_seek_in_two_levels_of_index_reads_little(tmp_path: Path) -> None:
    """The end of the table, one block of the index, one block of data."""
    records = numbered(40_000)
    (tmp_path / "range").write_bytes(table(records))
    reads: list[tuple[int, int]] = []

    class Counted(FileSource):
        def read(self, offset: int, length: int) -> bytes:
            reads.append((offset, length))
            return super().read(offset, length)

    with Counted(tmp_path / "range") as source:
        reader = TableReader(source)
        assert reader.properties.two_levels
        for number in (0, 1, 12_345, 39_999):
            del reads[:]
            assert reader.get(records[number][0]) == records[number][1]
            assert len(reads) <= 2
            assert sum(length for _, length in reads) < 10_000
        assert records_of(reader, records[39_990][0]) == records[39_990:]
        assert reader.get(b"k/") is None
        assert reader.get(b"z") is None


def test_memory_is_that_of_a_batch(tmp_path: Path) -> None:
    """Not of the table: what numpy and Arrow hold at most, for a table of 2.6 MB read in parts of 64 KB."""
    path = tmp_path / "range"
    path.write_bytes(table(numbered(40_000)))
    held, records = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    try:
        most = 0
        with FileSource(path) as source:
            for batch in TableReader(source).batches(batch_bytes=64 << 10):
                records += len(batch)
                most = max(most, pa.total_allocated_bytes() - held)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert records == 40_000
    assert most < 1 << 20
    assert peak < 2 << 20


def test_a_table_truncated_at_any_byte_is_refused() -> None:
    data = table(numbered(40))
    for size in range(len(data)):
        with pytest.raises((CorruptRangeError, UnsupportedRangeError), match=NAME):
            records_of(opened(data[:size]))


@pytest.mark.parametrize("records", [numbered(60), SHAPES["trailers"][:300], []], ids=["numbered", "trailers", "empty"])
def test_no_damaged_byte_goes_unnoticed(records: list[Record]) -> None:
    """Each byte changed, in several ways: every one belongs to a block with a checksum, or is checked in the footer. To
    a checksum one way is as good as another: a short run takes them in turn there.
    """
    data, ways = table(records), (1, 0x80, 0xFF)
    for place in range(len(data)):
        sealed = place < len(data) - FOOTER_BYTES
        for change in at_depth(short=ways[place % 3 :][:1], deep=ways) if sealed else ways:
            damaged = bytearray(data)
            damaged[place] ^= change
            with pytest.raises(StagingStoreError, match=NAME):
                records_of(opened(bytes(damaged)))


@settings(max_examples=examples(300))
@given(st.data())
def test_hostile_blocks_with_right_checksums_yield_no_wrong_order(data: st.DataObject) -> None:
    """Whatever a block holds: keys ascend, or it is refused."""
    records = data.draw(ANY_RECORDS.filter(len))
    whole = bytearray(table(records))
    end = next(offset for offset in range(5, len(whole)) if _is_seal(whole, offset)) - 5
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    whole[end + 1 : end + 5] = struct.pack("<I", masked_checksum(bytes(whole[: end + 1])))
    try:
        found = records_of(opened(bytes(whole)))
    except (CorruptRangeError, UnsupportedRangeError):
        return
    assert len(found) == len(records)
    assert [key for key, _ in found] == sorted({key for key, _ in found})


def _is_seal(data: bytearray, end: int) -> bool:
    crc = google_crc32c.value(bytes(data[: end - 4]))
    return bytes(data[end - 4 : end]) == struct.pack("<I", ((crc >> 15 | crc << 17) + MASK) % 2**32)


def replaced_footer(data: bytes, place: int, new: bytes) -> bytes:
    """The table with other bytes at a place of its footer."""
    begin = len(data) - FOOTER_BYTES + place
    return data[:begin] + new + data[begin + len(new) :]


@pytest.mark.parametrize(
    ("place", "new", "reason"),
    [
        (0, b"\x03", r"checksums of type 3 \(xxHash64\)"),
        (0, b"\x00", r"checksums of type 0 \(none\)"),
        (0, b"\x09", r"checksums of type 9 \(unknown\)"),
        (41, b"\x05", "format version 5"),
        (45, bytes.fromhex("57fb808b247547db"), "LevelDB"),
        (45, bytes.fromhex("f09faab3f09faab3"), "Pebble's own format"),
    ],
)
def test_tables_of_other_formats_are_named(place: int, new: bytes, reason: str) -> None:
    with pytest.raises(UnsupportedRangeError, match=reason) as refused:
        opened(replaced_footer(table(numbered(3)), place, new))
    assert NAME in str(refused.value)


def resealed(data: bytes, offset: int, size: int, kind: int) -> bytes:
    """The table with another type for a block, its checksum made right."""
    checksum = masked_checksum(data[offset : offset + size] + bytes([kind]))
    return data[: offset + size] + struct.pack("<BI", kind, checksum) + data[offset + size + 5 :]


@pytest.mark.parametrize(("kind", "reason"), [(7, r"7 \(zstd\)"), (2, r"2 \(zlib\)"), (99, r"99 \(unknown\)")])
def test_other_compression_is_named(kind: int, reason: str) -> None:
    data = table([(b"a", b"1")])
    with pytest.raises(UnsupportedRangeError, match=f"compression {reason}") as refused:
        records_of(opened(resealed(data, 0, 21, kind)))
    assert refused.value.offset == 0


def test_snappy_that_claims_more_than_it_can_hold_is_refused() -> None:
    """Before a byte is allocated for it."""
    block = b"\xff\xff\xff\xff\x0f" + bytes(16)
    data = table([(b"a", b"1")])
    with pytest.raises(CorruptRangeError, match="claims to hold 4294967295"):
        records_of(opened(resealed(block + data[21:], 0, 21, 1)))


def test_range_deletions_are_refused_unless_ignored(shared_fixtures: Path) -> None:
    data = (shared_fixtures / "lakefs" / "h.sst").read_bytes()
    with pytest.raises(UnsupportedRangeError, match="deletions of ranges"):
        opened(data)
    assert len(records_of(opened(data, ignore_range_deletions=True))) == 1710


@pytest.mark.parametrize(("counted", "said"), [({"records": 2}, "2 records in 1"), ({"blocks": 2}, "3 records in 2")])
def test_a_table_that_counts_other_records_is_refused(counted: dict[str, int], said: str) -> None:
    """A lost block at the end would leave everything else in order."""
    writer = PlainTableWriter()
    for record in numbered(3):
        writer.add(*record)
    writer.flush(b"z" * 9)
    for name, count in counted.items():
        setattr(writer, name, count)
    with pytest.raises(CorruptRangeError, match=f"it has 3 in 1, and says {said} blocks"):
        records_of(opened(writer.finish({})))


# Tables byte for byte as Pebble writes them, whatever the batches they come in.

GOLDEN = {
    0: (883, 8, "601a00fbac0a35b5020cefb2c92ac1873ba95ea1f9525a8f6ee1507e3653dee4"),
    1: (960, 67, "e418bdb0e0a96c85e048a47719de1a97c0e13e0a5b7e122dde6101df20f0a81b"),
    17: (2098, 2469, "2b815485a43346fb921539d6c81c0f6fec4bc5bcd85e8971d715ead364504523"),
    100: (7571, 8190, "9079c96b946e14cf8d0d48fd20498c3a976dc56cb58b516db284db7f0fd526e6"),
    5000: (330445, 328132, "8c367a575e3482337e5bcd2b056df28a3471998164db1ee5c85de60cdcfec535"),
    40000: (2636209, 2616864, "819860db6d40f1ebaf02b0890f677ff7bfbc3bd4254e4b1027a72c54aaba0d56"),
}
"""What Pebble wrote for so many numbered records: bytes, the estimate before the end, SHA-256."""
GOLDEN_SHAPES = {
    "trailers": (1209, 12751, 12171, "a536fe1fed870ef7679891303f2e513ee09c4757e693e9168b6f458599253949"),
    "high": (1355, 48799, 48311, "a1fd14ed2b786c74ba3c7375ffad7dd90681214e4b6d0560f2f804bf88865583"),
    "long": (2000, 67712, 69553, "bf27a6469ca81900ade7e26a485b4beca99bd9321c760d70da61de06af5cfdd2"),
    "sizes": (1500, 214575, 211354, "0ead40a9e2e8987d83c7bd7ee2aaccad79c03475f4232ccf8a22f671fa353462"),
    "large": (12, 74204, 195332, "20da625a590a751b6e0c6f8e27ff3c901bb257b007ddd37821f98a9123a6f6b0"),
}


@pytest.mark.parametrize("count", GOLDEN)
def test_numbered_records_are_written_as_pebble_does(count: int) -> None:
    size, estimate, digest = GOLDEN[count]
    data = table(numbered(count), step=1 + count // 3)
    assert f"estimated_size_bytes{estimate}".encode() in data
    assert (len(data), hashlib.sha256(data).hexdigest()) == (size, digest)


@pytest.mark.parametrize("shape", GOLDEN_SHAPES)
@pytest.mark.parametrize("step", [1, 50, 10_000])
def test_records_of_every_shape_are_written_as_pebble_does(shape: str, step: int) -> None:
    count, size, estimate, digest = GOLDEN_SHAPES[shape]
    records = SHAPES[shape]
    data = table(records, step=step)
    assert len(records) == count
    assert f"estimated_size_bytes{estimate}".encode() in data
    assert (len(data), hashlib.sha256(data).hexdigest()) == (size, digest)


@settings(max_examples=examples(300))
@given(ANY_RECORDS, st.integers(1, 70))
@example([(b"x", b""), (b"x\x01", b""), (b"x\x01\0\0", b""), (b"x\x01\0\0\0\0\0\0\0\0", b"")], 4)
def test_any_records_are_written_as_the_plain_codec_does(records: list[Record], step: int) -> None:
    assert table(records, {b"type": b"ranges"}, step=step) == write_plain(records, {b"type": b"ranges"})


def test_the_estimate_is_right_after_every_record() -> None:
    """Ranges end by it, so it is part of the format."""
    for records in (numbered(2000), SHAPES["sizes"][:500]):
        plain, ours = PlainTableWriter(), TableWriter(io.BytesIO())
        for key, value in records:
            plain.add(key, value)
            ours.add(RecordColumns.of([(key, value)]))
            assert ours.estimated_size == plain.estimate


@settings(max_examples=examples(100))
@given(ANY_RECORDS, st.integers(9, 20_000), st.integers(1, 70))
def test_a_limit_stops_after_the_first_record_that_reaches_it(records: list[Record], limit: int, step: int) -> None:
    writer, plain, taken = TableWriter(io.BytesIO()), PlainTableWriter(), 0
    while taken < len(records) and writer.estimated_size < limit:
        taken += writer.add(RecordColumns.of(records[taken : taken + step]), limit=limit)
    for key, value in records:
        plain.add(key, value)
        if plain.estimate >= limit:
            break
    assert taken == writer.records == plain.records
    data = write_plain(records[:taken], {})
    out = io.BytesIO()
    again = TableWriter(out)
    again.add(RecordColumns.of(records), limit=limit)
    again.finish({})
    assert out.getvalue() == data


def test_a_slice_of_a_large_batch_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever pieces end, the bytes are the same."""
    monkeypatch.setattr(table_writer, "PIECE_BYTES", 300_000)
    records = RecordColumns.of(numbered(60_000))
    out = io.BytesIO()
    writer = TableWriter(out)
    assert writer.add(records.slice(7, 60_000)) == 59_993
    writer.finish(properties(numbered(60_000)[7:], writer.estimated_size))
    assert out.getvalue() == table(numbered(60_000)[7:])


@pytest.mark.parametrize(
    ("keys", "culprit"),
    [([b"b", b"a"], b"a"), ([b"a", b"a"], b"a"), ([b"ab", b"a"], b"a"), ([b"a", b"b", b"\xff", b""], b"")],
)
@pytest.mark.parametrize("apart", [False, True])
def test_keys_that_do_not_ascend_are_refused(keys: list[bytes], culprit: bytes, apart: bool) -> None:
    writer = TableWriter(io.BytesIO())
    first = len(keys) - 1 if apart else 0
    writer.add(RecordColumns.of((key, b"") for key in keys[:first]))
    with pytest.raises(RangeRecordError, match="strictly ascending") as refused:
        writer.add(RecordColumns.of((key, b"") for key in keys[first:]))
    assert refused.value.key == culprit
    assert writer.records == first


def test_nulls_and_long_keys_are_refused() -> None:
    writer = TableWriter(io.BytesIO())
    with pytest.raises(RangeRecordError, match="null"):
        writer.add(RecordColumns(pa.array([b"a"], BINARY), pa.array([None], BINARY)))
    with pytest.raises(RangeRecordError, match=f"more than {MAX_KEY_BYTES}"):
        writer.add(RecordColumns.of([(b"x" * (MAX_KEY_BYTES + 1), b"")]))
    writer.add(RecordColumns.of([(b"x" * MAX_KEY_BYTES, b"")]))
    assert writer.records == 1


# RocksDB, the format's other implementation, reads our tables, and we read what it writes in the same version.

TABLES = {"one": numbered(1), "numbered": numbered(40_000), **SHAPES}


@pytest.fixture(scope="module")
def rocksdb() -> Iterator[RocksDbTables]:
    with rocksdb_tables() as tables:
        yield tables


@pytest.mark.parametrize("name", TABLES)
def test_rocksdb_reads_our_tables(rocksdb: RocksDbTables, tmp_path: Path, name: str) -> None:
    records: list[Record] = TABLES[name]
    path = tmp_path / "range.sst"
    path.write_bytes(table(records))
    assert rocksdb.verify(path) == len(records)
    assert rocksdb.records(path, tmp_path / "dump") == records
    for place in (0, len(records) // 3, len(records) - 1):
        key = records[place][0]
        assert rocksdb.count_from(path, key) == len(records) - place
        assert rocksdb.count_from(path, key + b"\0") == len([record for record in records if record[0] >= key + b"\0"])


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_rocksdb_are_read(rocksdb: RocksDbTables, tmp_path: Path, name: str) -> None:
    path, copy = tmp_path / "range.sst", tmp_path / "copy.sst"
    path.write_bytes(table(TABLES[name]))
    assert rocksdb.copy(path, copy) == len(TABLES[name])
    with FileSource(copy) as source:
        assert records_of(TableReader(source)) == TABLES[name]


def test_rocksdb_refuses_what_we_refuse(rocksdb: RocksDbTables, tmp_path: Path) -> None:
    """Its test of checksums is no weaker than ours."""
    data = bytearray(table(numbered(40)))
    data[100] ^= 1
    path = tmp_path / "range.sst"
    path.write_bytes(data)
    with pytest.raises(RuntimeError, match="checksum"):
        rocksdb.verify(path)
