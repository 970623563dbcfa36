"""Ranges of a staging area, read and written (docs/benchmarks.md): columns against records one by one.

300,000 objects as an importer stages them: keys of 58 bytes with long common prefixes, values of 130 bytes. Rivals:
the same codec in plain Python, and the RocksDB that Spark ships, called from a JVM (a record is a pair of byte arrays,
as a Java reader has it; its CPU time is not counted, being that of another process).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Fact, Race, Side, Target, Workspace, sample
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import RangeIdentity, frame_value
from compaction.staging.format.messages import CatalogEntry, ProtoTimestamp
from compaction.staging.format.ranges import RangeInfo, write_ranges
from compaction.staging.format.table_reader import FileSource, TableReader
from compaction.staging.format.table_writer import TableWriter
from support.staging.staging_tables import read_plain, rocksdb_tables, write_plain

TARGET = 500_000
"""Records per second and core, read and written."""


class Discarded:
    """Takes a range and forgets it."""

    def write(self, data: bytes, /) -> None:
        """Nothing."""

    def store(self, info: RangeInfo) -> None:
        """Nothing."""


def staged(count: int) -> list[tuple[bytes, bytes]]:
    """Objects of a partitioned table."""
    chance = random.Random(1)
    found = {}
    for number in range(count):
        day = b"%02d-%02d" % (number // 20_000 % 12 + 1, number // 700 % 30 + 1)
        key = b"tables/warehouse/date=2024-%b/part-%05d-%016x.parquet" % (day, number, chance.getrandbits(64))
        digest = hashlib.md5(key).hexdigest()
        entry = CatalogEntry(digest, ProtoTimestamp(1_700_000_000 + number, number), number * 37, digest[::-1])
        found[key] = frame_value(hashlib.sha256(key).digest(), entry.encode())
    return sorted(found.items())


def at_least(records: float) -> Target:
    """So many records per CPU second of ours."""
    return Target(
        f">= {records:,.0f} records per CPU second", lambda result: result.race.work >= records * result.ours.cpu
    )


def read(path: Path) -> int:
    """All records as columns."""
    with FileSource(path) as source:
        return sum(len(batch) for batch in TableReader(source).batches())


def rewrite(path: Path, target: Path) -> int:
    """Read, and write again, in one pass."""
    with FileSource(path) as source, target.open("wb") as out:
        writer = TableWriter(out)
        for batch in TableReader(source).batches():
            writer.add(batch)
        writer.finish({b"type": b"ranges"})
        return writer.records


def compacted(path: Path) -> int:
    """Read, cut into ranges with their ids, and write."""
    with FileSource(path) as source:
        return sum(info.count for info in write_ranges(TableReader(source).batches(), Discarded))


def measure(workspace: Workspace) -> Iterator[Race | Fact]:
    """Writing, reading, both: ours against each rival in turn."""
    records = staged(workspace.pick(300_000, 2000))
    columns = RecordColumns.of(records)
    count = len(records)
    path, target = workspace.directory / "range.sst", workspace.directory / "target.sst"

    def write() -> None:
        with path.open("wb") as out:
            writer = TableWriter(out)
            writer.add(columns)
            writer.finish({b"type": b"ranges"})

    def identity() -> None:
        RangeIdentity().add(columns)

    write()
    assert list(read_plain(path.read_bytes())) == records
    plain_count = workspace.pick(30_000, 500)
    part, part_path = RecordColumns.of(records[:plain_count]), workspace.directory / "part.sst"
    part_path.write_bytes(write_plain(records[:plain_count], {}))
    plain_read = Side("plain Python", lambda: sum(1 for _ in read_plain(part_path.read_bytes())))
    plain_write = Side("plain Python", lambda: write_plain(records[:plain_count], {}))
    yield Race("range written", "records", plain_count, Side("columns", lambda: _write(part, target)), plain_write)
    yield Race("range read", "records", plain_count, Side("columns", lambda: read(part_path)), plain_read)
    with rocksdb_tables() as rocksdb:
        rocksdb.copy(path, target)
        ours = Side("columns", lambda: read(path))
        yield Race("range read", "records", count, ours, Side("RocksDB, JVM", lambda: rocksdb.read(path)))
        both = Side("columns", lambda: rewrite(path, target))
        rival = Side("RocksDB, JVM", lambda: rocksdb.copy(path, target))
        yield Race("range read and written", "records", count, both, rival, target=at_least(TARGET))
    for title, run in (("ids and break points too", lambda: compacted(path)), ("the id alone", identity)):
        taken = min(sample(run).cpu for _ in range(workspace.pick(3, 1)))
        yield Fact(f"range read and written, {title}" if "too" in title else title, f"{count / taken:,.0f} records/s")
    yield Fact("bytes of a record in a range", f"{path.stat().st_size / count:.0f}")


def _write(records: RecordColumns, path: Path) -> None:
    with path.open("wb") as out:
        writer = TableWriter(out)
        writer.add(records)
        writer.finish({b"type": b"ranges"})
