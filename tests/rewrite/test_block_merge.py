"""A merge of blocks through an engine: ranges as tasks, uploads, proof, and what becomes of failures."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.api.enums import JobReason
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.merge.footers import MergeSettings
from compaction.blocks.model import Block, RowFingerprint
from compaction.blocks.rewriting.merging import BlockMerge, merge_blocks
from compaction.storage.objects.store import ObjectStorage, open_objects
from compaction.worker import tasks
from compaction.worker.errors import LeaseLostError
from compaction.worker.tasks import ObjectsPlace
from support.processes.worker_ports import FakeLease, ThreadEngine
from support.stores.block_rows import parquet

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
    data = parquet(table, key=KEY, row_group_size=300)
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
    objects.put(work.sources[3].path, parquet(shuffled, key=KEY))
    outcome = merge_blocks(work, engine, FakeLease(), tag="job.1")
    assert outcome.succeeded
    assert outcome.parts[0].result.sorted_first == (work.sources[3].path,)
    assert outcome.parts[0].result.written == fingerprint(whole)


def test_a_lost_lease_stops_it(tmp_path: Path, engine: ThreadEngine) -> None:
    work, _, _ = work_of(tmp_path, outputs=3)
    with pytest.raises(LeaseLostError):
        merge_blocks(work, engine, FakeLease(lose_at=1), tag="job.1")
    assert not list(tmp_path.glob("block-*"))
