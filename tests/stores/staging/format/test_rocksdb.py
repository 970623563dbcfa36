"""RocksDB, the format's other implementation, reads our tables, and we read what it writes in the same version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.staging.format.table_reader import FileSource, TableReader
from support.stores.rocksdb_tables import RocksDbTables, rocksdb_tables
from support.stores.staging_tables import SHAPES, Record, numbered, records_of, table

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
