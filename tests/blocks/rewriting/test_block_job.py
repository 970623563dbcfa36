"""From the spec of a BlockRewrite job to what is merged, and who runs which kind of job."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJob, CompactionJobSpec
from compaction.api.job.job_status import ReportOutcome
from compaction.api.policy.segment_logs import SEGMENT_REWRITE
from compaction.blocks.errors import SortKeyError
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.merge.footers import MergeSettings
from compaction.blocks.model import Block, RowFingerprint
from compaction.blocks.rewriting.merging import BlockMerge, merge_blocks, order_in_words, sort_key
from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.errors import InvalidAssignmentError
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.storage.objects.store import ObjectStorage, open_objects
from compaction.storage.secrets import DirectorySecrets, GivenSecrets, write_secrets
from compaction.worker import tasks
from compaction.worker.attempt import RunnerOfAllKinds
from compaction.worker.errors import LeaseLostError
from compaction.worker.tasks import ObjectsPlace, objects_place
from support.blocks.block_stores import a_block, fill
from support.blocks.blocks import claim, job_of, parquet_of, secrets_of
from support.cluster.manifests import BLOCK_1, BLOCK_2, block_job_object, block_store
from support.processes.worker_ports import FakeLease, ThreadEngine, assignment, small_spec


def spec_of(**spec: Any) -> CompactionJobSpec:
    return CompactionJob.model_validate(block_job_object(**spec)).spec


def test_a_spec_in_the_words_of_blocks() -> None:
    spec = spec_of(
        level=2, parameters={"blocks": {"memoryBytes": 1 << 25, "sortKey": ["c", "d"], "deduplicateBy": ["b", "a"]}}
    )
    job = BlockJob.of(spec, name="job")
    assert (job.tenant, job.shard, job.level, job.blocks) == ("t", 0, 3, (BLOCK_1, BLOCK_2))
    assert (job.memory_bytes, job.sort_key, job.deduplicate_by) == (1 << 25, ("c", "d"), ("b", "a"))
    assert (job.store.url, job.store.index.secret_name) == (block_store()["url"], "index")


@pytest.mark.parametrize(
    "parameters", [{"memoryBytes": 1000}, {"deduplicateBy": ["a", "b", "a"]}, {"sortKey": ["a", "a"]}]
)
def test_a_spec_that_nobody_can_carry_out(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidAssignmentError, match="job job: "):
        BlockJob.of(spec_of(parameters={"blocks": parameters}), name="job")


def test_another_kind_is_no_job_of_blocks() -> None:
    with pytest.raises(InvalidAssignmentError):
        BlockJob.of(small_spec(), name="job")


def test_each_kind_has_its_runner(
    connection: BlockStoreConnection,
    block_store: BlockStore,
    engine: ThreadEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = fill(block_store, range(3))
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    runner = RunnerOfAllKinds(engine, holder="w", secrets=secrets_of(connection))
    document = block_job_object(
        sources={
            "blocks": {
                "store": job.store.to_object(),
                "tenant": "acme",
                "shard": 0,
                "batch": f"acme/0/L0/{min(ids)}",
                "blocks": sorted(ids),
            }
        }
    )
    spec = CompactionJob.model_validate(document).spec
    report = runner.run(assignment(spec, job=job.name), FakeLease())
    assert (report.outcome, report.message) == (ReportOutcome.SUCCEEDED, "3 blocks merged into 1")

    ran: list[str] = []
    monkeypatch.setattr(SegmentRewriter, "run", lambda self, given, lease: ran.append(given.spec.kind))
    runner.run(assignment(small_spec()), FakeLease())
    assert ran == [SEGMENT_REWRITE]


def test_without_its_secrets_nothing_is_begun(connection: BlockStoreConnection, engine: ThreadEngine) -> None:
    runner = RunnerOfAllKinds(engine, holder="w", secrets=GivenSecrets({}, "the test"))
    report = runner.run(assignment(spec_of()), FakeLease())
    assert (report.outcome, report.reason) == (ReportOutcome.FAILED, JobReason.STORE_UNREADABLE)
    assert "index" in report.message


def test_credentials_do_not_travel_where_tasks_can_read_them(tmp_path: Path) -> None:
    write_secrets(tmp_path, {"lake": {"access_key_id": "hush-hush"}, "index": {"url": "sqlite:///x"}})
    reference = BlockJob.of(spec_of(), name="job").store.model_copy(update={"credentials_secret_name": "lake"})
    mounted = objects_place(reference.url, reference.credentials_secret_name, DirectorySecrets(str(tmp_path)))
    given = objects_place(
        reference.url,
        reference.credentials_secret_name,
        GivenSecrets({"lake": {"access_key_id": "hush-hush"}}, "the test"),
    )
    assert "hush" not in f"{mounted!r}{given!r}"
    assert mounted.options != given.options == {"access_key_id": "hush-hush"}
    assert mounted.options.options() == given.options  # type: ignore[union-attr]


BY_TIME = a_block(1, sort_key=("time",), bytes=10)
BY_SERVICE = a_block(2, sort_key=("service", "time"), bytes=9)
BY_NOTHING = a_block(3, sort_key=(), bytes=1000)


def test_the_order_is_that_of_most_bytes() -> None:
    assert sort_key([BY_TIME, BY_SERVICE, BY_NOTHING]) == ("time",)
    assert sort_key([BY_SERVICE, BY_TIME, BY_SERVICE]) == ("service", "time")
    assert sort_key([BY_NOTHING], time_column="time") == ("time",)
    with pytest.raises(SortKeyError):
        sort_key([BY_NOTHING])


def test_the_order_is_what_the_policy_wants() -> None:
    assert sort_key([BY_TIME, BY_SERVICE], wanted=("service", "time")) == ("service", "time")
    assert sort_key([BY_NOTHING], wanted=("service",), time_column="time") == ("service",)
    assert sort_key([BY_TIME], wanted=("service", "time"), deduplicate_by=("time", "service")) == ("service", "time")
    assert sort_key([BY_SERVICE], wanted=("service",), deduplicate_by=("time",)) == ("time",)


PARAMETERS: tuple[dict[str, Any], ...] = ({}, {"sortKey": ["service"]}, {"deduplicateBy": ["id"]})


def test_an_order_that_is_lost_is_told_with_who_chose_the_other() -> None:
    blocks = [BY_TIME, BY_SERVICE, BY_NOTHING]
    plain, wanted, one = (BlockJob.of(spec_of(parameters={"blocks": more}), name="job") for more in PARAMETERS)
    told = "sorted by time, as most of its bytes were (1 block had another order)"
    assert order_in_words(blocks, ("time",), job=plain) == told
    assert order_in_words([BY_SERVICE, BY_NOTHING], ("service",), job=wanted) == "", "it is in this order too"
    told = "sorted by service, as sortKey says (1 block had another order)"
    assert order_in_words(blocks, ("service",), job=wanted) == told
    told = "sorted by id, as deduplicate needs it (2 blocks had another order)"
    assert order_in_words(blocks, ("id",), job=one) == told


def test_the_order_brings_rows_of_one_key_together() -> None:
    assert sort_key([BY_SERVICE], deduplicate_by=("time", "service")) == ("service", "time")
    assert sort_key([BY_SERVICE], deduplicate_by=("service",)) == ("service",)
    assert sort_key([BY_SERVICE], deduplicate_by=("time",)) == ("time",)
    assert sort_key([BY_NOTHING], deduplicate_by=("id", "time")) == ("id", "time")


# A merge of blocks through an engine: ranges as tasks, uploads, proof, and what becomes of failures.

KEY = ("service", "time")


@pytest.fixture
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine()
    yield engine
    engine.close()


def rows(seed: int, count: int = 3_000) -> pa.Table:
    random = np.random.default_rng(seed)
    table = pa.table(
        {
            "service": pa.array([f"s{n:02d}" for n in random.integers(0, 40, count).tolist()]),
            "time": pa.array(random.integers(0, 1000, count)),
            "value": pa.array(random.normal(size=count)),
        }
    )
    return table.sort_by([(name, "ascending") for name in KEY])


def stored(objects: ObjectStorage, name: str, table: pa.Table) -> Block:
    """The table as a block of the store."""
    data = parquet_of(table, key=KEY, row_group_size=300)
    path = f"tenant/0/{name}.parquet"
    objects.put(path, data)
    return Block(name, "tenant", 0, 0, path, 0, 1, table.num_rows, len(data), fingerprint(table), KEY, "schema")


def work_of(root: Path, *, outputs: int, count: int = 4) -> tuple[BlockMerge, ObjectStorage, pa.Table]:
    url = root.as_uri()
    objects = open_objects(url)
    tables = [rows(seed) for seed in range(count)]
    sources = tuple(stored(objects, f"in{n}", table) for n, table in enumerate(tables))
    paths = tuple(f"tenant/0/out{n}.parquet" for n in range(outputs))
    settings = MergeSettings(sort_key=KEY, scratch=root)
    work = BlockMerge(name="job", store=ObjectsPlace(url), sources=sources, outputs=paths, settings=settings)
    return work, objects, pa.concat_tables(tables)


@pytest.mark.parametrize("outputs", [1, 3])
def test_outputs_hold_the_rows_in_order(outputs: int, tmp_path: Path, engine: ThreadEngine) -> None:
    work, objects, whole = work_of(tmp_path, outputs=outputs)
    outcome = merge_blocks(work, engine, FakeLease(), tag="job.1")
    assert outcome.succeeded
    assert [part.output for part in outcome.parts] == list(work.outputs)
    read = pa.concat_tables(pq.read_table(io.BytesIO(objects.get(part.output))) for part in outcome.parts)
    order = [(name, "ascending") for name in KEY]
    assert read.select(KEY).equals(whole.sort_by(order).select(KEY))
    assert fingerprint(read) == fingerprint(whole)


@pytest.mark.parametrize("outputs", [1, 3])
def test_progress_moves_within_a_task(
    outputs: int, tmp_path: Path, engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TELL_SECONDS", 0.0)
    work, _, _ = work_of(tmp_path, outputs=outputs)
    steps: list[float] = []
    assert merge_blocks(work, engine, FakeLease(), tag="job.1", done=steps.append).succeeded
    assert sum(steps) == pytest.approx(1.0)
    assert len(steps) > 3 * outputs


def test_damaged_source_is_named_and_nothing_succeeds(tmp_path: Path, engine: ThreadEngine) -> None:
    work, objects, _ = work_of(tmp_path, outputs=1)
    culprit = work.sources[2]
    objects.put(culprit.path, objects.get(culprit.path)[:-50])
    outcome = merge_blocks(work, engine, FakeLease(), tag="job.1")
    assert [(failure.reason, failure.source) for failure in outcome.failures] == [
        (JobReason.SOURCE_CORRUPT, culprit.path)
    ]
    assert not outcome.succeeded


def test_source_that_is_not_what_was_registered_fails_the_proof(tmp_path: Path, engine: ThreadEngine) -> None:
    work, _, _ = work_of(tmp_path, outputs=2)
    other = replace(work.sources[0], fingerprint=RowFingerprint(work.sources[0].rows, 7))
    for outputs in (work.outputs, work.outputs[:1]):
        changed = replace(work, sources=(other, *work.sources[1:]), outputs=outputs)
        outcome = merge_blocks(changed, engine, FakeLease(), tag="job.1")
        assert [failure.reason for failure in outcome.failures] == [JobReason.VERIFICATION_FAILED]


def test_source_that_is_not_sorted_as_it_says_is_sorted_first(tmp_path: Path, engine: ThreadEngine) -> None:
    work, objects, whole = work_of(tmp_path, outputs=1)
    shuffled = rows(3).take(np.random.default_rng(9).permutation(3_000))
    objects.put(work.sources[3].path, parquet_of(shuffled, key=KEY))
    outcome = merge_blocks(work, engine, FakeLease(), tag="job.1")
    assert outcome.succeeded
    assert outcome.parts[0].result.sorted_first == (work.sources[3].path,)
    assert outcome.parts[0].result.written == fingerprint(whole)


def test_a_lost_lease_stops_it(tmp_path: Path, engine: ThreadEngine) -> None:
    work, _, _ = work_of(tmp_path, outputs=3)
    with pytest.raises(LeaseLostError):
        merge_blocks(work, engine, FakeLease(lose_at=1), tag="job.1")
    assert not list(tmp_path.glob("block-*"))
