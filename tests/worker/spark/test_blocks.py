"""Jobs of blocks on a real Spark application, with PostgreSQL and an S3 server: the whole way of a worker."""

from __future__ import annotations

import queue
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJob, CompactionJobSpec
from compaction.api.job.job_status import ReportOutcome
from compaction.blocks.index.live_blocks import BlockFilter
from compaction.blocks.merge.footers import MergeInput, MergeSettings
from compaction.blocks.merge.kernel import merge
from compaction.blocks.rewriting.task import SourceFault
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.storage.secrets import DirectorySecrets, write_secrets
from compaction.worker.attempt import Inbox, RunnerOfAllKinds
from compaction.worker.errors import LeaseLostError
from compaction.worker.keeper import Heartbeat
from compaction.worker.loop import Worker, WorkerExit
from compaction.worker.spark.session import SparkEngine
from support.blocks.block_stores import content, empty_bucket, fill
from support.blocks.blocks import assert_tidy, claim, job_of, orphans, reference_of, run
from support.blocks.parquet_types import (
    COLUMNS,
    ENCODINGS,
    KEY,
    NOT_READ,
    expected,
    merged,
    plain,
    readable,
    table,
    typed_file,
    values,
)
from support.cluster.manifests import block_job_object
from support.processes.worker_ports import Cluster, FakeLease
from support.programs import needs

pytestmark = [pytest.mark.spark, needs("versitygw")]


@pytest.fixture
def connection(request: pytest.FixtureRequest) -> BlockStoreConnection:
    """What `block_store` opens: executors reach it from where they run."""
    return empty_bucket(request)


def spec_of(connection: BlockStoreConnection, ids: tuple[str, ...], *, tenant: str) -> CompactionJobSpec:
    sources = {
        "store": reference_of(connection).to_object(),
        "tenant": tenant,
        "shard": 0,
        "batch": f"{tenant}/0/L0/{min(ids)}",
        "blocks": sorted(ids),
    }
    return CompactionJob.model_validate(block_job_object(sources={"blocks": sources})).spec


def test_a_worker_takes_jobs_and_reads_mounted_secrets(
    connection: BlockStoreConnection, block_store: BlockStore, spark: SparkEngine, tmp_path: Path
) -> None:
    """Executors open the store themselves: no credentials travel with their tasks."""
    write_secrets(tmp_path, {"index": {"url": connection.index_url}, "credentials": dict(connection.options)})
    cluster = Cluster()
    inbox: Inbox = queue.SimpleQueue()
    tenants = ["one", "two", "three"]
    for number, tenant in enumerate(tenants):
        ids = fill(block_store, range(10 * number, 10 * number + 5), tenant=tenant)
        cluster.assign(tenant, spec_of(connection, ids, tenant=tenant), token=2)
        block_store.claim(job=tenant, token=2, sources=ids, output_level=1)
    before = {tenant: content(block_store, BlockFilter(tenant=tenant)) for tenant in tenants}
    worker = Worker(
        heartbeat=Heartbeat(cluster.connect(), inbox=inbox, slots=4, lease_seconds=60),
        inbox=inbox,
        runner=RunnerOfAllKinds(spark, holder="w", secrets=DirectorySecrets(str(tmp_path)), meter=spark),
        slots=4,
        idle_seconds=0.5,
    )
    assert worker.run() is WorkerExit.IDLE
    for tenant in tenants:
        report = cluster.leases[tenant].report
        assert report is not None
        assert (report.outcome, report.message) == (ReportOutcome.SUCCEEDED, "5 blocks merged into 1"), report.message
        assert content(block_store, BlockFilter(tenant=tenant)) == before[tenant]
        used, receipt = report.usage, report.receipt
        assert used is not None
        assert receipt is not None
        assert used.bytes_written == receipt.bytes_after
        assert (used.bytes_read or 0) > receipt.bytes_after, "sources, and the output read back"
        assert (used.executor_cpu_seconds or 0) > 0
    assert_tidy(block_store)


