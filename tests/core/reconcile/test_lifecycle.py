"""A policy's life through `reconcile`, on a simulated world: normal runs, losses, crashes, deletion."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from compaction.api.conditions import get_condition, is_true
from compaction.api.enums import AttemptOutcome, JobReason, PolicyReason, WaitReason
from compaction.api.policy.policy import CompactionPolicyStatus
from compaction.core.planning.debt import TargetProblem
from compaction.core.reconcile.actions import StoreTask
from compaction.core.reconcile.observations import ClaimProblem, frozen
from compaction.core.reconcile.policy import reconcile
from compaction.segments.reasons import SegmentReason
from support.cluster.world import GAIN, A, Crash, F, P, PlainCluster, S, U


def started(groups: int = 1, **spec: object) -> PlainCluster:
    """One log, one job, one worker, and the job running."""
    world = PlainCluster(**spec)
    world.add_log("/ra/a", groups)
    world.settle()
    world.announce()
    world.settle()
    assert world.state(world.only_job()) is P
    return world


def missing_of(world: PlainCluster) -> float:
    debt = status_of(world).debt
    assert debt is not None
    return debt.measure("missingLiveEntries")


def status_of(world: PlainCluster) -> CompactionPolicyStatus:
    assert world.policy is not None
    return world.policy.status


def later(world: PlainCluster, seconds: float) -> None:
    """Time passes; whoever runs renews."""
    world.wall += seconds
    for worker in world.workers.values():
        worker.changed_at = world.wall
    for job, lease in world.leases.items():
        if world.workers.get(lease.holder) and world.workers[lease.holder].process == "running":
            world.renew(job)


class TestFromPolicyToReceipt:
    def test_everything_once(self) -> None:
        world = started(groups=3)
        job = world.only_job()
        world.finish(job)
        for seconds in (1, 11, 1):
            later(world, seconds)
            world.settle()
        status = status_of(world)
        assert world.state(job) is S
        assert world.leases == {}
        assert (status.succeeded, status.bytes_reclaimed, status.active, status.queued) == (1, 3 * GAIN, 0, 0)
        assert status.debt is not None
        assert status.debt.bytes == 0
        assert is_true(status.conditions, "Ready")
        assert status.observed_generation == 1
        assert is_true(world.jobs[job].status.conditions, "Complete")
        assert world.jobs[job].status.receipt is not None

    def test_api_writes_per_job_are_bounded(self) -> None:
        """docs/design/invariants.md, 6: create, Lease, in progress, progress twice at most, finished, Lease gone."""
        world = started()
        job = world.only_job()
        for progress in range(0, 100, 5):
            later(world, 1)
            world.renew(job, progress=progress)
            world.settle()
        world.finish(job)
        world.settle()
        assert world.writes <= 7

    def test_a_quiet_policy_writes_nothing(self) -> None:
        world = PlainCluster()
        world.add_log("/ra/a", 0)
        for _ in range(5):
            world.settle()
            world.wall += 11
        before = world.status_writes
        for _ in range(10):
            world.wall += 1
            world.reconcile()
        assert world.status_writes == before

    def test_a_plan_shows_why_candidates_were_left_out(self) -> None:
        world = PlainCluster(store={"segmentLogs": {"root": "/ra", "thresholds": {"debtSegments": 2}}})
        world.add_log("/ra/a", 1)
        world.settle()
        world.wall += 1
        world.settle()
        plan = status_of(world).plan
        assert plan is not None
        assert [(row.reason, row.count) for row in plan.left_out] == [("BelowThreshold", 1)]
        assert world.jobs == {}

    def test_cooldown_holds_and_its_job_is_kept_for_it(self) -> None:
        world = PlainCluster(trigger={"cooldown": "10m"}, successfulJobsHistoryLimit=0)
        log = world.add_log("/ra/a", 1)
        world.settle()
        world.announce()
        world.settle()
        world.finish(world.only_job())
        log.groups.append("0000000000000009.segment")
        for _ in range(9):
            later(world, 60)
            world.settle()
            assert len(world.jobs) == 1
        for _ in range(3):
            later(world, 61)
            world.settle()
        assert [world.state(name) for name in world.jobs] == [P]


class TestScheduling:
    def test_concurrency_slots_and_launching(self) -> None:
        world = PlainCluster(limits={"maxConcurrentJobs": 3}, workers={"max": 5, "slots": 2})
        for i in range(6):
            world.add_log(f"/ra/{i}")
        world.settle()
        assert len(world.workers) == 2, "three jobs need two workers of two slots"
        world.announce()
        world.settle()
        assert len(world.in_state(P)) == 3
        world.wall += 1
        world.settle()
        waiting = status_of(world).waiting
        assert waiting is not None
        assert waiting.reason == WaitReason.CONCURRENCY_LIMIT

    def test_the_status_that_counts_new_jobs_says_what_they_wait_for(self) -> None:
        """Should the coordinator die right then, nobody would write it for a while."""
        world = PlainCluster()
        world.add_log("/ra/a")
        world.reconcile()
        world.wall += 1
        assert world.reconcile().create_jobs
        status = status_of(world)
        assert (status.queued, status.waiting and status.waiting.reason) == (1, WaitReason.JUST_PLANNED)

    def test_waiting_for_a_worker_is_said_with_its_age(self) -> None:
        world = PlainCluster()
        world.add_log("/ra/a")
        world.settle()
        world.wall += 1
        world.settle()
        waiting = status_of(world).waiting
        assert waiting is not None
        assert waiting.reason == WaitReason.WORKER_STARTING
        since = waiting.since
        world.wall += 30
        world.settle()
        waiting = status_of(world).waiting
        assert waiting is not None
        assert waiting.since == since

    def test_a_suspended_policy_starts_nothing_and_lets_running_jobs_finish(self) -> None:
        world = PlainCluster(limits={"maxConcurrentJobs": 1})
        world.add_log("/ra/a")
        world.add_log("/ra/b")
        world.settle()
        world.announce()
        world.settle()
        world.change_spec(suspend=True)
        world.add_log("/ra/c")
        (running,) = world.in_state(P)
        world.finish(running)
        later(world, 60)
        world.settle()
        later(world, 60)
        world.settle()
        assert (len(world.in_state(S)), len(world.in_state(U)), len(world.jobs)) == (1, 1, 2)
        ready = get_condition(status_of(world).conditions, "Ready")
        assert ready is not None
        assert ready.reason == PolicyReason.SUSPENDED
        waiting = status_of(world).waiting
        assert waiting is not None
        assert waiting.reason == WaitReason.SUSPENDED

    def test_one_job_of_a_log_at_a_time(self) -> None:
        world = PlainCluster(limits={"maxBytesPerJob": 50})
        world.add_log("/ra/a", 3)
        world.settle()
        world.announce()
        world.settle()
        assert len(world.jobs) == 3
        assert len(world.in_state(P)) == 1
        for _ in range(3):
            world.finish(world.in_state(P)[0])
            later(world, 1)
            world.settle()
        assert len(world.in_state(S)) == 3

    def test_launches_that_fail_are_spaced_out_and_said(self) -> None:
        world = PlainCluster()
        world.add_log("/ra/a")
        world.settle()
        launched = 1
        for _ in range(60):
            for worker in world.workers.values():
                if worker.process == "running":
                    worker.process = "ended"
                    launched += 1
            world.wall += 1
            world.settle()
        assert launched <= 6
        stalled = get_condition(status_of(world).conditions, "Stalled")
        assert stalled is not None
        assert stalled.reason == PolicyReason.LAUNCH_FAILED
        assert "exit code 1" in stalled.message
        world.wall += 300
        world.settle()
        world.announce()
        world.settle()
        world.wall += 1
        world.settle()
        assert get_condition(status_of(world).conditions, "Stalled") is None

    def test_a_worker_that_never_announces_itself_is_stopped(self) -> None:
        world = PlainCluster()
        world.add_log("/ra/a")
        world.settle()
        (name,) = world.workers
        world.wall += 301
        world.settle()
        assert name not in world.workers
        assert any(reason == "WorkerFailed" for reason, _ in world.events)


class TestLosses:
    def test_expiry_is_charged_and_the_next_attempt_has_a_larger_token(self) -> None:
        world = started()
        job = world.only_job()
        world.wall += 14.9
        world.settle()
        assert world.state(job) is P
        world.wall += 0.1
        for worker in world.workers.values():
            worker.changed_at = world.wall
        world.settle()
        status = world.jobs[job].status
        assert (status.state, status.failures, status.fencing_token) == (P, 1, 2)
        assert status.attempts[0].outcome is AttemptOutcome.EXPIRED
        assert status.attempts[0].charged
        assert not world.commit(job, 1), "the zombie commits nothing"

    def test_the_output_of_an_attempt_stays_until_its_end_is_written(self) -> None:
        """The sweep begins with the decision that ends the attempt, whose write may yet fail."""
        world = started()
        job = world.only_job()
        world.wall += 15
        for worker in world.workers.values():
            worker.changed_at = world.wall
        world.memory = replace(world.memory, store=replace(world.memory.store, sweep_due=world.wall))
        decision = world.reconcile()
        assert [end.job.name for end in decision.end_attempts] + [
            assignment.job.name for assignment in decision.assignments
        ]
        assert [(job, 1) in task.active for task in decision.store_tasks if task.task is StoreTask.SWEEP] == [True]

    def test_exactly_max_attempts_attempts(self) -> None:
        world = started()
        job = world.only_job()
        for _ in range(10):
            world.wall += 16
            for worker in world.workers.values():
                worker.changed_at = world.wall
            world.settle()
        status = world.jobs[job].status
        assert (status.state, status.failures, len(status.attempts)) == (F, 3, 3)
        failed = get_condition(status.conditions, "Failed")
        assert failed is not None
        assert failed.reason == JobReason.TOO_MANY_ATTEMPTS
        assert job in world.logs["/ra/a"].retired, "its last owner may not commit any more"
        assert world.leases == {}

    def test_raising_the_limit_makes_it_eligible_again(self) -> None:
        world = started(limits={"maxAttempts": 1})
        job = world.only_job()
        world.report(job, outcome="Failed")
        world.settle()
        assert world.state(job) is F
        world.change_spec(limits={"maxAttempts": 2})
        later(world, 5)
        world.settle()
        assert world.state(job) is P
        assert get_condition(world.jobs[job].status.conditions, "Failed") is None
        world.finish(job)
        later(world, 1)
        world.settle()
        assert world.state(job) is S

    @pytest.mark.parametrize("known", [True, False])
    def test_a_dead_worker_is_not_charged(self, known: bool) -> None:
        world = started()
        job, (worker,) = world.only_job(), world.workers
        if known:
            world.die(worker)
        else:
            world.workers[worker].has_lease = False
        world.reconcile()
        status = world.jobs[job].status
        assert status.failures == 0
        assert status.attempts[0].outcome is AttemptOutcome.LOST
        assert not status.attempts[0].charged
        world.settle()
        world.announce()
        world.settle()
        assert world.jobs[job].status.fencing_token == 2

    def test_a_job_that_kills_every_worker_ends(self) -> None:
        world = started()
        job = world.only_job()
        for _ in range(40):
            if world.state(job) is F:
                break
            for name in list(world.workers):
                world.die(name)
            world.wall += 400
            world.settle()
            world.announce()
            world.settle()
        assert world.state(job) is F
        assert len(world.jobs[job].status.attempts) == 13

    def test_a_failure_report_waits_before_the_next_attempt(self) -> None:
        world = started()
        job = world.only_job()
        world.report(job, outcome="Failed")
        decision = world.settle()
        assert world.state(job) is A
        assert decision.requeue_after is not None
        assert decision.requeue_after <= 1.0
        later(world, 1)
        world.settle()
        assert world.state(job) is P

    def test_a_worker_that_stops_gives_its_job_back_at_once(self) -> None:
        world = started(workers={"max": 2})
        job = world.only_job()
        world.report(job, outcome="Failed", reason="WorkerStopped", charged=False)
        world.settle()
        status = world.jobs[job].status
        assert (status.state, status.failures) == (P, 0)

    def test_a_lease_taken_away_by_hand_is_no_failure_of_the_job(self) -> None:
        world = started()
        job = world.only_job()
        del world.leases[job]
        world.reconcile()
        assert world.jobs[job].status.attempts[0].outcome is AttemptOutcome.LOST
        world.settle()
        assert (world.jobs[job].status.fencing_token, world.jobs[job].status.failures) == (2, 0)

    def test_a_worker_that_missed_a_renewal_gets_nothing_new(self) -> None:
        world = started()
        world.add_log("/ra/b")
        world.wall += 8
        world.renew(world.only_job())
        world.change_spec(trigger={"interval": "2s"})
        world.settle()
        assert len(world.in_state(U)) == 1
        world.announce()
        world.settle()
        assert len(world.in_state(P)) == 2

    def test_a_silent_worker_gets_no_jobs_and_is_stopped_in_the_end(self) -> None:
        world = started()
        (worker,) = world.workers
        world.add_log("/ra/b")
        world.wall += 20
        world.settle()
        assert not [j for j in world.in_state(P) if world.jobs[j].status.worker == worker]
        world.wall += 30
        world.settle()
        assert worker not in world.workers


class TestReports:
    """docs/design/scheduling.md#scenarios-of-the-scheduler, S1-S6, S9, S10 with our outcomes."""

    def test_s1_s9_a_late_renewal_counts_until_the_silence_is_noticed(self) -> None:
        world = started()
        job = world.only_job()
        world.wall += 20
        world.renew(job)
        world.settle()
        assert world.jobs[job].status.fencing_token == 1
        assert world.state(job) is P

    @pytest.mark.parametrize("token", [0, 2, 99])
    def test_s2_s6_another_token_is_refused_also_a_larger_one(self, token: int) -> None:
        world = started()
        job = world.only_job()
        world.report(job, token=token)
        world.settle()
        assert world.state(job) is P

    def test_s4_an_unreadable_report_is_a_failure_that_says_so(self) -> None:
        world = started()
        job = world.only_job()
        snapshot = world.snapshot()
        assert snapshot.jobs[0].lease is not None
        lease = replace(snapshot.jobs[0].lease, report_error="outcome: Input should be 'Succeeded'")
        decision = reconcile(replace(snapshot, jobs=(replace(snapshot.jobs[0], lease=lease),)))
        (end,) = decision.end_attempts
        assert end.status is not None
        assert end.status.attempts[-1].reason == JobReason.INTERNAL_ERROR
        assert end.job.name == job

    def test_s5_complete(self) -> None:
        world = started()
        job = world.only_job()
        world.finish(job)
        world.reconcile()
        assert world.state(job) is S

    def test_s10_a_late_success_counts_while_nobody_else_has_the_job(self) -> None:
        """Expired, given up, no slot free; then the old worker is back with the work done."""
        world = started()
        job = world.only_job()
        lease = world.leases[job]
        world.wall += 16
        for worker in world.workers.values():
            worker.has_lease = True
            worker.slots = 0
            worker.changed_at = world.wall
        world.settle()
        assert world.state(job) is A
        world.leases[job] = lease
        assert world.commit(job, 1)
        world.report(job)
        world.settle()
        assert world.state(job) is S
        assert world.jobs[job].status.failures == 1
        assert world.leases == {}

    def test_a_report_after_the_reassignment_changes_nothing(self) -> None:
        world = started()
        job = world.only_job()
        world.wall += 16
        for worker in world.workers.values():
            worker.changed_at = world.wall
        world.settle()
        assert world.jobs[job].status.fencing_token == 2
        assert not world.commit(job, 1)
        world.report(job, token=1)
        world.settle()
        assert world.state(job) is P

    def test_a_damaged_source_is_quarantined_and_its_siblings_are_planned_anew(self) -> None:
        world = started(groups=3)
        job, bad = world.only_job(), "0000000000000002.segment"
        log = world.logs["/ra/a"]
        log.groups = [bad]
        log.commits = [(job, 1, "0000000000000001.segment"), (job, 1, "0000000000000003.segment")]
        skipped = [{"source": bad, "index": 7, "offset": 99, "reason": "SourceCorrupt", "message": "bad CRC"}]
        world.report(
            job,
            outcome="Failed",
            reason="SourceCorrupt",
            skipped=skipped,
            receipt={**world.receipt(job, 1), "groups": 3, "groupsCommitted": 2},
        )
        later(world, 1)
        world.settle()
        later(world, 1)
        world.settle()
        status = status_of(world)
        assert world.state(job) is F
        assert world.jobs[job].status.skipped[0].offset == 99
        (entry,) = status.quarantined
        assert (entry.target, entry.source, entry.index, entry.identity) == ("/ra/a", bad, 7, "id")
        assert status.bytes_reclaimed == 2 * GAIN, "what was committed counts, once"
        assert len(world.jobs) == 1, "the culprit is not planned again"
        ready = get_condition(status.conditions, "Ready")
        assert ready is not None
        assert (ready.status, ready.reason) == ("False", PolicyReason.SOURCES_QUARANTINED)
        assert ready.message.startswith("1 damaged segment quarantined: /")
        assert ready.message.endswith(". Restore the file to end its quarantine.")
        assert bad in ready.message

        world.quarantine_identity["/ra/a", bad] = "mended"
        later(world, 61)
        world.settle()
        later(world, 61)
        world.settle()
        assert status_of(world).quarantined == ()
        assert len(world.jobs) == 2, "a mended file is planned again"

    def test_a_file_mended_before_anybody_looked_is_not_set_aside(self) -> None:
        world = started(groups=2)
        job, bad = world.only_job(), "0000000000000002.segment"
        world.logs["/ra/a"].groups = [bad]
        skipped = [{"source": bad, "reason": "SourceCorrupt", "message": "bad CRC", "identity": "damaged"}]
        world.report(job, outcome="Failed", reason="SourceCorrupt", skipped=skipped)
        world.quarantine_identity["/ra/a", bad] = "mended"
        world.reconcile()
        later(world, 1)
        world.reconcile()
        (entry,) = status_of(world).quarantined
        assert entry.identity == "damaged"
        for _ in range(3):
            later(world, 61)
            world.settle()
        assert status_of(world).quarantined == ()
        assert len(world.jobs) == 2, "it is planned again"

    def test_sources_that_changed_park_nothing_for_long(self) -> None:
        world = started()
        job = world.only_job()
        world.report(job, outcome="Failed", reason="SourcesChanged")
        later(world, 1)
        world.settle()
        later(world, 1)
        world.settle()
        assert world.state(job) is F
        assert status_of(world).faulty == 0, "its work is planned anew; nobody has to act"


