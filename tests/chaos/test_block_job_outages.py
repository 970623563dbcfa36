"""Servers that stumble or are away while a job of blocks runs: it goes on, or ends uncharged and the next attempt does
it; the rows are the same at every moment, and nothing is left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from chaos.commit_proxy import CommitProxy, Cut
from compaction.api.enums import JobReason
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.blocks.rewriting.rewriter import COMMIT_PATIENCE, BlockAttempt
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.worker.tasks import objects_place
from support.blocks.block_stores import check, content, empty_postgres, fill
from support.blocks.blocks import assert_tidy, claim, job_of, orphans, run, secrets_of
from support.faults.proxies import Fault, FaultProxy
from support.object_stores import S3
from support.processes.worker_ports import FakeLease, ThreadEngine
from tools.servers.postgres import PostgresServer

ALL = 1 << 20
PASSING = [Fault.BUSY, Fault.BUSY_AFTER, Fault.RESET, Fault.RESET_AFTER, Fault.SILENT_AFTER, Fault.TRUNCATED]


@pytest.fixture
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine()
    yield engine
    engine.close()


@dataclass
class Stack:
    """PostgreSQL and S3: `direct` for the test, `remote` for the worker, whose every byte goes through the proxies."""

    direct: BlockStoreConnection
    remote: BlockStoreConnection
    store: BlockStore
    objects: FaultProxy
    index: CommitProxy


@pytest.fixture
def stack(s3: S3, postgres: PostgresServer, postgres_index: str) -> Iterator[Stack]:
    empty_postgres(postgres, postgres_index)
    direct = BlockStoreConnection(f"{s3.bucket()}/blocks", postgres.url(postgres_index), s3.gateway.options())
    store = BlockStore.open(direct)
    with CommitProxy(postgres.socket_file) as index, FaultProxy(("127.0.0.1", s3.gateway.port)) as objects:
        options = s3.gateway.options(endpoint=objects.endpoint) | {"read_timeout": "1s"}
        url = postgres.url(postgres_index, host="127.0.0.1", port=index.port)
        remote = replace(direct, index_url=url, options=options)
        yield Stack(direct, remote, store, objects, index)
    store.close()


@pytest.mark.parametrize("fault", PASSING)
def test_requests_that_stumble(stack: Stack, engine: ThreadEngine, fault: Fault) -> None:
    """One of each kind."""
    ids = fill(stack.store, range(3))
    before = content(stack.store)
    job = job_of(stack.remote, ids)
    claim(stack.store, job, 1)
    for method in ("PUT", "GET", "HEAD"):
        stack.objects.plan(fault, method=method)
    assert run(stack.remote, job, engine).outcome is ReportOutcome.SUCCEEDED
    assert content(stack.store) == before
    assert orphans(stack.store) == ()


def test_a_store_that_stays_busy_is_not_the_jobs_fault(stack: Stack, engine: ThreadEngine) -> None:
    """Reads go on for a while, then nothing is taken any more; the upload may even have happened."""
    ids = fill(stack.store, range(3))
    before = content(stack.store)
    job = job_of(stack.remote, ids)
    for token, (fault, method) in enumerate([(Fault.BUSY, "GET"), (Fault.BUSY_AFTER, "PUT")], start=1):
        claim(stack.store, job, token)
        stack.objects.plan(fault, times=ALL, method=method)
        report = run(stack.remote, job, engine, token=token)
        stack.objects.clear()
        assert (report.outcome, report.reason, report.charged) == (
            ReportOutcome.FAILED,
            JobReason.STORE_UNREADABLE,
            False,
        )
        assert content(stack.store) == before
        assert stack.store.quarantined() == (), "a store that is away says nothing about its blocks"
        assert orphans(stack.store) == ()
    claim(stack.store, job, 3)
    assert run(stack.remote, job, engine, token=3).outcome is ReportOutcome.SUCCEEDED
    assert content(stack.store) == before
    assert_tidy(stack.store)


def test_answers_with_half_of_the_bytes_accuse_nobody(stack: Stack, engine: ThreadEngine) -> None:
    """They look like objects that were cut off; read again, the sources are sound."""
    ids = fill(stack.store, range(3))
    before = content(stack.store)
    job = job_of(stack.remote, ids)
    claim(stack.store, job, 1)
    stack.objects.plan(Fault.PASS, times=9, method="GET")
    stack.objects.plan(Fault.SHORT, method="GET")
    report = run(stack.remote, job, engine)
    assert report.outcome is ReportOutcome.SUCCEEDED
    assert report.skipped == ()
    assert content(stack.store) == before
    assert_tidy(stack.store)


@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT])
def test_the_answer_to_the_commit_gets_lost(stack: Stack, engine: ThreadEngine, cut: Cut) -> None:
    ids = fill(stack.store, range(3))
    before = content(stack.store)
    job = job_of(stack.remote, ids)
    claim(stack.store, job, 1)

    class Cutting(FakeLease):
        """The commit is what follows when there is an upload."""

        def ensure_held(self) -> None:
            super().ensure_held()
            if orphans(stack.store) and not stack.index.cuts:
                stack.index.cut = cut

    report = run(stack.remote, job, engine, lease=Cutting())
    assert stack.index.cuts == 1
    assert report.outcome is ReportOutcome.SUCCEEDED
    assert content(stack.store) == before
    assert orphans(stack.store) == ()
    check(stack.store.index)


def attempt_through_an_outage(stack: Stack, engine: ThreadEngine, *, seconds: float) -> tuple[JobReport, float]:
    """The database goes away when everything is uploaded, for so long by the clock of the attempt."""
    job = job_of(stack.remote, fill(stack.store, range(3)))
    claim(stack.store, job, 1)
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 20
        if now[0] >= seconds:
            stack.index.come_back()

    class Leaving(FakeLease):
        def ensure_held(self) -> None:
            super().ensure_held()
            if not now[0] and orphans(stack.store):
                stack.index.go_away()

    worker = BlockStore.open(stack.remote, patience=0.1)
    attempt = BlockAttempt(
        job=job,
        token=1,
        store=worker,
        place=objects_place(job.store.url, job.store.credentials_secret_name, secrets_of(stack.remote)),
        worker="worker",
        lease=Leaving(),
        engine=engine,
        monotonic=lambda: now[0],
        sleep=sleep,
    )
    report = attempt.run()
    worker.close()
    return report, now[0]


def test_a_minute_without_the_database(stack: Stack, engine: ThreadEngine) -> None:
    report, waited = attempt_through_an_outage(stack, engine, seconds=60)
    assert report.outcome is ReportOutcome.SUCCEEDED
    assert waited == 60
    (made,) = stack.store.live().blocks
    assert made.rows == 300
    assert_tidy(stack.store)


def test_a_database_that_does_not_come_back_is_not_the_jobs_fault(stack: Stack, engine: ThreadEngine) -> None:
    report, waited = attempt_through_an_outage(stack, engine, seconds=10 * COMMIT_PATIENCE)
    stack.index.come_back()
    assert (report.outcome, report.reason, report.charged) == (ReportOutcome.FAILED, JobReason.STORE_UNREADABLE, False)
    assert waited >= COMMIT_PATIENCE
    blocks = stack.store.live().blocks
    assert [block.rows for block in blocks] == [100] * 3
    assert len(orphans(stack.store)) == 1, "nobody could be asked whether it was committed"
    job = job_of(stack.remote, [block.id for block in blocks])
    claim(stack.store, job, 2)
    assert run(stack.remote, job, engine, token=2).outcome is ReportOutcome.SUCCEEDED
    assert_tidy(stack.store)