def test_ranges_of_keys_and_a_culprit(
    connection: BlockStoreConnection, block_store: BlockStore, spark: SparkEngine
) -> None:
    """Four outputs, each of a task of its own; one of the sources is not what was registered."""
    ids = sorted(fill(block_store, range(8)))
    victim = next(block for block in block_store.live().blocks if block.id == ids[3])
    data = block_store.objects.get(victim.path)
    before = content(block_store)
    block_store.objects.put(victim.path, bytes([*data[:40], data[40] ^ 1, *data[41:]]))
    job = job_of(connection, ids, part_bytes=sum(block.bytes for block in block_store.live().blocks) // 4 + 1)
    claim(block_store, job, 1)
    report = run(connection, job, spark)
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert [(item.source, item.reason) for item in report.skipped] == [(victim.id, SourceFault.CORRUPT.value)]
    assert len([block for block in block_store.live().blocks if block.level == 1]) == 4
    block_store.objects.put(victim.path, data)
    assert content(block_store) == before
    assert_tidy(block_store)


def test_a_lost_lease_leaves_nothing_and_the_next_attempt_does_it(
    connection: BlockStoreConnection, block_store: BlockStore, spark: SparkEngine
) -> None:
    ids = fill(block_store, range(4))
    before = content(block_store)
    job = job_of(connection, ids)
    claim(block_store, job, 1)

    class Lost(FakeLease):
        """When everything is uploaded and proved."""

        @property
        def lost(self) -> bool:
            return bool(orphans(block_store)) and self.checks > 0 and bool(self.progress)

    with pytest.raises(LeaseLostError):
        run(connection, job, spark, lease=Lost())
    assert orphans(block_store) == ()
    claim(block_store, job, 2)
    late = run(connection, job, spark, token=1)
    assert (late.reason, late.charged) == (JobReason.STALE_TOKEN, False)
    assert run(connection, job, spark, token=2).outcome is ReportOutcome.SUCCEEDED
    assert content(block_store) == before
    assert_tidy(block_store)


def test_spark_reads_every_type_in_every_encoding(session: SparkSession, tmp_path: Path) -> None:
    """Value by value, with both of its readers: the vectorised one decodes by itself, the other one is parquet-java.

    The same for DuckDB, Polars and pyarrow: tests/blocks/merge/test_readers.py.
    """
    names = readable("spark")
    for encoding in ("", *ENCODINGS):
        path = tmp_path / f"rows-{encoding}.parquet"
        path.write_bytes(merged(table(names), encoding))
        for vectorised in ("true", "false"):
            session.conf.set("spark.sql.parquet.enableVectorizedReader", vectorised)
            found = session.read.parquet(str(path)).toArrow().sort_by(KEY)
            for name in names:
                assert values(found[name]) == expected("spark", name), (encoding, vectorised, name)


@pytest.mark.parametrize("name", NOT_READ["spark"])
def test_what_spark_cannot_read_is_not_our_doing(session: SparkSession, tmp_path: Path, name: str) -> None:
    path = tmp_path / "plain.parquet"
    path.write_bytes(plain(table((name,))))
    with pytest.raises(Exception, match=NOT_READ["spark"][name]):
        session.read.parquet(str(path)).toArrow()


def test_parquet_java_finds_the_logical_types_of_the_sources(spark: SparkEngine, tmp_path: Path) -> None:
    """All that Arrow has no type for, and what only old writers say: by the reader that defines the format."""
    data = typed_file(COLUMNS)
    source, output = tmp_path / "source.parquet", tmp_path / "output.parquet"
    source.write_bytes(data)
    inputs = [MergeInput(name=str(n), open=lambda: str(source)) for n in range(2)]
    merge(inputs, str(output), MergeSettings(sort_key=(KEY,)))
    jvm = spark.context._jvm
    hadoop, configuration = jvm.org.apache.hadoop.fs, jvm.org.apache.hadoop.conf.Configuration()
    found = []
    for path in (source, output):
        file = jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(hadoop.Path(str(path)), configuration)
        reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(file)
        schema = reader.getFileMetaData().getSchema()
        found.append({field.getName(): str(field.getLogicalTypeAnnotation()) for field in schema.getFields()})
        reader.close()
    assert found[0] == found[1]
    assert {"ENUM", "JSON", "BSON", "INTERVAL", "UUID", "TIME(MICROS,true)"} <= set(found[1].values())


def test_what_spark_has_written_is_spark_s_after_a_merge(session: SparkSession, tmp_path: Path) -> None:
    """Its timestamps are INT96 unless it is told otherwise: as nanoseconds, it could not read them any more."""
    rows = session.sql(
        "select id, timestamp_micros(id * 1000003) at, timestamp'9999-12-31 23:00:00' until, "
        "array(timestamp_micros(id)) some, cast(id as decimal(18, 3)) price, date'0001-01-01' day from range(1000)"
    )
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    rows.coalesce(1).write.parquet(str(tmp_path / "sources"))
    (source,) = (tmp_path / "sources").glob("*.parquet")
    assert pq.read_metadata(source).schema.column(1).physical_type == "INT96"
    output = tmp_path / "output.parquet"
    merge(
        [MergeInput(name=str(n), open=lambda: str(source), sort_key=()) for n in range(2)],
        str(output),
        MergeSettings(sort_key=("id",)),
    )
    for vectorised in ("true", "false"):
        session.conf.set("spark.sql.parquet.enableVectorizedReader", vectorised)
        found, before = session.read.parquet(str(output)), session.read.parquet(str(source))
        assert found.schema == before.schema
        assert found.count() == 2000
        assert found.exceptAll(before.union(before)).count() == 0


def test_what_spark_has_written_is_merged_with_nanoseconds_of_others_and_stays_spark_s(
    session: SparkSession, tmp_path: Path
) -> None:
    """INT96 of Impala and Hive has digits that Spark leaves out when it reads them, before a merge and after it."""
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    rows = session.sql("select id, timestamp_micros(id * 1000003) at from range(1000)")
    rows.coalesce(1).write.parquet(str(tmp_path / "sources"))
    (source,) = (tmp_path / "sources").glob("*.parquet")
    other, output = tmp_path / "other.parquet", tmp_path / "output.parquet"
    fine = pa.table({"id": range(1000), "at": pa.array(range(1, 10**15, 10**12), pa.timestamp("ns"))})
    pq.write_table(fine, other, use_deprecated_int96_timestamps=True, store_schema=False)
    inputs = [MergeInput(name=name, open=lambda name=name: name) for name in (str(source), str(other))]  # type: ignore[misc]
    merge(inputs, str(output), MergeSettings(sort_key=("id",)))
    assert pq.read_metadata(output).schema.column(1).physical_type == "INT96"
    for vectorised in ("true", "false"):
        session.conf.set("spark.sql.parquet.enableVectorizedReader", vectorised)
        found, before = session.read.parquet(str(output)), session.read.parquet(str(source), str(other))
        assert (found.schema, found.count()) == (before.schema, 2000)
        assert found.exceptAll(before).count() == 0