class TestCrashes:
    def test_adoption_after_a_crash_between_lease_and_status(self) -> None:
        world = PlainCluster()
        world.add_log("/ra/a")
        world.settle()
        world.announce()
        with pytest.raises(Crash):
            world.reconcile(crash_after=2)
        job = world.only_job()
        assert (world.state(job), world.leases[job].token) == (U, 1)
        world.reconcile()
        assert (world.state(job), world.jobs[job].status.fencing_token) == (P, 1)
        assert len(world.jobs[job].status.attempts) == 1

    def test_a_crash_between_claim_and_lease_costs_a_token(self) -> None:
        world = PlainCluster()
        world.add_log("/ra/a")
        world.settle()
        world.announce()
        with pytest.raises(Crash):
            world.reconcile(crash_after=1)
        world.settle()
        job = world.only_job()
        assert (world.state(job), world.jobs[job].status.fencing_token) == (P, 2)

    @pytest.mark.parametrize("crash_after", range(1, 12))
    @pytest.mark.parametrize("when", range(8))
    def test_totals_are_exact_whenever_it_dies(self, crash_after: int, when: int) -> None:
        world = PlainCluster(successfulJobsHistoryLimit=0)
        for i in range(3):
            world.add_log(f"/ra/{i}", 2)
        for step in range(40):
            world.announce()
            for job in list(world.leases):
                if job in world.jobs and world.leases[job].report is None:
                    world.finish(job)
            with suppress(Crash):
                world.reconcile(crash_after=crash_after if step == when else None)
            later(world, 3)
        assert world.committed == 6 * GAIN
        assert (status_of(world).bytes_reclaimed, status_of(world).succeeded) == (6 * GAIN, 3)
        assert world.jobs == {}, "beyond the history limit, and counted"
        assert world.leases == {}

    def test_a_restart_keeps_what_runs(self) -> None:
        world = started()
        job = world.only_job()
        world.restart()
        world.settle()
        assert (world.state(job), world.jobs[job].status.fencing_token) == (P, 1)


