"""A policy that opts in: what a scan plans of a live lakeFS, and jobs that merge, each against a server that works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.policy.staging_area import MAX_TOKENS_PER_JOB
from compaction.core.meaning import Fate
from compaction.core.planning.debt import HeldJob, ScanResult
from compaction.core.planning.planner import JobInventory
from compaction.core.reconcile.planning.replan import planner_of, spec_of
from compaction.errors import ClaimRefusal, ClaimRefusedError
from compaction.registry import fate_of
from compaction.staging.adapter import open_adapter
from compaction.staging.kind import STAGING
from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.lakefs.control import MergeLease, allow_merging, read_claim, seal, stop_merging
from compaction.staging.lakefs.lakefs_adapter import LiveAdapter, LiveSensor
from compaction.staging.lakefs.repository import LiveRepository
from compaction.staging.reasons import StagingReason
from compaction.staging.refs.names import METADATA_PARTITION, SCHEMA_KEY
from compaction.staging.rewriting.report import MetarangeJob
from compaction.staging.rewriting.rewriter import MetarangeRewriter, TokenMergeAttempt
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.adapter import OpenRequest, Sensed, SenseRequest, StoreAdapter
from compaction.storage.errors import DatabaseUnreachableError
from compaction.storage.secrets import GivenSecrets
from compaction.worker.errors import JobStoppedError
from compaction.worker.ports import Assignment
from staging.lakefs.conftest import QuietClock, WatchedStore
from support.cluster.manifests import staging_area, staging_policy_object
from support.processes.worker_ports import FakeLease, ThreadEngine
from support.staging.lakefs_server import LakeFsServer

IDLE = 60.0
GRACE = 6 * 3600.0


class Opted:
    """A policy over the repository of a server, with a coordinator's adapter and workers."""

    adapter: LiveAdapter

    def __init__(self, server: LakeFsServer, live: LiveRepository, clock: QuietClock, url: str) -> None:
        self.server, self.live, self.clock, self.url = server, live, clock, url
        self.scans = 0
        self.use(leastTokens=2, dryRun=False)

    def use(self, **lakefs: Any) -> None:
        area = staging_area(repository=self.server.name, lakefs=lakefs, thresholds={"sealedTokens": 2})
        self.policy = CompactionPolicy.from_object(staging_policy_object(store={"stagingArea": area}))
        spec = self.policy.spec.store.staging_area
        assert spec is not None
        assert spec.lakefs is not None
        self.secrets = GivenSecrets({"kv": {"url": self.url}}, "the test")
        if self.scans:
            self.adapter.close()
        self.adapter = LiveAdapter(spec, spec.lakefs, secrets=self.secrets, clock=self.clock.time, wall=self.clock.time)

    def sense(self, **request: Any) -> Sensed:
        self.scans += 1
        return self.adapter.sense(SenseRequest(self.scans, 1, self.clock.now, **request))

    def rested(self, **request: Any) -> ScanResult:
        """A scan of branches that were seen, and have not changed for the idle time since."""
        self.sense()
        self.clock.now += IDLE
        return self.sense(**request).reading

    def planned(self, **request: Any) -> dict[str, CompactionJobSpec]:
        """The jobs of a plan, by their names."""
        reading = self.rested(**request)
        plan = planner_of(self.policy, owner_uid="uid").plan(reading.candidates, {}, JobInventory(), now=self.clock.now)
        return {job.name: spec_of(job, self.policy) for job in plan.jobs}

    def job(self) -> tuple[str, CompactionJobSpec]:
        (found,) = self.planned().items()
        return found

    def attempt(
        self, name: str, spec: CompactionJobSpec, token: int, *, live: LiveRepository | None = None,
        lease: FakeLease | None = None,
    ) -> JobReport:  # fmt: skip
        job = MetarangeJob.of(spec, name=name)
        assert job.lakefs is not None
        engine = ThreadEngine()
        with closing(engine):
            return TokenMergeAttempt(
                job=job, lakefs=job.lakefs, live=live or self.live, token=token, worker="worker",
                lease=lease or FakeLease(token), engine=engine, monotonic=self.clock.time,
            ).run()  # fmt: skip


@pytest.fixture
def server(kv: SqlKeyValueStore, ranges: RangeStorage, tmp_path: Path) -> LakeFsServer:
    """The keys `a` to `e` are committed."""
    return LakeFsServer(kv, ranges).create(
        {key: f"{key} committed" for key in "abcde"}, namespace=f"file://{tmp_path}/objects"
    )


