"""The adapter of staging areas: what a scan finds, what it costs, what stops one branch and what stops all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import PolicyReason
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.policy.policy_status import MAX_BEHIND
from compaction.core.planning.debt import HeldJob, ScanResult
from compaction.core.planning.planner import JobInventory
from compaction.core.reconcile.planning.replan import planner_of, spec_of
from compaction.errors import ClaimRefusal, ClaimRefusedError
from compaction.registry import kind_of
from compaction.staging import adapter as module
from compaction.staging.adapter import STRAY_SECONDS, StagingAdapter
from compaction.staging.answers import furthest_behind
from compaction.staging.compaction import BranchWork
from compaction.staging.flows.branching import Brancher, seal
from compaction.staging.flows.committing import CommitDraft, Committer
from compaction.staging.flows.writing import Writer
from compaction.staging.refs.branches import BranchRecord, RepositoryRecord
from compaction.staging.sensor import REST_SECONDS, BranchDebt, BranchSensor, selected
from compaction.staging.staged.counters import PARTITION, Counts, TokenCounters
from compaction.staging.store import StagingConnection, StagingStore
from compaction.storage.adapter import OpenRequest, SenseRequest
from compaction.storage.secrets import GivenSecrets
from support.cluster.manifests import staging_area, staging_policy_object
from support.staging.staging_repos import framed, rows_of

START = 1_800_000_000.0


class Staged:
    """A repository with writers, an adapter over it, and the wall clock of both."""

    def __init__(self, url: str, objects: Path, **spec: Any) -> None:
        self.now = START
        self.store = StagingStore.open(StagingConnection(url), clock=lambda: self.now)
        self.area = self.store.create("lake", f"file://{objects}", committer="tester")
        self.writer = Writer(self.area)
        self.url = url
        self.policy = self.policy_of(**spec)
        self.scans = 0
        self.adapter = self.opened(self.policy)

    def policy_of(self, **spec: Any) -> CompactionPolicy:
        return CompactionPolicy.from_object(staging_policy_object(store={"stagingArea": staging_area(**spec)}))

    def opened(self, policy: CompactionPolicy) -> StagingAdapter:
        secrets = GivenSecrets({"kv": {"url": self.url}}, "the test")
        request = OpenRequest(policy.spec, "tester", secrets, clock=lambda: self.now)
        spec = policy.spec.store.staging_area
        assert spec is not None
        return StagingAdapter(spec, grace=request.grace, secrets=secrets, clock=request.clock, wall=lambda: self.now)

    def stage(self, branch: str, *, writes: int = 3, deletions: int = 2) -> None:
        if self.area.branches.find(branch) is None:
            Brancher(self.area).create(branch, "main")
        for number in range(writes):
            self.writer.set(branch, b"%d" % number, framed(str(number)))
        for number in range(deletions):
            self.writer.delete(branch, b"%d" % number)
        self.store.counters.flush()

    def scan(self, adapter: StagingAdapter | None = None, **request: Any) -> ScanResult:
        self.scans += 1
        return (adapter or self.adapter).sense(SenseRequest(self.scans, 1, self.now, **request)).reading

    def commit(self, branch: str) -> None:
        Committer(self.area).commit(branch, CommitDraft("tester", "a commit"))

    def close(self) -> None:
        self.adapter.close()
        self.store.close()


@pytest.fixture
def staged(kv_url: str, tmp_path: Path) -> Iterator[Staged]:
    with closing(Staged(kv_url, tmp_path / "objects", thresholds={"tombstones": 2})) as staged:
        yield staged


def test_debt_is_what_all_writers_counted(staged: Staged) -> None:
    staged.stage("etl")
    with closing(TokenCounters(staged.store.kv)) as other:
        token = staged.area.branches.get("etl").record.staging_token
        other.count(token, writes=10, tombstones=4, nbytes=100)
    (candidate,) = staged.scan().candidates
    assert candidate.target == "lake/etl"
    assert dict(candidate.measures) | {"stagedBytes": 0} == {
        "tombstones": 6, "sealedTokens": 0, "stagedWrites": 15, "stagedBytes": 0,
    }  # fmt: skip
    assert candidate.debt_sources == 1
    (behind,) = staged.scan().behind
    assert behind.target == "lake/etl"
    assert dict(behind.measures)["tombstones"] == 6
    assert kind_of(staged.policy.spec.store).due(staged.policy.spec.store)(candidate)


def test_a_scan_reads_no_changes_and_a_token_without_counters_once(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged.stage("etl", writes=50)
    token = staged.area.branches.get("etl").record.staging_token
    staged.store.counters.forget(token)
    staged.area.counters.forget(token)
    scanned: list[str] = []

    from compaction.staging.kv.sql import SqlKeyValueStore

    def noted(self: SqlKeyValueStore, partition: str, *bounds: Any, **options: Any) -> Any:
        scanned.append(partition)
        return original(self, partition, *bounds, **options)

    original = SqlKeyValueStore.scan
    monkeypatch.setattr(SqlKeyValueStore, "scan", noted)
    for expected in (1, 1, 1):
        staged.scan()
        assert scanned.count(token) == expected
    assert len(rows_of(staged.store.kv, PARTITION)) >= 1, "the result is kept for whoever coordinates next"


def test_a_scan_that_must_change_nothing_changes_nothing(staged: Staged) -> None:
    staged.stage("etl")
    token = staged.area.branches.get("etl").record.staging_token
    staged.store.counters.forget(token)
    before = rows_of(staged.store.kv, PARTITION)
    (candidate,) = staged.scan(recover=False).candidates
    assert candidate.measure("tombstones") == 2
    assert rows_of(staged.store.kv, PARTITION) == before


def test_the_cooldown_runs_from_the_stored_start_for_every_coordinator(staged: Staged) -> None:
    staged.stage("etl")
    (job,) = _jobs(staged)
    staged.adapter.claim(job[1], job=job[0], token=1)
    began, staged.now = staged.now, staged.now + 7
    with closing(staged.opened(staged.policy)) as successor:
        (candidate,) = staged.scan(successor).candidates
    assert candidate.compacted_at == pytest.approx(began, abs=0.01)


def test_a_branch_that_was_committed_since_is_left_alone_for_a_while(staged: Staged) -> None:
    staged.stage("etl")
    (job,) = _jobs(staged)
    staged.adapter.claim(job[1], job=job[0], token=1)
    staged.now += 1
    staged.commit("etl")
    staged.stage("etl")
    reading = staged.scan()
    assert reading.candidates == ()
    assert [(item.reason, item.example) for item in reading.left_out] == [("BranchBusy", "etl")]
    staged.now += REST_SECONDS
    assert [candidate.target for candidate in staged.scan().candidates] == ["lake/etl"]


def test_include_and_exclude_choose_branches(staged: Staged) -> None:
    for name in ("etl-1", "etl-2", "other"):
        staged.stage(name)
    with closing(staged.opened(staged.policy_of(include=["etl-*"], exclude=["*-2"]))) as adapter:
        reading = staged.scan(adapter)
    assert reading.targets == {"lake/etl-1"}
    chosen = selected(["main", "x?"], [])
    assert [chosen(name) for name in ("main", "main2", "x1", "x12")] == [True, False, True, False]


def test_what_is_staged_for_too_long_is_due_whatever_it_is(staged: Staged) -> None:
    staged.stage("etl", writes=1, deletions=0)
    policy = staged.policy_of(thresholds={"tombstones": 1000, "maxAge": "1h"})
    due = kind_of(policy.spec.store).due(policy.spec.store)
    with closing(staged.opened(policy)) as adapter:
        sensed = adapter.sense(SenseRequest(1, 1, staged.now))
        assert not due(sensed.reading.candidates[0])
        assert sensed.look_in == pytest.approx(3600, abs=2)
        staged.now += 3601
        (candidate,) = staged.scan(adapter).candidates
        assert due(candidate)


def test_of_very_many_tokens_the_oldest_come_first(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    from compaction.staging import sensor

    monkeypatch.setattr(sensor, "MAX_TOKENS_PER_JOB", 2)
    for _ in range(3):
        staged.stage("etl")
        seal(staged.area, "etl")
    record = staged.area.branches.get("etl").record
    (candidate,) = staged.scan().candidates
    assert candidate.groups[0].sources == record.sealed_tokens[-2:]


def test_one_damaged_branch_stops_no_other(staged: Staged) -> None:
    for name in ("bad", "etl"):
        staged.stage(name)
    staged.store.kv.set(staged.area.repository.partition, b"branches/bad", b"\xff\xff")
    reading = staged.scan()
    assert reading.problem is None
    assert [(problem.target, problem.reason) for problem in reading.problems] == [
        ("lake/bad", PolicyReason.SENSE_FAILED)
    ]
    assert [candidate.target for candidate in reading.candidates] == ["lake/etl"]


def test_a_repository_that_is_not_there_or_not_ours_is_named(staged: Staged) -> None:
    with closing(staged.opened(staged.policy_of(repository="nowhere"))) as adapter:
        problem = staged.scan(adapter).problem
    assert problem is not None
    assert (problem.reason, "nowhere" in problem.message) == ("RepositoryNotFound", True)
    foreign = RepositoryRecord(id="theirs", storage_namespace="s3://b/p", default_branch_id="main", instance_uid="x")
    staged.store.kv.set("graveler", b"repos/theirs", foreign.encode())
    with closing(staged.opened(staged.policy_of(repository="theirs"))) as adapter:
        problem = staged.scan(adapter).problem
    assert problem is not None
    assert problem.reason == "ForeignRepository"
    assert "spec.store.stagingArea.lakefs" in problem.message


def test_a_claim_of_a_job_that_is_no_more_is_retired_after_a_day(staged: Staged) -> None:
    staged.stage("etl")
    ((name, spec),) = _jobs(staged)
    staged.adapter.claim(spec, job=name, token=1)
    staged.now += STRAY_SECONDS + 1
    held = {name: HeldJob(spec.target, 0, spec.sources.metarange.tokens if spec.sources.metarange else ())}
    staged.scan(jobs=held)
    assert staged.area.branches.get("etl").record.claim_job == name
    staged.scan()
    assert staged.area.branches.get("etl").record.claim_job == ""
    assert staged.adapter.high_water("lake/etl", name) == 1, "its token stays known"


def test_a_claim_on_a_branch_that_has_changed_or_gone_is_refused(staged: Staged) -> None:
    staged.stage("etl")
    ((name, spec),) = _jobs(staged)
    staged.commit("etl")
    with pytest.raises(ClaimRefusedError) as refused:
        staged.adapter.claim(spec, job=name, token=1)
    assert refused.value.refusal is ClaimRefusal.GONE
    reading = staged.scan(jobs={name: HeldJob(spec.target, 0, ("lake-etl:gone",))})
    assert reading.outdated == {name}
    assert kind_of(staged.policy.spec.store).gone(name, spec, reading)
    Brancher(staged.area).delete("etl")
    with pytest.raises(ClaimRefusedError) as refused:
        staged.adapter.claim(spec, job=name, token=2)
    assert refused.value.refusal is ClaimRefusal.GONE
    staged.adapter.retire("lake/etl", name)


def test_the_default_clock_is_that_of_the_machine() -> None:
    assert module._wall() > START / 2


def _jobs(staged: Staged) -> list[tuple[str, Any]]:
    plan = planner_of(staged.policy, owner_uid="uid").plan(staged.scan().candidates, {}, JobInventory(), now=staged.now)
    return [(job.name, spec_of(job, staged.policy)) for job in plan.jobs]


def test_a_branch_on_which_the_code_fails_stops_no_other(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bad", "etl"):
        staged.stage(name)
    plain = BranchSensor._debt
    monkeypatch.setattr(
        BranchSensor,
        "_debt",
        lambda self, area, item, *rest: [][3] if item.name == "bad" else plain(self, area, item, *rest),
    )
    reading = staged.scan()
    (problem,) = reading.problems
    assert (problem.target, problem.reason) == ("lake/bad", PolicyReason.SENSE_FAILED)
    assert "branch bad: an unexpected IndexError at staging/sensor.py:" in problem.message
    assert [candidate.target for candidate in reading.candidates] == ["lake/etl"]


# Which branches a scan names: few, the worst of each measure among them, and what compaction would leave there.


def debt(name: str, *, writes: int = 0, tombstones: int = 0, sealed: int = 1, named: int | None = None) -> BranchDebt:
    tokens = tuple(f"{name}-{number}" for number in range(sealed))
    record = BranchRecord(commit_id="c", staging_token=f"{name}-staging", sealed_tokens=tokens)
    chosen = tokens if named is None else tokens[sealed - named :]
    work = BranchWork("lake", name, "c", "", chosen) if chosen else None
    return BranchDebt(name, record, work, Counts(writes, tombstones, writes), 0.0)


def names(*debts: BranchDebt) -> list[str]:
    return [item.target for item in furthest_behind("lake", debts)]


def test_the_worst_of_each_measure_is_named() -> None:
    small = [debt(f"small-{number}", writes=10, tombstones=5) for number in range(20)]
    worst = [
        debt("deleted", writes=900, tombstones=900),
        debt("sealed", writes=1, sealed=50),
        debt("written", writes=999),
    ]
    found = names(*small, *worst)
    assert len(found) == MAX_BEHIND
    assert set(found[:3]) == {"lake/deleted", "lake/sealed", "lake/written"}
    assert names(*reversed([*small, *worst])) == found, "the order of the scan does not matter"


def test_a_branch_without_work_is_not_behind() -> None:
    assert names(debt("idle", sealed=0)) == []


def test_what_compaction_leaves() -> None:
    branch = debt("main", writes=9, tombstones=4, sealed=7, named=5)
    (own,) = furthest_behind("lake", [branch])
    (live,) = furthest_behind("lake", [branch], merges=True)
    assert (dict(own.measures)["tombstonesAfter"], dict(own.measures)["sealedTokensAfter"]) == (0, 2)
    assert (dict(live.measures)["tombstonesAfter"], dict(live.measures)["sealedTokensAfter"]) == (4, 3)
