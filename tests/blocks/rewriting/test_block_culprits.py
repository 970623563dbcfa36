"""One bad object among twenty: nineteen are compacted, the culprit is set aside and named, and can be tried again."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job_status import ReportOutcome
from compaction.blocks.fingerprint.proof import read_back
from compaction.blocks.format import footer as footer_module
from compaction.blocks.merge import footers as footers_module
from compaction.blocks.merge.kernel import merge
from compaction.blocks.model import Block
from compaction.blocks.reasons import BlockJobReason
from compaction.blocks.rewriting import retrying, task
from compaction.blocks.rewriting.task import Culprit, MergeFailure, SourceFault, of_culprit
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.storage.objects.store import ObjectStorage
from support.blocks.block_stores import check, content, fill, read, upload
from support.blocks.blocks import JOB, MEBIBYTE, assert_tidy, claim, job_of, orphans, padded, parquet, paths, rows, run
from support.processes.worker_ports import ThreadEngine

Break = Callable[[BlockStore, Block], None]


def missing(store: BlockStore, block: Block) -> None:
    assert store.objects.delete([block.path]) == []


def truncated(store: BlockStore, block: Block) -> None:
    store.objects.put(block.path, store.objects.get(block.path)[:-7])


def empty(store: BlockStore, block: Block) -> None:
    store.objects.put(block.path, b"")


def damaged_page(store: BlockStore, block: Block) -> None:
    """One bit of the data, which only whoever reads it sees."""
    data = bytearray(store.objects.get(block.path))
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(2)
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 4
    store.objects.put(block.path, bytes(data))


def damaged_footer(store: BlockStore, block: Block) -> None:
    data = store.objects.get(block.path)
    store.objects.put(block.path, data[:-200] + bytes(192) + data[-8:])


def no_parquet(store: BlockStore, block: Block) -> None:
    store.objects.put(block.path, b"x" * block.bytes)


def other_size(store: BlockStore, block: Block) -> None:
    """A sound block, of somebody else's rows."""
    store.objects.put(block.path, parquet(rows(300, start=70_000), sorted_by=["service", "time"]))


def other_rows(store: BlockStore, block: Block) -> None:
    """A sound block with as many rows and bytes, and one other value."""
    table = read(store, block.path)
    for value in range(1000, 2000):
        values = [*table.column("value").to_pylist()[:-1], value]
        data = parquet(table.set_column(2, "value", pa.array(values, pa.int32())), sorted_by=["service", "time"])
        if len(data) == block.bytes:
            store.objects.put(block.path, data)
            return
    raise AssertionError("no value gives a file of this size")


FAULTS: dict[Break, SourceFault] = {
    missing: SourceFault.MISSING,
    truncated: SourceFault.CORRUPT,
    empty: SourceFault.CORRUPT,
    damaged_page: SourceFault.CORRUPT,
    damaged_footer: SourceFault.CORRUPT,
    no_parquet: SourceFault.CORRUPT,
    other_size: SourceFault.FOREIGN,
    other_rows: SourceFault.FOREIGN,
}


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def broken(request: pytest.FixtureRequest) -> Break:
    found: Break = request.param
    return found