class TestForgetting:
    def test_a_job_in_the_place_of_a_deleted_one_counts_by_itself(self) -> None:
        world = started()
        job = world.only_job()
        world.finish(job)
        for _ in range(2):
            later(world, 11)
            world.settle()
        assert (status_of(world).succeeded, status_of(world).bytes_reclaimed) == (1, GAIN)
        old = world.jobs[job]
        metadata = old.metadata.model_copy(update={"uid": "another", "resource_version": world.bump()})
        world.jobs[job] = old.model_copy(update={"metadata": metadata})
        for _ in range(3):
            later(world, 11)
            world.settle()
        status = status_of(world)
        assert (status.succeeded, status.bytes_reclaimed) == (2, 2 * GAIN)
        assert [(entry.job, entry.uid) for entry in status.counted] == [(job, "another")]

    def test_history_limits(self) -> None:
        world = PlainCluster(successfulJobsHistoryLimit=2)
        for i in range(5):
            world.add_log(f"/ra/{i}")
        for _ in range(12):
            world.settle()
            world.announce()
            for job in world.in_state(P):
                world.finish(job)
            later(world, 3)
        world.settle()
        assert len(world.in_state(S)) == 2
        assert status_of(world).succeeded == 5
        assert set(world.deleted) <= set().union(*(log.retired for log in world.logs.values()))

    def test_a_full_queue_evicts_parked_jobs_and_plans_them_again_later(self) -> None:
        world = PlainCluster(limits={"maxJobsQueued": 1, "maxAttempts": 1})
        world.add_log("/ra/a")
        world.settle()
        world.announce()
        world.settle()
        first = world.only_job()
        world.report(first, outcome="Failed")
        later(world, 1)
        world.settle()
        world.add_log("/ra/b")
        later(world, 60)
        world.settle()
        later(world, 1)
        world.settle()
        assert first in world.deleted
        (second,) = world.in_state(P)
        assert second != first
        world.finish(second)
        for _ in range(12):
            later(world, 61)
            world.settle()
        assert first in world.jobs, "evicted work is planned again, never lost"

    def test_jobs_of_a_log_that_is_gone_go_too(self) -> None:
        world = PlainCluster()
        world.add_log("/ra/a")
        world.settle()
        del world.logs["/ra/a"]
        world.add_log("/ra/b", 0)
        world.wall += 61
        world.settle()
        world.wall += 61
        world.settle()
        assert world.jobs == {}


