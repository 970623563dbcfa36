"""What is written is read, from any key to any other; what is damaged ends in an error that names object and byte."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.errors import CorruptRangeError, StagingStoreError, UnsupportedRangeError
from compaction.staging.format import table_reader
from compaction.staging.format.table_parts import FOOTER_BYTES, masked_checksum
from compaction.staging.format.table_reader import BytesSource, FileSource, TableReader
from support.depth import at_depth, examples
from support.stores.plain_tables import PlainTableWriter, read_plain
from support.stores.staging_tables import ANY_RECORDS, SHAPES, Record, numbered, records_of, table

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