@pytest.mark.parametrize(
    ("error", "culprit"),
    [
        (MemoryError(), False),
        (pa.ArrowMemoryError("malloc of size 4096 failed"), False),
        (OSError(errno.EMFILE, "Too many open files"), False),
        (pa.ArrowMemoryError("malloc of size 9223372036854775807 failed"), True),
        (OSError("Couldn't deserialize thrift"), True),
    ],
    ids=str,
)
@pytest.mark.parametrize("module", [footer_module, footers_module, retrying])
def test_what_the_machine_lacks_accuses_no_source(
    module: ModuleType,
    error: Exception,
    culprit: bool,
    block_store: BlockStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the footer, in the rows, and outside of what libraries read."""
    fill(block_store, [1])
    (source,) = block_store.live().blocks
    if module is retrying:
        monkeypatch.setattr(retrying, "read_back", Mock(side_effect=error))
    else:
        monkeypatch.setattr(module, "pq", Mock(ParquetFile=Mock(side_effect=error)))
    found = retrying.run_examination(retrying.ExamineTask(Mock(open=Mock(return_value=block_store.objects)), source))
    assert isinstance(found, MergeFailure)
    assert (found.culprit is not None) == culprit
    assert culprit or (found.reason, found.passing) == (JobReason.STORE_UNREADABLE, False)


def test_nineteen_are_compacted_and_the_culprit_is_named(
    broken: Break, connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = sorted(fill(block_store, range(20)))
    victim = next(block for block in block_store.live().blocks if block.id == ids[11])
    original = block_store.objects.get(victim.path)
    before = content(block_store)
    broken(block_store, victim)
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    report = run(connection, job, engine)

    assert (report.outcome, report.message) == (ReportOutcome.SUCCEEDED, "19 blocks merged into 1, 1 quarantined")
    (skipped,) = report.skipped
    assert (skipped.source, skipped.reason) == (victim.id, FAULTS[broken].value)
    assert victim.path in skipped.message
    assert report.receipt is not None
    assert victim.id not in report.receipt.sources
    (quarantined,) = block_store.quarantined()
    assert (quarantined.block, quarantined.job) == (victim, JOB)
    assert quarantined.fault == (skipped.reason, skipped.message)
    assert orphans(block_store) == ()
    check(block_store.index)

    # It is repaired, and waits again; nothing of it was lost, and nothing of it was merged.
    block_store.objects.put(victim.path, original)
    assert content(block_store) == before
    assert block_store.release(victim.id)
    assert victim.id in {entry.id for entry in block_store.queue().entries}
    assert_tidy(block_store)


@pytest.mark.parametrize("parts", [1, 3])
def test_several_culprits_are_found_after_one_failure(
    parts: int, connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = sorted(fill(block_store, range(8)))
    blocks = {block.id: block for block in block_store.live().blocks}
    size = sum(block.bytes for block in blocks.values())
    faults = {ids[1]: damaged_page, ids[4]: other_rows, ids[5]: missing, ids[7]: damaged_page}
    for victim, fault in faults.items():
        fault(block_store, blocks[victim])
    job = job_of(connection, ids, part_bytes=size // parts + 1)
    claim(block_store, job, 1)
    engine.submitted.clear()
    report = run(connection, job, engine)
    assert report.outcome is ReportOutcome.SUCCEEDED
    assert [item.source for item in report.skipped] == sorted(faults)
    assert [item.reason for item in report.skipped] == [FAULTS[faults[name]].value for name in sorted(faults)]
    assert len({tag for tag in engine.submitted if not tag.endswith("/look")}) == 2, "merged twice, not five times"
    assert orphans(block_store) == ()


def test_row_group_that_no_memory_holds(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    large = rows(200_000).append_column("text", padded(200_000, 90))
    path = upload(block_store, 50, table=large, compression="none", use_dictionary=False)
    (huge,) = block_store.register([path], tenant="acme", shard=0).new
    ids = fill(block_store, range(3))
    job = job_of(connection, [*ids, huge], memory_bytes=16 * MEBIBYTE)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert report.outcome is ReportOutcome.SUCCEEDED
    (skipped,) = report.skipped
    assert (skipped.source, skipped.reason) == (huge, SourceFault.TOO_LARGE.value)
    assert "raise the memory limit" in skipped.message


def test_without_a_sound_source_nothing_is_set_aside(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = fill(block_store, range(3))
    for block in block_store.live().blocks:
        missing(block_store, block)
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.outcome, report.reason, report.charged) == (ReportOutcome.FAILED, JobReason.SOURCE_CORRUPT, True)
    assert [item.source for item in report.skipped] == sorted(ids)
    assert {item.reason for item in report.skipped} == {SourceFault.MISSING.value}
    assert block_store.quarantined() == ()
    assert len(block_store.live().blocks) == 3


def test_result_that_does_not_read_back_is_kept_as_evidence(
    connection: BlockStoreConnection,
    block_store: BlockStore,
    engine: ThreadEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All sources are sound, and yet the output is not what they hold: nothing is committed, and nothing deleted."""
    ids = fill(block_store, range(3))
    before = content(block_store)
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    put, sources = ObjectStorage.put, paths(block_store)

    def spoiling(self: ObjectStorage, path: str, data: Any, **options: bool) -> None:
        put(self, path, parquet(rows(300)) if path not in sources else data, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "put", spoiling)
        report = run(connection, job, engine)
    assert (report.outcome, report.reason, report.charged) == (
        ReportOutcome.FAILED,
        JobReason.VERIFICATION_FAILED,
        True,
    )
    (evidence,) = orphans(block_store)
    assert evidence in report.message
    assert content(block_store) == before
    assert block_store.quarantined() == ()
    block_store.retire(JOB)
    assert_tidy(block_store)


def test_columns_that_cannot_be_merged_are_refused(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = list(fill(block_store, range(2)))
    table = rows(100, start=900).set_column(2, "value", pa.array(["x"] * 100))
    ids += block_store.register([upload(block_store, 9, table=table)], tenant="acme", shard=0).new
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.outcome, report.reason) == (ReportOutcome.FAILED, BlockJobReason.SOURCES_DIFFER)
    assert "column value" in report.message
    assert orphans(block_store) == ()


def test_deduplication_by_columns_that_are_not_there_is_refused(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    job = job_of(connection, fill(block_store, range(2)), deduplicate_by=("nothing",))
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.reason, "nothing" in report.message) == (JobReason.INVALID_JOB, True)


def test_culprits_of_an_attempt_that_fails_for_another_reason_are_found_again(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """Nothing was set aside by it, so its report names none."""
    ids = fill(block_store, range(3))
    missing(block_store, block_store.live().blocks[0])
    job = job_of(connection, ids, deduplicate_by=("nothing",))
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.reason, report.skipped) == (JobReason.INVALID_JOB, ())
    assert block_store.quarantined() == ()
    claim(block_store, job, 2)
    again = run(connection, replace(job, deduplicate_by=()), engine, token=2)
    assert (again.outcome, len(again.skipped), len(block_store.quarantined())) == (ReportOutcome.SUCCEEDED, 1, 1)


def test_a_source_that_does_not_fit_into_memory_is_not_called_corrupt() -> None:
    assert of_culprit(Culprit("a", SourceFault.TOO_LARGE, "large")).reason == BlockJobReason.MEMORY_TOO_SMALL
    assert of_culprit(Culprit("a", SourceFault.MISSING, "gone")).reason == JobReason.SOURCE_CORRUPT


def test_a_source_on_which_the_code_fails_keeps_no_other_from_being_merged(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a library's bug would make it: by an exception that nothing expects."""
    ids = sorted(fill(block_store, range(4)))
    victim = next(block for block in block_store.live().blocks if block.id == ids[2])

    def merging(inputs: Any, *args: Any, **known: Any) -> Any:
        return [][3] if victim.path in [item.name for item in inputs] else merge(inputs, *args, **known)

    def reading(path: str, *args: Any, **known: Any) -> Any:
        return [][3] if path == victim.path else read_back(path, *args, **known)

    monkeypatch.setattr(task, "merge", merging)
    monkeypatch.setattr(retrying, "read_back", reading)
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.outcome, report.message) == (ReportOutcome.SUCCEEDED, "3 blocks merged into 1, 1 quarantined")
    (skipped,) = report.skipped
    assert (skipped.source, skipped.reason) == (victim.id, SourceFault.CORRUPT.value)
    assert "an unexpected IndexError at blocks/rewriting/retrying.py:" in skipped.message


def test_a_defect_that_no_source_shows_by_itself_fails_the_job_by_name(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(block_store, range(3))
    monkeypatch.setattr(task, "merge", lambda *args, **known: [][3])
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.outcome, report.reason) == (ReportOutcome.FAILED, JobReason.INTERNAL_ERROR)
    assert "an unexpected IndexError at blocks/rewriting/task.py:" in report.message
    assert block_store.quarantined() == ()
