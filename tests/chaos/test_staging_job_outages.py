"""Servers that stumble or are away while a branch is compacted: the job goes on, or ends uncharged and the next attempt
does it; the branch shows the same at every moment, and nothing is left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from chaos.commit_proxy import CommitProxy, Cut
from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.policy.policy import CompactionPolicy
from compaction.core.planning.planner import JobInventory
from compaction.core.reconcile.planning.replan import planner_of, spec_of
from compaction.staging.adapter import open_adapter
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import Brancher, seal
from compaction.staging.flows.reading import Reader
from compaction.staging.flows.writing import Writer
from compaction.staging.rewriting.rewriter import MetarangeRewriter
from compaction.staging.store import StagingConnection, StagingStore
from compaction.storage.adapter import OpenRequest, SenseRequest, StoreAdapter
from compaction.storage.secrets import GivenSecrets
from compaction.worker.ports import Assignment
from support.cluster.manifests import staging_area, staging_policy_object
from support.faults.proxies import Fault, FaultProxy
from support.object_stores import S3
from support.processes.worker_ports import FakeLease, ThreadEngine
from support.staging.staging_repos import framed
from tools.servers.postgres import PostgresServer

ALL = 1 << 20
KEYS = 12
PASSING = [Fault.BUSY, Fault.BUSY_AFTER, Fault.RESET, Fault.RESET_AFTER, Fault.SILENT_AFTER, Fault.TRUNCATED]


@pytest.fixture
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine()
    yield engine
    engine.close()


@dataclass
class Stack:
    """A branch on PostgreSQL and S3: the test and the coordinator reach them directly, every byte of the worker goes
    through the proxies.
    """

    store: StagingStore
    area: Area
    remote: StagingConnection
    adapter: StoreAdapter
    policy: CompactionPolicy
    objects: FaultProxy
    kv: CommitProxy

    def fill(self) -> None:
        writer = Writer(self.area)
        for layer in range(3):
            for key in range(KEYS):
                writer.set("etl", b"%d/%d" % (layer, key), framed(f"{layer}.{key}"))
            writer.delete("etl", b"0/%d" % layer)
            seal(self.area, "etl")
        self.store.counters.flush()

    def content(self) -> list[tuple[bytes, bytes | None]]:
        return [(entry.key, entry.value) for entry in Reader(self.area).list("etl").entries]

    def job(self) -> tuple[str, CompactionJobSpec]:
        reading = self.adapter.sense(SenseRequest(1, 1, 0.0)).reading
        assert reading.problem is None
        plan = planner_of(self.policy, owner_uid="uid").plan(reading.candidates, {}, JobInventory(), now=reading.wall)
        (job,) = plan.jobs
        return job.name, spec_of(job, self.policy)

    def run(
        self, name: str, spec: CompactionJobSpec, engine: ThreadEngine, token: int, lease: FakeLease | None = None
    ) -> JobReport:
        """One attempt, claimed by the coordinator."""
        self.adapter.claim(spec, job=name, token=token)
        given = {"kv": {"url": self.remote.kv_url}, "objects": dict(self.remote.options)}
        secrets = GivenSecrets(given, "the test")
        rewriter = MetarangeRewriter(engine, holder="worker", secrets=secrets, patience=2.0)
        return rewriter.run(Assignment(name, "default", token, 60.0, spec), lease or FakeLease(token))

    def swaps(self) -> int:
        """0 or 1: a branch is compacted by one job here."""
        return int(bool(self.area.branches.get("etl").record.compacted_job))


@pytest.fixture
def stack(s3: S3, postgres: PostgresServer, postgres_kv: str) -> Iterator[Stack]:
    direct = StagingConnection(postgres.url(postgres_kv), options=s3.gateway.options())
    with CommitProxy(postgres.socket_file) as kv, FaultProxy(("127.0.0.1", s3.gateway.port)) as objects:
        store = StagingStore.open(direct)
        area = store.create("lake", f"{s3.bucket()}/lake", committer="tester")
        Brancher(area).create("etl", "main")
        options = s3.gateway.options(endpoint=objects.endpoint) | {"read_timeout": "1s"}
        remote = replace(direct, kv_url=postgres.url(postgres_kv, host="127.0.0.1", port=kv.port), options=options)
        member = staging_area(credentialsSecretName="objects", thresholds={"sealedTokens": 1})
        policy = CompactionPolicy.from_object(staging_policy_object(store={"stagingArea": member}))
        own = GivenSecrets({"kv": {"url": direct.kv_url}, "objects": dict(direct.options)}, "the test")
        adapter = open_adapter(OpenRequest(policy.spec, "coordinator", own))
        stack = Stack(store, area, remote, adapter, policy, objects, kv)
        stack.fill()
        yield stack
        adapter.close()
        store.close()


@pytest.mark.parametrize("fault", PASSING)
def test_requests_that_stumble(stack: Stack, engine: ThreadEngine, fault: Fault) -> None:
    """One of each kind."""
    before = stack.content()
    name, spec = stack.job()
    for method in ("PUT", "GET", "HEAD"):
        stack.objects.plan(fault, method=method)
    report = stack.run(name, spec, engine, 1)
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert stack.content() == before
    assert stack.swaps() == 1


def test_a_store_that_stays_busy_is_not_the_jobs_fault(stack: Stack, engine: ThreadEngine) -> None:
    """No object is taken for as long as the attempt tries; the upload may even have happened."""
    before = stack.content()
    name, spec = stack.job()
    for token, fault in enumerate([Fault.BUSY, Fault.BUSY_AFTER], start=1):
        stack.objects.plan(fault, times=ALL, method="PUT")
        report = stack.run(name, spec, engine, token)
        stack.objects.clear()
        assert (report.outcome, report.reason, report.charged) == (
            ReportOutcome.FAILED,
            JobReason.STORE_UNREADABLE,
            False,
        )
        assert report.skipped == (), "a store that is away says nothing about its ranges"
        assert stack.content() == before
        assert stack.swaps() == 0
    assert stack.run(name, spec, engine, 3).outcome is ReportOutcome.SUCCEEDED
    assert stack.content() == before


@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT])
def test_the_answer_to_the_swap_gets_lost(stack: Stack, engine: ThreadEngine, cut: Cut) -> None:
    before = stack.content()
    name, spec = stack.job()

    class Cutting(FakeLease):
        """The swap is what follows when there is a tree."""

        def ensure_held(self) -> None:
            super().ensure_held()
            if any(True for _ in stack.area.ranges.stored()) and not stack.kv.cuts:
                stack.kv.cut = cut

    report = stack.run(name, spec, engine, 1, Cutting())
    assert stack.kv.cuts == 1
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert stack.content() == before
    assert stack.swaps() == 1


def test_a_database_that_is_away_is_not_the_jobs_fault(stack: Stack, engine: ThreadEngine) -> None:
    """From the beginning, and for longer than the attempt waits for it."""
    before = stack.content()
    name, spec = stack.job()
    stack.kv.go_away()
    report = stack.run(name, spec, engine, 1)
    assert (report.outcome, report.reason, report.charged) == (
        ReportOutcome.FAILED,
        JobReason.STORE_UNREADABLE,
        False,
    )
    assert "Key-value store" in report.message
    stack.kv.come_back()
    assert stack.run(name, spec, engine, 2).outcome is ReportOutcome.SUCCEEDED
    assert stack.content() == before


def test_a_database_that_comes_back_before_the_swap(stack: Stack, engine: ThreadEngine) -> None:
    """The tree is written; to write it once more would cost more than to wait."""
    before = stack.content()
    name, spec = stack.job()

    class Leaving(FakeLease):
        """The database goes away when the tree is there, and comes back when the swap is tried again."""

        away = 0

        def ensure_held(self) -> None:
            super().ensure_held()
            if self.away == 1:
                self.away = 2
                stack.kv.come_back()
            if not self.away and any(True for _ in stack.area.ranges.stored()):
                self.away = 1
                stack.kv.go_away()

    lease = Leaving()
    report = stack.run(name, spec, engine, 1, lease)
    assert lease.away == 2
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert stack.content() == before
    assert stack.swaps() == 1
