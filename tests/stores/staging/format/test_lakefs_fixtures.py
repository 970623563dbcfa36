"""Everything lakeFS wrote is read, and written again to the same bytes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from compaction.staging.format.columns import RecordColumns, concatenated
from compaction.staging.format.identity import entry_identity, frame_values, split_values
from compaction.staging.format.messages import CatalogEntry
from compaction.staging.format.ranges import RangeWriter, TableKind, read_metarange, table_id
from compaction.staging.format.table_reader import FileSource, TableReader
from compaction.staging.format.table_writer import TableWriter
from support.stores.plain_tables import read_plain

pytestmark = pytest.mark.fixtures

OWN = ("range", "ok1", "metarange")
WORDS = ("h", "h.no-compression.two_level_index")
"""Tables of words that RocksDB wrote, with blocks of 2,048 bytes; the first of lakeFS's own reader's tests."""
RANGE_ID = "a83af763ba098c15369d9d6d723731eb9ce18b8dfac4f88c6f1287e772393d0e"


def path_of(fixtures: Path, name: str) -> Path:
    return fixtures / "lakefs" / f"{name}.sst"


@pytest.mark.parametrize("name", OWN)
def test_a_file_of_lakefs_is_written_again_to_the_same_bytes(shared_fixtures: Path, name: str) -> None:
    path = path_of(shared_fixtures, name)
    with FileSource(path) as source:
        reader = TableReader(source)
        out = io.BytesIO()
        writer = TableWriter(out)
        for batch in reader.batches(batch_bytes=5000):
            writer.add(batch)
        writer.finish(reader.properties.user)
    assert out.getvalue() == path.read_bytes()


@pytest.mark.parametrize("name", [*OWN, *WORDS])
def test_a_file_is_read_as_the_plain_codec_reads_it(shared_fixtures: Path, name: str) -> None:
    path = path_of(shared_fixtures, name)
    with FileSource(path) as source:
        reader = TableReader(source, ignore_range_deletions=True)
        found = [pair for batch in reader.batches(batch_bytes=1) for pair in batch.pairs()]
    assert found == list(read_plain(path.read_bytes()))


def test_data_blocks_of_rocksdb_are_written_again_to_the_same_bytes(shared_fixtures: Path) -> None:
    """Both ends of the format agree on where blocks end, on their bytes and on how Snappy compresses them."""
    data = path_of(shared_fixtures, "h").read_bytes()
    with FileSource(path_of(shared_fixtures, "h")) as source:
        batches = list(TableReader(source, ignore_range_deletions=True).batches())
    out = io.BytesIO()
    writer = TableWriter(out, block_bytes=2048)
    writer.add(concatenated(batches))
    writer.finish({})
    index = 13913
    assert out.getvalue()[: index + 245] == data[: index + 245]


@pytest.mark.parametrize(("name", "kind"), [("range", TableKind.RANGES), ("metarange", TableKind.METARANGES)])
def test_a_range_writer_makes_the_whole_file(shared_fixtures: Path, name: str, kind: TableKind) -> None:
    path = path_of(shared_fixtures, name)
    with FileSource(path) as source:
        records = concatenated(list(TableReader(source).batches()))
        identity = table_id(TableReader(source), kind)
    out = io.BytesIO()
    writer = RangeWriter(out, kind)
    writer.add(records)
    assert writer.finish().id == identity
    assert out.getvalue() == path.read_bytes()


def test_the_metarange_lists_the_range_by_the_id_that_its_records_have(shared_fixtures: Path) -> None:
    with FileSource(path_of(shared_fixtures, "metarange")) as source:
        (listed,) = read_metarange(TableReader(source), source.name)
    with FileSource(path_of(shared_fixtures, "range")) as source:
        assert table_id(TableReader(source), TableKind.RANGES) == listed.id == RANGE_ID
    assert (listed.min_key, listed.max_key, listed.count) == (b"a/b/c/no", b"a/b/c/yes", 2)


@pytest.mark.parametrize("name", ["range", "ok1"])
def test_entries_are_encoded_again_to_the_same_bytes(shared_fixtures: Path, name: str) -> None:
    with FileSource(path_of(shared_fixtures, name)) as source:
        records: RecordColumns = concatenated(list(TableReader(source).batches()))
    parts = split_values(records)
    assert frame_values(parts).equals(records.values)
    for identity, data in zip(parts.identities.to_pylist(), parts.data.to_pylist(), strict=True):
        entry = CatalogEntry.decode(data)
        assert entry.encode() == data
        # Files of January 2021 have identities by an older rule (docs/design/staging.md#identities).
        assert name == "ok1" or entry_identity(entry) == identity