@pytest.fixture
def opted(server: LakeFsServer, live: LiveRepository, clock: QuietClock, kv_url: str) -> Iterator[Opted]:
    opted = Opted(server, live, clock, kv_url)
    yield opted
    opted.adapter.close()


def test_a_policy_opts_in(opted: Opted) -> None:
    request = OpenRequest(opted.policy.spec, "tester", opted.secrets)
    adapter: StoreAdapter = open_adapter(request)
    assert isinstance(adapter, LiveAdapter)
    adapter.close()


def test_from_a_scan_to_a_receipt(opted: Opted, server: LakeFsServer) -> None:
    old = server.put_sealed({"a": "new", "n": None}, {"b": None}, {"x": "1"})
    server.set("z", "staged")
    before, content, changed = server.branch(), server.listed(), server.uncommitted()
    name, spec = opted.job()
    sources = spec.sources.metarange
    assert sources is not None
    assert (sources.tokens, sources.base, sources.commit) == (old, "", before.commit_id)
    opted.adapter.claim(spec, job=name, token=1)
    assert server.branch() == before, "a claim is beside the branch"
    report = opted.attempt(name, spec, 1)
    assert (report.outcome, report.reason) == (ReportOutcome.SUCCEEDED, JobReason.COMPLETED)
    assert report.message == "3 tokens merged into one with 3 rows"
    receipt = report.receipt
    assert receipt is not None
    assert receipt.sources == old
    assert (receipt.records, receipt.outputs) == (3, server.branch().sealed_tokens)
    assert receipt.bytes_after < receipt.bytes_before
    assert STAGING.proves_equal(receipt)
    assert "became one with" in STAGING.became(receipt)
    assert (server.listed(), server.uncommitted(), server.branch().staging_token) == (
        content, changed, before.staging_token,
    )  # fmt: skip
    held = {name: HeldJob("example/main", 0, old)}
    assert opted.rested(jobs=held).outdated == frozenset(), "it has merged them"
    assert opted.planned() == {}, "one token is nothing to merge"


def test_the_answer_of_a_merge_is_given_again(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    first = opted.attempt(name, spec, 1)
    opted.adapter.claim(spec, job=name, token=2)
    branch = server.branch()
    second = opted.attempt(name, spec, 2)
    assert first.receipt is not None
    assert second.receipt == first.receipt
    assert server.branch() == branch


def test_a_dry_run_plans_nothing_and_reports_what_there_is(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"a": None, "b": None}, {"c": "1"})
    opted.use(leastTokens=2)
    reading = opted.rested()
    assert reading.candidates == ()
    assert [(item.reason, item.count, item.example) for item in reading.left_out] == [
        (StagingReason.DRY_RUN, 1, "main")
    ]
    assert reading.measures["branchTombstones"] == 2
    assert reading.measures["branchSealedTokens"] == 2
    (behind,) = reading.behind
    assert behind.target.endswith("/main")
    after = {"tombstonesAfter": 2, "sealedTokensAfter": 1}
    assert dict(behind.measures) | {"tombstones": 2, "sealedTokens": 2, **after} == dict(behind.measures)


