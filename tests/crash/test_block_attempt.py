"""Death of a worker, and answers that get lost, at every step of an attempt at blocks: every statement and commit of
the index, every request to the object store.

Whatever the step: readers see the same rows before and after; the next attempt, with a larger token, ends the job once;
and when the coordinator has cleaned up, the objects are those of the live blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.report import Outcome
from compaction.exceptions import BlockClaimError
from compaction.rewrite.blocks.job import BlockJob
from compaction.stores.blocks.index.listing import BlockFilter
from compaction.stores.blocks.index.tables import JobState
from compaction.stores.blocks.store import BlockStore, BlockStoreConnection
from crash.mortal_worker import Mortal, attempt, prepared
from support.depth import each_call
from support.faults.index_faults import Death, Fault, When, interruptions
from support.processes.worker_ports import ThreadEngine
from support.stores.block_index import check
from support.stores.block_jobs import assert_tidy, claim, orphans, run
from support.stores.block_stores import content


@pytest.fixture
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine()
    yield engine
    engine.close()


def steps(connection: BlockStoreConnection, store: BlockStore, engine: ThreadEngine) -> list[str]:
    """The calls of an attempt that nothing happens to."""
    undisturbed = Mortal(store.index)
    report = attempt(connection, prepared(connection, store, 0), engine, undisturbed)
    assert report.outcome is Outcome.SUCCEEDED
    assert undisturbed.calls.count("COMMIT") == 3
    assert undisturbed.calls.count("objects put") == 1
    return undisturbed.calls


def finish(connection: BlockStoreConnection, store: BlockStore, job: BlockJob, engine: ThreadEngine) -> None:
    """What the coordinator and the next worker do."""
    try:
        claim(store, job, 2)
    except BlockClaimError:
        record = store.job(job.name)
        assert record is not None
        assert record.state is JobState.COMMITTED
    report = run(connection, job, engine, token=2)
    assert report.outcome is Outcome.SUCCEEDED
    assert report.receipt is not None
    assert report.receipt.sources == job.blocks
    assert [block.id for block in store.live(BlockFilter(tenant=job.tenant)).blocks] == list(report.receipt.outputs)


def test_death_at_every_step(connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine) -> None:
    for turn, (at, when, name) in enumerate(interruptions(steps(connection, block_store, engine)), start=1):
        where = f"{when.value} call {at}, {name}"
        job = prepared(connection, block_store, turn)
        mine = BlockFilter(tenant=job.tenant)
        before = content(block_store, mine)
        doomed = BlockStore.open(connection)
        with pytest.raises(Death):
            attempt(connection, job, engine, Mortal(doomed.index, at=at, when=when))
        doomed.close()
        check(block_store.index)
        assert content(block_store, mine) == before, where
        finish(connection, block_store, job, engine)
        assert content(block_store, mine) == before, where
    check(block_store.index)
    assert_tidy(block_store)


def test_answer_that_is_lost_at_every_step(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """Of the index nobody even notices; of the store, after all its retries, the attempt may fail, uncharged."""
    calls = steps(connection, block_store, engine)
    for at in each_call(calls):
        name = calls[at]
        job = prepared(connection, block_store, at + 1)
        mine = BlockFilter(tenant=job.tenant)
        before = content(block_store, mine)
        store = BlockStore.open(connection)
        report = attempt(connection, job, engine, Mortal(store.index, at=at, when=When.AFTER, fault=Fault.LOST))
        store.close()
        if name.startswith("objects"):
            assert report.outcome is Outcome.SUCCEEDED or report.reason == JobReason.STORE_UNREADABLE, name
            assert report.outcome is Outcome.SUCCEEDED or not report.charged, name
        else:
            assert report.outcome is Outcome.SUCCEEDED, name
        assert content(block_store, mine) == before, name
        assert orphans(block_store) == (), name
        finish(connection, block_store, job, engine)
        assert content(block_store, mine) == before, name
    check(block_store.index)
    assert_tidy(block_store)
