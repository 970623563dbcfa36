"""Attempts at jobs of block stores, on SQLite with a folder and on PostgreSQL with S3: what is committed, what the
report says, and what is left.
"""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job import JobReceipt
from compaction.api.job.job_status import ReportOutcome
from compaction.blocks.format.footer import read_footer
from compaction.blocks.format.metadata import decode
from compaction.blocks.index.queued import Fault
from compaction.blocks.index.registering import BlockReplacement, replace
from compaction.blocks.index.tables import BlockState, IndexJobState
from compaction.blocks.index.tombstones import RetentionPeriods, expire
from compaction.blocks.kind import BLOCKS
from compaction.blocks.model import RowFingerprint
from compaction.blocks.rewriting.report import Proof
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.storage.errors import DatabaseUnavailableError
from compaction.worker.attempt import budget_of
from compaction.worker.errors import LeaseLostError
from support.blocks.block_stores import check, content, fill, read, upload
from support.blocks.blocks import JOB, MEBIBYTE, assert_tidy, claim, job_of, orphans, padded, rows, run
from support.processes.worker_ports import FakeLease, ThreadEngine

KEY = ("service", "time")


def test_blocks_become_one_of_the_next_level(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = fill(block_store, range(5))
    before = content(block_store)
    sources = block_store.live().blocks
    job = job_of(connection, ids)
    claim(block_store, job, 3)
    lease = FakeLease(token=3)
    report = run(connection, job, engine, token=3, lease=lease)
    assert (report.outcome, report.reason) == (ReportOutcome.SUCCEEDED, JobReason.COMPLETED)
    assert report.message == "5 blocks merged into 1"
    assert lease.progress[-1] == 99

    (made,) = block_store.live().blocks
    assert content(block_store) == before
    assert (made.tenant, made.shard, made.level, made.rows, made.sort_key) == ("acme", 0, 1, 500, KEY)
    assert (made.min_time, made.max_time) == (0, 499)
    assert made.fingerprint == sum((source.fingerprint for source in sources), RowFingerprint())
    assert {block_store.inspect(block).state for block in ids} == {BlockState.TOMBSTONED}  # type: ignore[union-attr]
    assert [entry.id for entry in block_store.queue().entries] == [made.id], "it waits for the next level"

    receipt = report.receipt
    assert isinstance(receipt, JobReceipt)
    assert (receipt.token, receipt.worker, receipt.sources) == (3, "worker-3", tuple(sorted(ids)))
    assert receipt.outputs == (made.id,)
    assert receipt.bytes_before == sum(source.bytes for source in sources)
    assert receipt.bytes_after == made.bytes
    assert receipt.fingerprint_before == receipt.fingerprint_after == str(made.fingerprint)
    record = block_store.job(JOB)
    assert record is not None
    assert record.state is IndexJobState.COMMITTED
    assert Proof.from_json(record.receipt or "") == Proof(receipt)
    check(block_store.index)
    assert orphans(block_store) == ()
    assert_tidy(block_store)


def test_what_is_made_can_be_described_from_its_footer_alone(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """After the loss of the index; two levels, so that something is an ancestor."""
    ids = fill(block_store, range(4))
    for number, name in ((0, "low-1"), (2, "low-2")):
        low = job_of(connection, sorted(ids)[number : number + 2], name=name)
        claim(block_store, low, 1)
        assert run(connection, low, engine).outcome is ReportOutcome.SUCCEEDED
    middle = [block.id for block in block_store.live().blocks]
    job = job_of(connection, middle, level=2)
    claim(block_store, job, 7)
    assert run(connection, job, engine, token=7).outcome is ReportOutcome.SUCCEEDED
    (made,) = block_store.live().blocks
    said = decode(read_footer(block_store.objects, made.path).metadata)
    assert (said.id, said.tenant, said.shard, said.level, said.time_column) == (made.id, "acme", 0, 2, "time")
    assert (said.fingerprint, said.sort_key) == (made.fingerprint, KEY)
    assert (said.job, said.token, said.part, said.parts, said.outputs) == (JOB, 7, 0, 1, (made.id,))
    assert said.sources == tuple(sorted(middle))
    assert set(said.ancestors) == set(ids)
    assert block_store.describe(made.path, tenant="acme", shard=0, level=2, verify=True) == made


def test_sources_of_more_bytes_become_several_blocks(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = fill(block_store, range(6))
    before = content(block_store)
    size = sum(block.bytes for block in block_store.live().blocks)
    job = job_of(connection, ids, part_bytes=size // 3 + 1)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert report.outcome is ReportOutcome.SUCCEEDED
    made = block_store.live().blocks
    assert len(made) == 3
    assert content(block_store) == before
    assert report.receipt is not None
    assert {block.id for block in made} == set(report.receipt.outputs)
    times = sorted((block.min_time, block.max_time) for block in made)
    assert all(item[1] < other[0] for item, other in pairwise(times)), "cut by the key"
    said = [decode(read_footer(block_store.objects, block.path).metadata) for block in made]
    assert {item.outputs for item in said} == {tuple(item.id for item in sorted(said, key=lambda item: item.part))}
    assert orphans(block_store) == ()


def test_of_rows_with_the_same_key_the_last_stays(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    old, new = rows(100), rows(100)
    new = new.set_column(2, "value", pa.array(range(1000, 1100), pa.int32()))
    paths = [upload(block_store, number, table=table) for number, table in enumerate((old, new))]
    ids = block_store.register(paths, tenant="acme", shard=0).new
    job = job_of(connection, ids, deduplicate_by=("time", "service"))
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert report.outcome is ReportOutcome.SUCCEEDED
    (made,) = block_store.live().blocks
    assert read(block_store, made.path).column("value").to_pylist() == list(range(1000, 1100))
    assert made.sort_key == KEY
    receipt = report.receipt
    assert receipt is not None
    assert receipt.fingerprint_before != receipt.fingerprint_after == str(made.fingerprint)
    assert (receipt.records, receipt.duplicates, BLOCKS.proves_equal(receipt)) == (100, 100, True)
    assert report.message.startswith("2 blocks merged into 1, 100 duplicates left out, such as (s0000, 1970-01-01 ")
    assert run(connection, job, engine) == report, "kept with the receipt"


def test_overlapping_duplicate_and_empty_blocks(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """Rows that are there twice stay twice; a block without rows adds none."""
    tables = [rows(100), rows(100), rows(100, start=50), rows(0)]
    paths = [upload(block_store, number, table=table) for number, table in enumerate(tables)]
    ids = block_store.register(paths, tenant="acme", shard=0, time_column="time").new
    before = content(block_store)
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    assert run(connection, job, engine).outcome is ReportOutcome.SUCCEEDED
    assert content(block_store) == before
    assert len(block_store.live().blocks) == 1


def test_empty_blocks_only_become_none(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    paths = [upload(block_store, number, table=rows(0)) for number in range(2)]
    ids = block_store.register(paths, tenant="acme", shard=0, time_column="time").new
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.outcome, report.message) == (ReportOutcome.SUCCEEDED, "2 blocks without rows dropped")
    assert block_store.live().blocks == ()
    assert_tidy(block_store)


def test_block_of_more_bytes_than_memory(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    table = pa.concat_tables([rows(400_000)] * 3)
    table = table.append_column("text", padded(table.num_rows, 60))
    path = upload(block_store, 1, table=table, row_group_size=50_000, compression="none", use_dictionary=False)
    ids = block_store.register([path], tenant="acme", shard=0).new
    memory = 32 * MEBIBYTE
    assert block_store.live().blocks[0].bytes > 2 * memory
    job = job_of(connection, ids, memory_bytes=memory)
    claim(block_store, job, 1)
    assert run(connection, job, engine).outcome is ReportOutcome.SUCCEEDED
    assert block_store.live().blocks[0].rows == table.num_rows


def test_blocks_that_no_sort_order_is_known_of(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """They are sorted by time; of several columns of times, the one that was named at the registration."""
    for name, other in (("one", "seen"), ("two", "zeen")):
        table = rows(50).append_column(other, pa.array(range(90, 40, -1), pa.timestamp("us")))
        path = upload(block_store, 10 if name == "one" else 11, table=table)
        data = pa.BufferReader(block_store.objects.get(path))
        plain = pa.parquet.read_table(data)
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(plain, sink)
        block_store.objects.put(path, sink.getvalue().to_pybytes())
        (block,) = block_store.register([path], tenant="acme", shard=0, time_column=other).new
        job = job_of(connection, [block], name=f"job-{name}")
        claim(block_store, job, 1)
        assert run(connection, job, engine).outcome is ReportOutcome.SUCCEEDED
        made = next(block for block in block_store.live().blocks if block.level == 1 and block.sort_key == (other,))
        assert (made.min_time, made.max_time) == (41, 90)


def test_commit_whose_answer_and_lease_are_lost_is_not_cleaned_away(
    connection: BlockStoreConnection,
    block_store: BlockStore,
    engine: ThreadEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker believes that nothing came of it; what it deletes is decided by the index."""
    ids = fill(block_store, range(3))
    before = content(block_store)
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    lease = FakeLease()

    def replace_silently(self: BlockStore, result: BlockReplacement) -> None:
        replace(self.index, result, clock=self.now)
        lease.lose_at = 0
        raise DatabaseUnavailableError("index", "no answer, as the test wants it")

    with monkeypatch.context() as patch:
        patch.setattr(BlockStore, "replace", replace_silently)
        with pytest.raises(LeaseLostError):
            run(connection, job, engine, lease=lease)
    assert content(block_store) == before
    assert len(block_store.live().blocks) == 1
    report = run(connection, job, engine, token=2)
    assert report.outcome is ReportOutcome.SUCCEEDED
    assert report.receipt is not None
    assert report.receipt.token == 1
    assert_tidy(block_store)


def test_receipt_that_nobody_can_read_any_more(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """Another version wrote it: the job is done all the same."""
    for number, receipt in enumerate(["{}", "[]", "no JSON", '{"receipt": {"token": 0}, "skipped": []}'], start=1):
        name = f"job-{number}"
        ids = tuple(sorted(fill(block_store, [10 * number])))
        job = job_of(connection, ids, name=name)
        claim(block_store, job, 2)
        block_store.replace(BlockReplacement(name, 2, (), (), receipt, skipped={ids[0]: Fault("Test", "as committed")}))
        report = run(connection, job, engine, token=3)
        assert (report.outcome, report.receipt) == (
            ReportOutcome.SUCCEEDED,
            JobReceipt(token=2, worker="", sources=ids),
        )


def test_blocks_that_have_skipped_a_level(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """Sources of levels 0 and 1 become one of level 2."""
    ids = fill(block_store, range(4))
    before = content(block_store)
    low = job_of(connection, sorted(ids)[:2], name="low")
    claim(block_store, low, 1)
    assert run(connection, low, engine).outcome is ReportOutcome.SUCCEEDED
    job = job_of(connection, [block.id for block in block_store.live().blocks], level=2)
    claim(block_store, job, 1)
    assert run(connection, job, engine).outcome is ReportOutcome.SUCCEEDED
    (made,) = block_store.live().blocks
    assert (made.level, made.rows) == (2, 400)
    assert content(block_store) == before


def test_retention_during_the_merge(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """Rows that have expired do not come back; the others wait for another job."""
    ids = fill(block_store, range(3))
    job = job_of(connection, ids)
    claim(block_store, job, 1)

    class Late(FakeLease):
        def ensure_held(self) -> None:
            super().ensure_held()
            if orphans(block_store) and len(block_store.live().blocks) == 3:
                expire(block_store.index, RetentionPeriods(default=1), clock=block_store.now, limit=1)

    report = run(connection, job, engine, lease=Late())
    assert (report.outcome, report.reason) == (ReportOutcome.SKIPPED, JobReason.SOURCES_CHANGED)
    assert len(block_store.live().blocks) == 2
    assert orphans(block_store) == ()
    again = run(connection, job, engine)
    assert again.reason == JobReason.SOURCES_CHANGED, "known before anything is merged"


def test_job_that_is_not_what_was_claimed(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = fill(block_store, range(4))
    claim(block_store, job_of(connection, ids[:3]), 1)
    for job in (job_of(connection, ids), job_of(connection, ids[:3], level=2), job_of(connection, ids, name="other")):
        report = run(connection, job, engine)
        assert report.reason == JobReason.SOURCES_CHANGED
    assert len(block_store.live().blocks) == 4


def test_limit_of_bytes_is_kept(
    connection: BlockStoreConnection,
    block_store: BlockStore,
    engine: ThreadEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything that goes to or comes from the store is paid for."""
    paid: list[int] = []

    def wait_for(secret: bytes, count: int) -> float:
        paid.append(count)
        return 0.0

    monkeypatch.setattr(budget_of(engine), "wait_for", wait_for)
    ids = fill(block_store, range(3))
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    report = run(connection, job, engine, bytes_per_second=20)
    assert report.outcome is ReportOutcome.SUCCEEDED
    receipt = report.receipt
    assert receipt is not None
    assert sum(paid) >= 0.5 * (receipt.bytes_before + 2 * receipt.bytes_after)