def test_a_job_that_says_dry_run_merges_nothing(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    parameters = spec.parameters.model_dump(by_alias=True)
    parameters["metarange"]["lakefs"]["dryRun"] = True
    dry = CompactionJobSpec.model_validate(spec.model_dump(by_alias=True) | {"parameters": parameters})
    before = server.branch()
    with closing(ThreadEngine()) as engine:
        rewriter = MetarangeRewriter(engine, holder="worker", secrets=opted.secrets)
        report = rewriter.run(Assignment(name, "default", 1, 60.0, dry), FakeLease())
    assert (report.outcome, report.reason) == (ReportOutcome.FAILED, StagingReason.DRY_RUN)
    assert "dryRun is true, so nothing is merged" in report.message
    assert fate_of(report.reason) is Fate.PARK, "its parameters never change"
    assert server.branch() == before


def test_a_job_is_not_claimed_while_the_policy_says_dry_run(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.use(leastTokens=2)
    before = server.branch()
    with pytest.raises(ClaimRefusedError) as refused:
        opted.adapter.claim(spec, job=name, token=1)
    assert (refused.value.refusal, refused.value.wait) == (ClaimRefusal.BUSY, StagingReason.DRY_RUN)
    assert opted.attempt(name, spec, 1).reason == JobReason.STALE_TOKEN, "a worker without a claim merges nothing"
    assert server.branch() == before
    opted.use(leastTokens=2, dryRun=False)
    opted.adapter.claim(spec, job=name, token=1)
    assert opted.attempt(name, spec, 1).outcome is ReportOutcome.SUCCEEDED


def test_a_worker_opens_the_repository_that_a_job_names(
    opted: Opted, server: LakeFsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    opted.use(leastTokens=2, dryRun=False, quiet="1s")
    content = server.listed()
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    with closing(ThreadEngine()) as engine:
        rewriter = MetarangeRewriter(engine, holder="worker", secrets=opted.secrets, clock=opted.clock.time)
        lease = FakeLease()
        report = rewriter.run(Assignment(name, "default", 1, 60.0, spec), lease)
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert server.listed() == content
    assert len(server.branch().sealed_tokens) == 1
    assert lease.progress == sorted(lease.progress)


def test_a_branch_that_servers_use_rests_first(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    sensed = opted.sense()
    (active,) = sensed.reading.left_out
    assert (active.reason, active.example, active.due) == (StagingReason.BRANCH_ACTIVE, "main", opted.clock.now + IDLE)
    assert sensed.look_in == IDLE
    opted.clock.now += IDLE / 2
    server.seal()
    assert opted.rested().left_out == ()
    server.put_sealed({"c": "1"})
    opted.clock.now += 3600
    assert opted.sense().reading.candidates == (), "it has just changed"


def test_a_branch_is_at_rest_or_not_when_its_row_is_read(opted: Opted, server: LakeFsServer) -> None:
    """A scan that takes longer than the idle time proves nothing about the branches that it read first."""
    server.put_sealed({"a": "new"}, {"b": None})
    opted.sense()
    server.put_sealed({"c": "1"})
    opted.clock.now += 1
    scan = SqlKeyValueStore.scan

    def slow(*args: Any, **more: Any) -> Any:
        opted.clock.now += 2 * IDLE
        return scan(*args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlKeyValueStore, "scan", slow)
        assert opted.sense().reading.candidates == ()


def test_a_staging_token_that_was_sealed_a_moment_ago_is_not_planned(opted: Opted, server: LakeFsServer) -> None:
    """A merger seals a branch once a minute at most, and a job that names the staging token before that is refused."""
    server.set("z", "staged")
    row = opted.live.branch("main")
    opted.use(leastTokens=2, dryRun=False, sealStaging=True, idle="1s")
    assert seal(opted.live, row, 60.0) is not None
    server.set("z", "staged again")
    server.seal()
    server.set("z", "and again")
    opted.sense()
    opted.clock.now += 5
    assert opted.sense().reading.candidates == ()
    opted.clock.now += 60
    assert len(opted.sense().reading.candidates) == 1


def test_the_kill_switch_ends_planning_and_holds_jobs(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    stop_merging(server.kv, "maintenance")
    report = opted.attempt(name, spec, 1)
    assert (report.outcome, report.reason, report.charged) == (
        ReportOutcome.FAILED, StagingReason.BRANCH_ACTIVE, False,
    )  # fmt: skip
    assert "merging is stopped (maintenance)" in report.message
    (left,) = opted.rested().left_out
    assert left.reason == StagingReason.MERGING_STOPPED
    allow_merging(server.kv)
    opted.adapter.claim(spec, job=name, token=2)
    assert opted.attempt(name, spec, 2).outcome is ReportOutcome.SUCCEEDED


def test_the_oldest_tokens_are_merged_and_newer_ones_stay(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"b": "2", "n": None}, {"a": None, "c": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    (newer,) = server.put_sealed({"c": "again", "d": None})
    assert opted.attempt(name, spec, 1).reason == StagingReason.BRANCH_ACTIVE, "its sealed tokens grow"
    opted.clock.now += IDLE
    content = server.listed()
    report = opted.attempt(name, spec, 1)
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert len(server.branch().sealed_tokens) == 2
    assert server.branch().sealed_tokens[0] == newer
    assert server.listed() == content


def test_of_more_tokens_than_a_job_names_the_oldest_are_merged(opted: Opted, server: LakeFsServer) -> None:
    more = 3
    tokens = server.put_sealed(*({f"k{number % 7}": str(number)} for number in range(MAX_TOKENS_PER_JOB + more)))
    content = server.listed()
    name, spec = opted.job()
    assert spec.sources.metarange is not None
    assert spec.sources.metarange.tokens == tokens[more:], "the oldest stand last"
    (behind,) = opted.rested().behind
    assert dict(behind.measures)["sealedTokensAfter"] == more + 1
    opted.adapter.claim(spec, job=name, token=1)
    report = opted.attempt(name, spec, 1)
    assert report.receipt is not None, report.message
    assert report.receipt.sources == tokens[more:]
    assert [(measure.name, measure.before, measure.after) for measure in report.receipt.measures] == [
        ("sealedTokens", MAX_TOKENS_PER_JOB, 1),
        ("stagedWrites", MAX_TOKENS_PER_JOB, 7),
    ]
    assert server.branch().sealed_tokens == (*tokens[:more], *report.receipt.outputs)
    assert server.listed() == content


def test_a_staging_token_is_sealed_where_the_policy_says_so(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    server.set("z", "staged")
    opted.use(leastTokens=2, dryRun=False, sealStaging=True)
    content = server.listed()
    name, spec = opted.job()
    sources = spec.sources.metarange
    assert sources is not None
    assert sources.tokens[0] == server.branch().staging_token
    opted.adapter.claim(spec, job=name, token=1)
    assert opted.attempt(name, spec, 1).outcome is ReportOutcome.SUCCEEDED
    assert len(server.branch().sealed_tokens) == 1
    assert server.listed() == content


# -- fencing -----------------------------------------------------------------------------------------------------------


def test_an_attempt_that_was_replaced_merges_nothing(opted: Opted, server: LakeFsServer, store: WatchedStore) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    content = server.listed()
    # The other attempt takes over after this one has read its claim for the swap.
    store.before["set_all_if"] = lambda: opted.adapter.claim(spec, job=name, token=2)
    report = opted.attempt(name, spec, 1)
    assert (report.outcome, report.reason, report.charged) == (ReportOutcome.FAILED, JobReason.STALE_TOKEN, False)
    assert len(server.branch().sealed_tokens) == 2
    assert opted.attempt(name, spec, 2).outcome is ReportOutcome.SUCCEEDED
    assert server.listed() == content
    assert len(server.branch().sealed_tokens) == 1


def test_a_killed_attempt_is_followed_at_once(opted: Opted, server: LakeFsServer, live: LiveRepository) -> None:
    """The next one need not wait for the lease of the branch: the claim has fenced off its holder."""
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    assert MergeLease.acquire(live, "main", seconds=300, holder=f"{name}/1") is not None
    opted.adapter.claim(spec, job=name, token=2)
    assert opted.attempt(name, spec, 2).outcome is ReportOutcome.SUCCEEDED
    assert opted.adapter.high_water("example/main", name) == 2


def test_another_merger_of_the_branch_is_waited_for(opted: Opted, server: LakeFsServer, live: LiveRepository) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    lease = MergeLease.acquire(live, "main", seconds=3600)
    assert lease is not None
    report = opted.attempt(name, spec, 1)
    assert (report.reason, report.charged) == (StagingReason.BRANCH_ACTIVE, False)
    assert [item.reason for item in opted.rested().left_out] == [StagingReason.BRANCH_ACTIVE]
    lease.release()
    assert opted.rested().left_out == ()


def test_a_retired_job_merges_nothing(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=3)
    opted.adapter.retire("example/main", name)
    assert opted.adapter.high_water("example/main", name) == 3
    assert opted.attempt(name, spec, 3).reason == JobReason.STALE_TOKEN
    assert len(server.branch().sealed_tokens) == 2


def test_a_database_that_goes_away_is_explained_once(opted: Opted, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise DatabaseUnreachableError("postgresql://db/lakefs", "it does not answer.")

    monkeypatch.setattr("compaction.staging.lakefs.lakefs_adapter.retire_job", gone)
    with pytest.raises(DatabaseUnreachableError) as raised:
        opted.adapter.retire("example/main", "a")
    assert str(raised.value).count("Check the URL in Secret") == 1


def test_a_stopped_worker_leaves_the_branch_as_it_is(opted: Opted, server: LakeFsServer) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    lease = FakeLease()
    opted.clock.during.append(lambda: setattr(lease, "stopped", True))
    with pytest.raises(JobStoppedError):
        opted.attempt(name, spec, 1, lease=lease)
    assert len(server.branch().sealed_tokens) == 2


@pytest.mark.parametrize("change", ["commit", "reset", "delete_branch"])
def test_a_branch_that_changed_is_planned_again(opted: Opted, server: LakeFsServer, change: str) -> None:
    server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    opted.clock.during.append(lambda: getattr(server, change)("main"))
    report = opted.attempt(name, spec, 1)
    assert (report.outcome, report.reason) == (ReportOutcome.SKIPPED, JobReason.SOURCES_CHANGED)
    sources = spec.sources.metarange
    assert sources is not None
    held = {name: HeldJob("example/main", 0, sources.tokens)}
    assert opted.sense(jobs=held).reading.outdated == {name}
    with pytest.raises(ClaimRefusedError) as refused:
        opted.adapter.claim(spec, job=name, token=2)
    assert refused.value.refusal is ClaimRefusal.GONE


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_a_damaged_row_stops_its_branch_alone(opted: Opted, server: LakeFsServer) -> None:
    server.create_branch("other", server.branch().commit_id)
    tokens = server.put_sealed({"a": "new"}, {"b": None})
    server.put_sealed({"a": "new"}, {"b": None}, branch="other")
    jobs = opted.planned()
    sound = server.kv.get(tokens[1], b"b")
    assert sound is not None
    server.kv.set(tokens[1], b"b", sound[:-1])
    reports = {}
    for name, spec in jobs.items():
        opted.adapter.claim(spec, job=name, token=1)
        reports[spec.target] = opted.attempt(name, spec, 1)
    assert reports["example/other"].outcome is ReportOutcome.SUCCEEDED
    report = reports["example/main"]
    assert report.reason == JobReason.SOURCE_CORRUPT
    (skipped,) = report.skipped
    assert skipped.source == tokens[1]
    place = "example/main", tokens[1]
    aside = {"quarantined": {place[0]: frozenset({place[1]})}}
    reading = opted.rested(**aside)
    assert reading.candidates == ()
    assert reading.identity(*place) == skipped.identity
    server.kv.set(tokens[1], b"b", sound)
    assert opted.rested(**aside).identity(*place) not in ("", skipped.identity)
    assert len(opted.rested().candidates) == 1


def test_one_branch_that_cannot_be_read_is_a_problem_of_its_own(opted: Opted, server: LakeFsServer) -> None:
    server.create_branch("bad", server.branch().commit_id)
    server.put_sealed({"a": "new"}, {"b": None})
    server.kv.set(server.partition, b"branches/bad", b"\xff\xff")
    reading = opted.rested()
    assert [problem.target for problem in reading.problems] == ["example/bad"]
    assert [candidate.target for candidate in reading.candidates] == ["example/main"]


def test_a_branch_on_which_the_code_fails_is_a_problem_of_its_own(
    opted: Opted, server: LakeFsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_branch("bad", server.branch().commit_id)
    server.put_sealed({"a": "new"}, {"b": None})
    plain = LiveSensor._debt
    monkeypatch.setattr(
        LiveSensor,
        "_debt",
        lambda self, live, row, *rest: [][3] if row.name == "bad" else plain(self, live, row, *rest),
    )
    reading = opted.rested()
    assert [problem.target for problem in reading.problems] == ["example/bad"]
    assert [candidate.target for candidate in reading.candidates] == ["example/main"]


def test_what_is_not_known_is_refused(opted: Opted, server: LakeFsServer) -> None:
    server.kv.set(METADATA_PARTITION, SCHEMA_KEY, b"5")
    problem = opted.sense().reading.problem
    assert problem is not None
    assert "version" in problem.message


def test_replaced_tokens_are_dropped_after_the_grace(opted: Opted, server: LakeFsServer, live: LiveRepository) -> None:
    old = server.put_sealed({"a": "new"}, {"b": None})
    name, spec = opted.job()
    opted.adapter.claim(spec, job=name, token=1)
    opted.attempt(name, spec, 1)
    assert opted.sense().sweep_in == pytest.approx(GRACE, abs=1)
    assert opted.adapter.sweep(active=frozenset()).deleted == 0
    assert server.rows_of(old) == dict.fromkeys(old, 1)
    opted.clock.now += GRACE + 1
    assert opted.adapter.sweep(active=frozenset()).deleted == 2
    assert server.rows_of(old) == dict.fromkeys(old, 0)
    server.create_branch("gone", server.branch().commit_id)
    server.put_sealed({"a": "1"}, {"b": "2"}, branch="gone")
    (other,) = opted.planned().items()
    opted.adapter.claim(other[1], job=other[0], token=1)
    server.delete_branch("gone")
    opted.adapter.sweep(active=frozenset())
    assert read_claim(live, "gone")[0].claim_job == "", "a claim goes with its branch"
