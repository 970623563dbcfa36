"""What every kind of store promises of scans, claims, attempts and receipts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.policy.policy import CompactionPolicySpec
from compaction.core.reconcile.actions import RunStoreTask, StoreTask
from compaction.core.reconcile.observations import Memory, Moment
from compaction.core.reconcile.preview import Comparison, opens_another_store
from compaction.errors import ClaimRefusedError, CompactionError, StaleTokenError
from compaction.kube.scanning import preview
from compaction.storage.adapter import StoreAdapter
from compaction.worker.errors import JobStoppedError, LeaseLostError
from conformance.harness import Core, Fault, Harness, Job, Strike, succeeded
from support.processes.worker_ports import FakeLease

ALL_CHECKS = 100
"""More than any attempt asks for its lease."""


def test_a_scan_finds_debt_and_none_after_compaction(core: Core, harness: Harness) -> None:
    for number in (1, 2):
        harness.fill(number)
    before = [harness.content(number) for number in (1, 2)]
    reading = core.scan().reading
    assert (reading.problem, reading.problems) == (None, ())
    store = core.policy.spec.store
    assert core.kind.nothing_found(store, reading) is None
    due = core.kind.due(store)
    assert len(reading.candidates) == 2
    for candidate in reading.candidates:
        assert due(candidate)
        assert candidate.target in reading.targets
        assert candidate.debt_bytes > 0
        assert candidate.debt_sources >= 3
        assert candidate.sources
    assert set(reading.measures) == {measure.name for measure in core.kind.measures}
    assert core.scan().reading.says_the_same(reading), "a scan changes nothing"
    previewed(core)
    assert core.scan().reading.says_the_same(reading), "neither does a preview"

    assert [report.outcome for _, report in core.compact()] == [ReportOutcome.SUCCEEDED] * 2
    assert all(candidate.is_empty for candidate in core.scan().reading.candidates)
    assert [harness.content(number) for number in (1, 2)] == before


def previewed(core: Core) -> None:
    """Another spec of the same store is compared by the scans of a preview; no other store is opened for one."""
    policy = core.policy
    smaller = policy.spec.limits.model_copy(update={"max_jobs_queued": 1})
    changed = policy.model_copy(update={"spec": policy.spec.model_copy(update={"limits": smaller})})
    task = RunStoreTask(StoreTask.PREVIEW, proposed=changed.spec, mark="first")

    def opened(spec: CompactionPolicySpec) -> StoreAdapter:
        return core.open(policy.model_copy(update={"spec": spec}))

    scans = preview(opened, policy, task, asked=core.now, clock=lambda: core.now)
    assert (scans.in_force.problem, scans.proposed.problem) == (None, None)
    compared = Comparison((), Memory(), Moment(scans.in_force.wall, core.now))
    answer = compared.answer((policy, changed), (scans.in_force, scans.proposed))
    assert answer.in_force is not None
    assert answer.proposed is not None
    assert (answer.in_force.plan.jobs, answer.proposed.plan.jobs) == (2, 1)
    assert [change.field for change in answer.changes] == ["spec.limits.maxJobsQueued"]
    assert opens_another_store(policy, changed.spec) == ""


def test_a_claim_needs_a_larger_token_than_any_before(core: Core) -> None:
    job = core.filled(1)
    assert core.adapter.high_water(job.target, job.name) == 0
    for token in (3, 7):
        core.claim(job, token)
        assert core.adapter.high_water(job.target, job.name) == token
        for stale in (token, token - 1, 1):
            with pytest.raises(StaleTokenError):
                core.claim(job, stale)
        assert core.adapter.high_water(job.target, job.name) == token
    succeeded(core, job, core.attempt(job, 7))
    assert core.adapter.high_water(job.target, job.name) == 7


def test_a_zombie_commits_nothing(core: Core, harness: Harness) -> None:
    job = core.filled(1)
    before = harness.content(1)
    core.claim(job, 4)
    for stale in (1, 3):
        is_stale(core.attempt(job, stale))
        nothing_changed(core, harness, job, before)
    # Nor one with a token that nobody gave it.
    is_stale(core.attempt(job, 5))
    nothing_changed(core, harness, job, before)
    succeeded(core, job, core.attempt(job, 4))
    assert harness.content(1) == before


@dataclass
class Watched(FakeLease):
    """Something happens right after check number `at` of the lease (from 1)."""

    at: int = 0
    event: Callable[[], object] = int

    def ensure_held(self) -> None:
        super().ensure_held()
        if self.checks == self.at:
            self.event()


def test_an_attempt_that_is_overtaken_at_any_check_changes_nothing_more(core: Core, harness: Harness) -> None:
    """The successor has the job done while the zombie sleeps; then it wakes up and goes on."""
    for number in range(1, ALL_CHECKS):
        job = core.filled(number)
        before = harness.content(number)
        done: list[JobReport] = []
        core.claim(job, 1)

        def overtake(job: Job = job, done: list[JobReport] = done) -> None:
            core.claim(job, 2)
            done.append(core.attempt(job, 2))

        zombie = core.attempt(job, 1, Watched(token=1, at=number, event=overtake))
        assert harness.content(number) == before
        assert core.is_tidy(), "each has removed its own, and nothing of the other's"
        if not done:
            break
        is_stale(zombie)
        core.claim(job, 3)
        assert core.attempt(job, 3).receipt == done[0].receipt, "a job has one record, and each reads the same"
        succeeded(core, job, done[0])
    succeeded(core, job, zombie)
    assert number > 2, "it asks before it works, and before it commits"
    core.sweep_later()
    assert (harness.replaced(), harness.leftovers()) == (set(), set())
    assert harness.content(number) == before


class Stopped(FakeLease):
    """Its worker is asked to stop where the lease would be lost."""

    def ensure_held(self) -> None:
        try:
            super().ensure_held()
        except LeaseLostError:
            raise JobStoppedError("stopped by the test") from None


@pytest.mark.parametrize(("of", "error"), [(FakeLease, LeaseLostError), (Stopped, JobStoppedError)])
def test_an_attempt_that_has_to_end_at_any_check_leaves_nothing(
    core: Core, harness: Harness, of: type[FakeLease], error: type[CompactionError]
) -> None:
    for number in range(1, ALL_CHECKS):
        job = core.filled(number)
        before = harness.content(number)
        core.claim(job, 1)
        lease = of(token=1, lose_at=number)
        with suppress(error):
            report = core.attempt(job, 1, lease)
            break
        assert harness.content(number) == before
        assert core.is_tidy()
        core.claim(job, 2)
        report = core.attempt(job, 2)
        assert report.receipt is not None
        assert report.receipt.token == 2, "the first has not committed all of it"
        succeeded(core, job, report)
        assert harness.content(number) == before
    succeeded(core, job, report)
    assert number > 2, "it asks before it works, and before it commits"


def test_nothing_is_committed_for_a_retired_job(core: Core, harness: Harness) -> None:
    job = core.filled(1)
    before = harness.content(1)
    core.claim(job, 2)
    for _ in range(2):
        core.adapter.retire(job.target, job.name)
        report = core.attempt(job, 2)
        assert report.outcome is not ReportOutcome.SUCCEEDED
        assert report.receipt is None
        nothing_changed(core, harness, job, before)
    with pytest.raises(StaleTokenError):
        core.claim(job, 2)
    core.claim(job, 3)
    succeeded(core, job, core.attempt(job, 3))
    assert harness.content(1) == before


def test_a_committed_job_that_is_run_again_reports_its_receipt(core: Core, harness: Harness) -> None:
    """Its worker died before it could say so, or said it twice."""
    job = core.filled(1)
    before = harness.content(1)
    core.claim(job, 2)
    first = core.attempt(job, 2)
    assert first.receipt is not None
    assert (first.receipt.token, first.receipt.worker) == (2, "worker-2")
    replaced = harness.replaced()
    assert core.attempt(job, 2) == first
    core.scan()
    core.claim(job, 3)
    again = core.attempt(job, 3)
    assert (again.outcome, again.receipt) == (ReportOutcome.SUCCEEDED, first.receipt), "it is that of the commit"
    is_stale(core.attempt(job, 1))
    succeeded(core, job, again)
    assert (harness.content(1), harness.replaced(), harness.leftovers()) == (before, replaced, set())


def test_attempts_that_race_commit_once(core: Core, harness: Harness) -> None:
    """Two coordinators assign the job again and again, to workers that all go on as if they were the only one."""
    job = core.filled(1)
    before = harness.content(1)

    def take(token: int) -> JobReport | None:
        with closing(core.open()) as adapter:
            try:
                adapter.claim(job.spec, job=job.name, token=token)
            except (StaleTokenError, ClaimRefusedError):
                return None
        return core.attempt(job, token)

    with ThreadPoolExecutor(4) as pool:
        reports = [item for item in pool.map(take, [1, 1, 2, 3, 3, 2, 4, 4]) if item is not None]
    allowed = {JobReason.COMPLETED, JobReason.STALE_TOKEN, JobReason.SOURCES_CHANGED}
    assert {report.reason for report in reports} <= allowed, reports
    done = [report for report in reports if report.outcome is ReportOutcome.SUCCEEDED]
    assert len({item.receipt.model_dump_json() for item in done if item.receipt}) == 1, (
        "whoever finds it done says what the first one said"
    )
    assert done[0].receipt is not None
    # A later claim of a job that was committed may leave the store's token as it is.
    assert done[0].receipt.token <= core.adapter.high_water(job.target, job.name) <= 4
    succeeded(core, job, done[0])
    assert harness.content(1) == before
    assert core.is_tidy()
    harness.check()


def is_stale(report: JobReport) -> None:
    assert (report.outcome, report.reason, report.charged) == (ReportOutcome.FAILED, JobReason.STALE_TOKEN, False)


def nothing_changed(core: Core, harness: Harness, job: Job, before: object) -> None:
    assert harness.content(1) == before
    assert (harness.replaced(), harness.leftovers()) == (set(), set())
    assert [item.name for item in core.plan()] == [job.name], "its work is still to be done"


# One bad source never holds up its siblings, whatever the kind of store.


def test_a_damaged_source_is_named_and_its_siblings_are_compacted(core: Core, harness: Harness) -> None:
    job = core.filled(1)
    harness.fill(2)
    before = [harness.content(number) for number in (1, 2)]
    group = max(core.kind.parts(job.spec).groups, key=len)
    victim = group[0]
    repair = harness.damage(job.target, victim)
    jobs = core.compact()
    named = [item for _, report in jobs for item in report.skipped]
    assert {item.source for item in named} == {victim}
    for item in named:
        assert item.reason
        assert victim in item.message
    done = {(job.target, name) for job, report in jobs if report.receipt for name in report.receipt.sources}
    siblings = {name for target, name in done if target == job.target}
    assert bool(siblings) is not harness.indivisible
    assert siblings <= set(job.sources) - {victim}
    others = {target for target, _ in done} - {job.target}
    assert len(others) == 1, "and the other target"
    assert core.plan() == (), "it is not tried again and again"
    assert harness.content(2) == before[1]
    core.sweep_later()
    place = job.target, victim
    damaged = core.scan().reading.identity(*place)
    assert damaged
    assert {item.identity for item in named} <= {damaged, ""}, "what was found damaged, where the attempt knows it"

    # It is repaired: nothing of it was lost, and nothing of it was merged.
    repair()
    assert [harness.content(number) for number in (1, 2)] == before
    repaired = core.scan(released=frozenset({place})).reading.identity(*place)
    assert repaired != damaged, "which ends its quarantine"
    core.quarantined.clear()
    core.compact()
    assert [harness.content(number) for number in (1, 2)] == before


# What a sweep of every kind of store deletes, and what it does not.


def test_what_was_replaced_stays_for_its_grace(core: Core, harness: Harness) -> None:
    job = core.filled(1)
    before = harness.content(1)
    core.claim(job, 1)
    succeeded(core, job, core.attempt(job, 1))
    replaced = harness.replaced()
    assert replaced

    scan = core.scan()
    assert scan.sweep_in is not None
    assert 0 < scan.sweep_in <= 3600
    assert scan.overdue == 0
    swept = core.sweep()
    assert (swept.deleted, swept.problems) == (0, ())
    assert harness.replaced() == replaced
    assert all(harness.opens(job.target, source) for source in job.sources), "old names stay readable"

    swept = core.sweep_later()
    assert (swept.deleted, swept.problems) == (len(replaced), ())
    assert harness.replaced() == set()
    assert harness.content(1) == before
    harness.check()

    harness.fill(2)
    waiting = harness.content(2)
    assert core.sweep_later().deleted == 0, "nothing more, and nothing of what waits to be compacted"
    assert (harness.content(1), harness.content(2)) == (before, waiting)


def test_leftovers_of_dead_attempts_are_collected_and_those_of_the_current_one_are_not(
    core: Core, harness: Harness
) -> None:
    job, token = dead_halfway(core, harness)
    left, before = harness.leftovers(), harness.content(1)
    assert left
    core.sweep_later((job.name, token))
    assert harness.leftovers() == left, "the attempt may still commit it"
    core.claim(job, token + 1)
    core.sweep_later((job.name, token + 1))
    assert core.is_tidy(), "the current attempt has not begun"
    assert harness.content(1) == before
    succeeded(core, job, core.attempt(job, token + 1))
    core.sweep_later()
    assert harness.leftovers() == set()
    assert harness.content(1) == before


def test_leftovers_of_a_job_that_was_given_up_are_collected(core: Core, harness: Harness) -> None:
    job, _ = dead_halfway(core, harness)
    before = harness.content(1)
    core.adapter.retire(job.target, job.name)
    core.held.clear()
    core.sweep_later()
    assert harness.leftovers() == set()
    assert harness.content(1) == before
    core.compact()
    assert harness.content(1) == before


def dead_halfway(core: Core, harness: Harness) -> tuple[Job, int]:
    """The job of target 1, and the token of the attempt that has died and left something."""
    counted = core.filled(0)
    core.claim(counted, 1)
    with harness.struck(None) as undisturbed:
        succeeded(core, counted, core.attempt(counted, 1))
    core.sweep_later()
    harness.fill(1)
    (job,) = core.plan()
    for token, strike in enumerate(harness.strikes(undisturbed.calls, Fault.DEATH), start=1):
        core.claim(job, token)
        with pytest.raises(harness.death), harness.struck(strike):
            core.attempt(job, token)
        if harness.leftovers():
            return job, token
    raise AssertionError("no attempt leaves anything")


# Death of a worker, and answers that get lost, at every call of an attempt at its store.
#
# Whatever the call: readers find the same records before and after; the next attempt, with a larger token, ends the
# job; and when the coordinator has swept, nothing is left on storage but what readers need.


def strikes(core: Core, harness: Harness, fault: Fault) -> list[tuple[int, Strike]]:
    """The faults, from those of an attempt that nothing happens to, each with the number of a target for it."""
    job = core.filled(0)
    core.claim(job, 1)
    with harness.struck(None) as counted:
        report = core.attempt(job, 1)
    succeeded(core, job, report)
    found = harness.strikes(counted.calls, fault)
    assert len(found) > 5, "the calls of the store are not those that are counted"
    return list(enumerate(found, start=1))


def test_death_at_every_call(core: Core, harness: Harness) -> None:
    contents = {}
    for number, strike in strikes(core, harness, Fault.DEATH):
        job = core.filled(number)
        contents[number] = harness.content(number)
        core.claim(job, 1)
        with pytest.raises(harness.death), harness.struck(strike):
            core.attempt(job, 1)
        assert harness.content(number) == contents[number], f"{strike}: as it was left"
        harness.check()
        core.scan()
        assert harness.content(number) == contents[number], f"{strike}: after a scan"
        is_finished(core, harness, job, strike)
        assert harness.content(number) == contents[number], strike
    is_tidy(core, harness, contents)


def test_lost_answer_at_every_call(core: Core, harness: Harness) -> None:
    contents = {}
    for number, strike in strikes(core, harness, Fault.LOST):
        job = core.filled(number)
        contents[number] = harness.content(number)
        core.claim(job, 1)
        with harness.struck(strike):
            report = core.attempt(job, 1)
        assert harness.content(number) == contents[number], strike
        assert core.is_tidy(), strike
        if report.outcome is not ReportOutcome.SUCCEEDED:
            assert not harness.survives(strike), strike
            assert (report.reason, report.charged) == (JobReason.STORE_UNREADABLE, harness.charged), strike
        is_finished(core, harness, job, strike)
        assert harness.content(number) == contents[number], strike
    is_tidy(core, harness, contents)


def is_finished(core: Core, harness: Harness, job: Job, strike: Strike) -> None:
    """What the coordinator and the next worker do ends the job, whether it was committed or not."""
    assert core.adapter.high_water(job.target, job.name) == 1
    core.claim(job, 2)
    report = core.attempt(job, 2)
    assert report.outcome is ReportOutcome.SUCCEEDED, f"{strike}: {report.message}"
    succeeded(core, job, report)
    harness.check()


def is_tidy(core: Core, harness: Harness, contents: dict[int, object]) -> None:
    assert core.plan() == (), "all is done"
    assert core.sweep_later().problems == ()
    assert (harness.leftovers(), harness.replaced()) == (set(), set())
    assert {number: harness.content(number) for number in contents} == contents