class TestDeletion:
    def test_a_policy_deleted_mid_run_leaves_nothing(self) -> None:
        world = started(groups=2)
        job = world.only_job()
        token = world.leases[job].token
        world.policy = None
        decision = world.reconcile()
        assert decision.policy_absent
        world.settle()
        assert (world.jobs, world.leases, world.workers) == ({}, {}, {})
        assert not world.commit(job, token), "fenced off before its job was deleted"
        assert world.reconcile().requeue_after is None

    @pytest.mark.parametrize("crash_after", range(1, 8))
    def test_whenever_the_coordinator_dies_meanwhile(self, crash_after: int) -> None:
        world = PlainCluster()
        for i in range(2):
            world.add_log(f"/ra/{i}")
        world.settle()
        world.announce()
        world.settle()
        world.policy = None
        with pytest.raises(Crash):
            world.reconcile(crash_after=crash_after)
        world.settle()
        assert (world.jobs, world.leases, world.workers) == ({}, {}, {})

    def test_a_namesake_gets_none_of_the_old_children(self) -> None:
        world = started()
        old = world.only_job()
        world.policy = world.make_policy("uid-2")
        world.restart()
        world.settle()
        assert old not in world.jobs
        assert all(worker.owner == "uid-2" for worker in world.workers.values())
        (new,) = world.jobs
        assert new != old

    def test_a_job_made_by_hand_waits_for_its_policy(self) -> None:
        world = started()
        job = world.only_job()
        body = world.jobs[job].to_object()
        del body["metadata"]["ownerReferences"]
        world.jobs[job] = type(world.jobs[job]).from_object(body)
        policy, world.policy = world.policy, None
        world.settle()
        status = world.jobs[job].status
        assert status.waiting is not None
        assert (status.state, status.waiting.reason) == (A, WaitReason.POLICY_NOT_FOUND)
        assert world.leases == {}
        world.policy = policy
        world.settle()
        world.announce()
        world.settle()
        assert world.state(job) is P
        assert world.jobs[job].status.waiting is None

    def test_a_hand_made_job_outside_the_root_is_refused(self) -> None:
        world = PlainCluster()
        world.add_log("/ra/a")
        world.settle()
        job = world.only_job()
        body = world.jobs[job].to_object()
        del body["metadata"]["ownerReferences"]
        body["spec"]["sources"]["segmentLog"]["path"] = "/etc"
        world.jobs[job] = type(world.jobs[job]).from_object(body)
        world.logs["/etc"] = world.logs["/ra/a"]
        world.settle()
        assert world.state(job) is F
        failed = get_condition(world.jobs[job].status.conditions, "Failed")
        assert failed is not None
        assert "not below /ra" in failed.message


