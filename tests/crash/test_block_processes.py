"""Workers of blocks as real processes: killed, stopped and woken too late; and many that race for one job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job_status import ReportOutcome
from compaction.blocks.errors import BlockClaimError
from compaction.blocks.index.claims import IndexRefusal
from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.store import BlockStore, BlockStoreConnection
from crash.block_worker import exit_codes, order, start
from crash.mortal_worker import Mortal, attempt
from support.faults.index_faults import When
from support.processes.worker_ports import ThreadEngine
from support.stores.block_index import check
from support.stores.block_jobs import assert_tidy, claim, job_of, orphans, run
from support.stores.block_stores import content, fill


def prepared(connection: BlockStoreConnection, store: BlockStore, number: int) -> BlockJob:
    """A job over two blocks of a tenant of its own, claimed with token 1."""
    tenant = f"tenant-{number}"
    ids = fill(store, [10 * number, 10 * number + 1], tenant=tenant)
    job = job_of(connection, ids, name=f"job-{number}", tenant=tenant)
    claim(store, job, 1)
    return job


@pytest.fixture
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine()
    yield engine
    engine.close()


@pytest.fixture
def calls(connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine) -> list[str]:
    """The steps of an attempt at two blocks."""
    counting = Mortal(block_store.index)
    assert (
        attempt(connection, prepared(connection, block_store, 0), engine, counting).outcome is ReportOutcome.SUCCEEDED
    )
    return counting.calls


def moments(calls: list[str]) -> list[tuple[int, When]]:
    """Where it is killed: while it reads, before and after its upload, in the commit, before and after its end."""
    put, commit = calls.index("objects put"), len(calls) - 1
    assert calls[commit] == "COMMIT"
    change = next(number for number, name in enumerate(calls) if name.startswith("UPDATE block_index"))
    return [
        (put // 2, When.BEFORE),
        (put, When.BEFORE),
        (put, When.AFTER),
        (change + 3, When.AFTER),
        (commit, When.BEFORE),
        (commit, When.AFTER),
    ]


def test_a_killed_worker_is_followed_by_one_that_ends_the_job(
    calls: list[str], connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    killed = moments(calls)
    jobs = [prepared(connection, block_store, number) for number in range(1, len(killed) + 1)]
    before = content(block_store)
    orders = [
        order(connection, job, at=at, when=when, sent=signal.SIGKILL)
        for job, (at, when) in zip(jobs, killed, strict=True)
    ]
    assert exit_codes(*orders) == [-signal.SIGKILL] * len(orders)
    check(block_store.index)
    assert content(block_store) == before
    committed = []
    for job in jobs:
        try:
            claim(block_store, job, 2)
        except BlockClaimError:
            committed.append(job)
        report = run(connection, job, engine, token=2)
        assert report.outcome is ReportOutcome.SUCCEEDED
        assert report.receipt is not None
        assert report.receipt.token == (1 if job in committed else 2)
        assert content(block_store) == before
    assert committed == [jobs[-1]], "only the last one was killed after its commit"
    assert_tidy(block_store)


def test_a_worker_that_slept_over_its_upload_changes_nothing(
    calls: list[str], connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """It is stopped when it is about to upload; its successor commits, and what that made is compacted further. Then it
    wakes, uploads, and wants to commit.
    """
    job = prepared(connection, block_store, 1)
    before = content(block_store)
    asleep = order(connection, job, at=calls.index("objects put"), when=When.BEFORE, sent=signal.SIGSTOP)
    with start(asleep) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        claim(block_store, job, 2)
        second = run(connection, job, engine, token=2)
        assert second.outcome is ReportOutcome.SUCCEEDED
        (made,) = [block for block in block_store.live().blocks if block.tenant == job.tenant]
        unchanged = block_store.objects.head(made.path)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        told = json.loads(process.stdout.read().splitlines()[-1])
    assert (told["outcome"], told["reason"], told["charged"]) == ("Failed", JobReason.STALE_TOKEN.value, False)
    assert block_store.objects.head(made.path) == unchanged, "not even written again"
    assert content(block_store) == before
    assert orphans(block_store) == ()
    assert_tidy(block_store)


def test_two_coordinators_cannot_give_one_block_to_two_jobs(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = sorted(fill(block_store, range(5)))
    before = content(block_store)
    one, other = job_of(connection, ids[:3], name="one"), job_of(connection, ids[2:], name="other")
    claim(block_store, one, 1)
    with pytest.raises(BlockClaimError) as refused:
        claim(block_store, other, 1)
    assert refused.value.reason == IndexRefusal.SOURCE_CLAIMED
    assert run(connection, other, engine).reason == JobReason.SOURCES_CHANGED
    assert run(connection, one, engine).outcome is ReportOutcome.SUCCEEDED
    assert content(block_store) == before
    assert len(block_store.live().blocks) == 3
