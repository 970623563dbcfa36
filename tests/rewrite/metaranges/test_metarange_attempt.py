"""Attempts at a branch: one swap with the claim's token and the lease, and what is known of it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.policy.staging_area import StagingAreaReference
from compaction.staging.compaction import BranchWork, claim, swap_base, work_on
from compaction.staging.rewriting import rewriter
from compaction.staging.rewriting.report import MetarangeJob
from compaction.staging.rewriting.rewriter import COMMIT_PATIENCE, MetarangeAttempt
from compaction.storage.errors import DatabaseUnavailableError
from compaction.worker.errors import LeaseLostError
from compaction.worker.tasks import ObjectsPlace
from support.processes.worker_ports import FakeLease, ThreadEngine
from support.stores.staging_repos import DRAFT, StagingRepo

STORE = StagingAreaReference.model_validate({"repository": "example", "kv": {"secretName": "kv"}})
JOB = "job-1"
HEAD = {f"k/{number:02}": "1" for number in range(30)}


class Attempts:
    """Attempts at the branch `main`, and the clock that they see."""

    def __init__(self, repo: StagingRepo, folder: Path, engine: ThreadEngine) -> None:
        self.repo, self.folder, self.engine = repo, folder, engine
        record = repo.put(HEAD, sealed=[{"k/05": "2", "k/07": None}], staging={"new": "1"})
        self.work: BranchWork = work_on("example", record, staged=True)
        self.expected = repo.shown()
        self.passed = 0.0
        self.readings = 0

    def make(self, token: int, *, lease: FakeLease | None = None) -> MetarangeAttempt:
        return MetarangeAttempt(
            job=MetarangeJob(JOB, STORE, self.work),
            token=token,
            area=self.repo.area,
            place=ObjectsPlace(str(self.folder)),
            worker=f"worker-{token}",
            lease=lease or FakeLease(token=token),
            engine=self.engine,
            monotonic=self.time,
            sleep=self.pass_time,
        )

    def run(self, token: int) -> JobReport:
        return self.make(token).run()

    def claim(self, token: int) -> None:
        claim(self.repo.area, self.work, job=JOB, token=token)

    def time(self) -> float:
        self.readings += 1
        return self.passed

    def pass_time(self, seconds: float) -> None:
        self.passed += seconds

    @property
    def objects(self) -> set[str]:
        return {item.path for item in self.repo.area.ranges.stored()}

    @property
    def record(self) -> Any:
        return self.repo.area.branches.get("main").record


@pytest.fixture
def attempts(branch: StagingRepo, folder: Path, engine: ThreadEngine) -> Attempts:
    return Attempts(branch, folder, engine)


def test_the_tokens_become_the_base(attempts: Attempts) -> None:
    attempts.claim(1)
    report = attempts.run(1)
    assert (report.outcome, report.reason, report.token) == (ReportOutcome.SUCCEEDED, JobReason.COMPLETED, 1)
    record, receipt = attempts.record, report.receipt
    assert receipt is not None
    assert receipt.metarange is not None
    assert (record.compacted_base, record.sealed_tokens) == (receipt.metarange.metarange, ())
    assert (record.claim_job, record.compacted_job, record.compacted_token) == ("", JOB, 1)
    assert receipt.fingerprint_before == receipt.fingerprint_after
    assert (receipt.metarange.ranges_touched, receipt.metarange.ranges_written) == (2, 3)
    assert [(measure.name, measure.before, measure.after) for measure in receipt.measures] == [
        ("tombstones", 1, 0),
        ("sealedTokens", 2, 0),
        ("stagedWrites", 3, 0),
        ("ranges", 2, 3),
    ]
    assert (receipt.sources, receipt.worker) == (attempts.work.tokens, "worker-1")
    assert attempts.repo.shown() == attempts.expected


def test_an_attempt_without_the_claim_writes_nothing(attempts: Attempts) -> None:
    attempts.claim(1)
    attempts.claim(2)
    before, objects = attempts.record, attempts.objects
    report = attempts.run(1)
    assert (report.outcome, report.reason) == (ReportOutcome.FAILED, JobReason.STALE_TOKEN)
    assert not report.charged
    assert (attempts.record, attempts.objects, attempts.engine.submitted) == (before, objects, [])
    assert attempts.run(2).outcome is ReportOutcome.SUCCEEDED


def test_work_that_a_commit_has_overtaken_writes_nothing(attempts: Attempts) -> None:
    attempts.claim(1)
    attempts.repo.committer.commit("main", DRAFT)
    objects = attempts.objects
    report = attempts.run(1)
    assert (report.outcome, report.reason) == (ReportOutcome.SKIPPED, JobReason.SOURCES_CHANGED)
    assert attempts.objects == objects


def test_what_an_earlier_attempt_has_committed_is_reported_and_not_made_again(attempts: Attempts) -> None:
    attempts.claim(1)
    first = attempts.run(1)
    before, submitted = attempts.record, list(attempts.engine.submitted)
    again = attempts.run(2)
    assert (again.outcome, again.token) == (ReportOutcome.SUCCEEDED, 2)
    assert again.receipt == first.receipt
    assert (attempts.record, attempts.engine.submitted) == (before, submitted)


def test_without_the_lease_nothing_is_swapped(attempts: Attempts) -> None:
    """It is lost when the tree is written, before the swap."""
    attempts.claim(1)
    before, lease = attempts.record, FakeLease()
    working = attempts.make(1, lease=lease)

    def lose_it() -> float:
        if attempts.readings == 1:  # the second reading: when all is written
            lease.lose_at = 0
        return attempts.time()

    working.monotonic = lose_it
    with pytest.raises(LeaseLostError):
        working.run()
    assert attempts.readings > 1
    assert attempts.record == before


def test_a_swap_whose_answer_is_lost_is_repeated(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts.claim(1)
    calls: list[str] = []

    def swap(*arguments: Any, **options: Any) -> Any:
        calls.append("swap")
        done = swap_base(*arguments, **options)
        if len(calls) < 3:
            raise DatabaseUnavailableError("key-value store", "no answer, as the test wants it")
        return done

    monkeypatch.setattr(rewriter, "swap_base", swap)
    report = attempts.run(1)
    assert (report.outcome, len(calls)) == (ReportOutcome.SUCCEEDED, 3)
    assert attempts.passed > 0
    assert attempts.repo.shown() == attempts.expected


def test_a_database_that_stays_away_ends_it_uncharged(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts.claim(1)
    before = attempts.record

    def away(*_: Any, **__: Any) -> Any:
        raise DatabaseUnavailableError("key-value store", "away, as the test wants it")

    monkeypatch.setattr(rewriter, "swap_base", away)
    report = attempts.run(1)
    assert (report.outcome, report.charged) == (ReportOutcome.FAILED, False)
    assert attempts.passed >= COMMIT_PATIENCE
    assert attempts.record == before