class TestConditions:
    def test_a_root_that_cannot_be_read(self) -> None:
        world = PlainCluster()
        world.problem = TargetProblem("/ra", SegmentReason.ROOT_NOT_FOUND, "/ra does not exist: create it")
        world.settle()
        world.wall += 1
        world.settle()
        stalled = get_condition(status_of(world).conditions, "Stalled")
        assert stalled is not None
        assert (stalled.reason, stalled.message) == (SegmentReason.ROOT_NOT_FOUND, "/ra does not exist: create it")
        world.problem = None
        world.wall += 61
        world.settle()
        world.wall += 1
        world.settle()
        assert is_true(status_of(world).conditions, "Ready")

    def test_patterns_that_select_nothing_are_said(self) -> None:
        store = {"segmentLogs": {"root": "/ra", "include": ["tenant-*", "other"], "exclude": ["**/old"]}}
        world = PlainCluster(store=store)
        world.settle()
        later(world, 61)
        world.settle()
        ready = get_condition(status_of(world).conditions, "Ready")
        assert ready is not None
        assert (ready.status, ready.reason) == ("True", SegmentReason.NO_LOGS_FOUND)
        assert "below /ra that matches tenant-*, other without **/old" in ready.message

    def test_one_unreadable_log_does_not_stop_the_others(self) -> None:
        world = PlainCluster()
        world.problems = (TargetProblem("/ra/x", "LiveSetUnknown", "/ra/x: no indexes file: say what is live"),)
        world.add_log("/ra/a")
        world.settle()
        world.announce()
        world.settle()
        world.finish(world.only_job())
        later(world, 1)
        world.settle()
        later(world, 1)
        world.settle()
        status = status_of(world)
        assert status.succeeded == 1
        assert [entry.target for entry in status.target_errors] == ["/ra/x"]
        stalled = get_condition(status.conditions, "Stalled")
        assert stalled is not None
        assert stalled.reason == PolicyReason.SOURCES_UNREADABLE
        assert "say what is live" in stalled.message

    def test_a_running_owner_stalls_the_policy_under_its_own_name_and_is_announced(self) -> None:
        world = PlainCluster()
        world.problems = tuple(TargetProblem(f"/ra/{x}", "OwnerRunning", f"/ra/{x}: the owner runs") for x in "xy")
        world.settle()
        later(world, 61)
        world.settle()
        stalled = get_condition(status_of(world).conditions, "Stalled")
        assert stalled is not None
        assert (stalled.reason, stalled.message) == ("OwnerRunning", "/ra/x: the owner runs (2 logs in all)")
        told = [message for reason, message in world.events if reason == "OwnerRunning"]
        assert told == ["/ra/x: the owner runs (2 logs in all)"]
        world.problems = (*world.problems, TargetProblem("/ra/z", "LiveSetUnknown", "/ra/z: say what is live"))
        later(world, 61)
        world.settle()
        stalled = get_condition(status_of(world).conditions, "Stalled")
        assert stalled is not None
        assert stalled.reason == PolicyReason.SOURCES_UNREADABLE

    def test_missing_entries_are_in_status_and_announced_when_there_are_first_some(self) -> None:
        world = PlainCluster()
        world.missing_entries = 3
        world.settle()
        later(world, 61)
        world.settle()
        assert missing_of(world) == 3
        assert get_condition(status_of(world).conditions, "Stalled") is None
        told = [message for reason, message in world.events if reason == "LiveEntriesMissing"]
        assert told == ["3 live entries in no segment of their logs: in a write-ahead log, or lost"]
        world.missing_entries = 0
        later(world, 61)
        world.settle()
        assert missing_of(world) == 0

    def test_many_small_logs_have_an_eta(self) -> None:
        """Each copied in no time: what lasts is to hand the jobs out, which the receipts know nothing of."""
        world = PlainCluster(workers={"max": 1, "slots": 1})
        for number in range(12):
            world.add_log(f"/ra/{number:02d}")
        world.settle()
        world.announce()
        world.settle()
        for _ in range(6):
            world.finish(world.in_state(P)[0])
            later(world, 2)
            world.settle()
        later(world, 61)
        world.settle()
        later(world, 11)
        world.settle()
        status = status_of(world)
        assert status.active == 1
        left = len(world.logs) - 6
        assert status.eta_seconds == pytest.approx(left * 2, abs=4)

    def test_no_eta_while_nothing_runs(self) -> None:
        world = PlainCluster(limits={"maxBytesPerJob": 50})
        world.add_log("/ra/a", 10)
        world.settle()
        world.announce()
        world.settle()
        for _ in range(3):
            world.finish(world.in_state(P)[0])
            later(world, 11)
            world.settle()
        queued = world.in_state(U)
        assert queued
        refused = ClaimProblem("LockHeld", "somebody holds it", since=world.wall, retry_at=world.wall + 1e6)
        world.memory = replace(world.memory, claims=frozen(dict.fromkeys(queued, refused)))
        assert status_of(world).eta_seconds is not None
        world.finish(world.in_state(P)[0])
        for _ in range(2):
            later(world, 61)
            world.settle()
        status = status_of(world)
        assert (status.active, status.queued, status.waiting and status.waiting.reason) == (0, len(queued), "LockHeld")
        assert status.eta_seconds is None

    def test_no_eta_of_nothing_while_a_job_is_stuck(self) -> None:
        world = started()
        world.logs["/ra/a"].groups = []
        for _ in range(3):
            later(world, 61)
            world.settle()
        status = status_of(world)
        assert (status.active, status.debt.bytes if status.debt else None) == (1, 0)
        assert status.eta_seconds is None

    def test_before_the_first_job_has_ended_the_eta_comes_from_what_the_running_one_has_copied(self) -> None:
        world = PlainCluster(limits={"maxBytesPerJob": 50})
        world.add_log("/ra/a", 10)
        world.settle()
        world.announce()
        world.settle()
        assert status_of(world).eta_seconds is None, "nothing is known yet"
        later(world, 11)
        world.renew(world.in_state(P)[0], progress=50)
        world.settle()
        assert status_of(world).eta_seconds is not None

    def test_the_eta_falls_while_less_is_left(self) -> None:
        """Two jobs run side by side, then one alone; scans know nothing of what running jobs have copied."""
        world = PlainCluster(limits={"maxConcurrentJobs": 2}, workers={"slots": 2})
        world.add_log("/ra/a", 2)
        world.add_log("/ra/b", 4)
        world.settle()
        world.announce()
        world.settle()
        short, long = sorted(world.in_state(P), key=lambda name: world.jobs[name].spec.estimated_bytes)
        etas = []
        for percent in range(10, 100, 10):
            later(world, 11)
            if percent == 60:
                world.finish(short)
            for job in world.in_state(P):
                world.renew(job, progress=percent)
            world.settle()
            etas.append(status_of(world).eta_seconds)
        known = [eta for eta in etas if eta is not None]
        assert len(known) == len(etas)
        assert known[:5] == sorted(known[:5], reverse=True)
        assert known[5:] == sorted(known[5:], reverse=True)
        assert known[4] < 0.7 * known[0]
        assert known[-1] < 0.7 * known[5]
        assert world.jobs[long].status.state is P

    def test_eta_comes_from_measured_speed(self) -> None:
        world = PlainCluster(limits={"maxBytesPerJob": 50})
        world.add_log("/ra/a", 10)
        world.settle()
        world.announce()
        world.settle()
        assert status_of(world).eta_seconds is None
        world.finish(world.in_state(P)[0])
        for _ in range(3):
            later(world, 11)
            world.settle()
        status = status_of(world)
        assert status.eta_seconds is not None
        assert status.eta_seconds > 0
        assert status.oldest_debt_at is not None
