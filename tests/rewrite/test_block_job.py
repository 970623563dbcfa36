"""From the spec of a BlockRewrite job to what is merged, and who runs which kind of job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJob, CompactionJobSpec
from compaction.api.job.job_status import ReportOutcome
from compaction.api.policy.segment_logs import SEGMENT_REWRITE
from compaction.blocks.errors import SortKeyError
from compaction.blocks.rewriting.merging import order_in_words, sort_key
from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.errors import InvalidAssignmentError
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.storage.secrets import DirectorySecrets, GivenSecrets, write_secrets
from compaction.worker.attempt import RunnerOfAllKinds
from compaction.worker.tasks import objects_place
from support.cluster.manifests import BLOCK_1, BLOCK_2, block_job_object, block_store
from support.processes.worker_ports import FakeLease, ThreadEngine, assignment, small_spec
from support.stores.block_index import a_block
from support.stores.block_jobs import claim, job_of, secrets_of
from support.stores.block_stores import fill


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
