"""What is said about whole situations: debt, running jobs, damage, and nobody there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.api.names import COORDINATOR_LEASE
from compaction.core.explain.explanation import MISSING, Leadership, coordination
from compaction.core.explain.why_job import explain_job
from compaction.core.explain.why_policy import explain_policy
from compaction.leases.record import Lease
from compaction.segments.reasons import SegmentReason
from compaction.segments.scan.find import LogErrorReason
from support.cluster.explained import NOW, ago, attempt, condition, job_with, lease_with, policy_with

DEBT = {"bytes": 163 << 20, "sources": 40, "targets": 4}


def test_debt_with_its_age_its_plan_and_when_it_is_worked_off() -> None:
    plan = {"hash": "4d5e", "jobs": 6, "costBytes": 41 << 20, "gainBytes": 163 << 20, "createdAt": ago(65)}
    status = {"debt": DEBT, "oldestDebtAt": ago(11_100), "etaSeconds": 130, "active": 2, "plan": plan}
    cost = {"cpuSeconds": 130.5, "bytesReclaimed": 2 << 30}
    assert explain_policy(policy_with(status | {"cost": cost}), (), None, NOW).debt == (
        "163Mi could be reclaimed by 40 segments of 4 logs; the oldest debt is 3h5m old.",
        "Finished jobs took 2m10s of CPU, 16Mi reclaimed per CPU second.",
        "Estimated time to finish, at the measured speed: 2m10s.",
        "The newest plan with jobs, 4d5e, is 1m5s old: 6 jobs, to copy 41Mi and reclaim 163Mi.",
    )


def test_no_debt_and_no_look_are_two_things() -> None:
    assert explain_policy(policy_with(), (), None, NOW).debt == ("Unknown: no scan of the store has completed yet.",)
    clean = policy_with({"debt": {}, "lastSenseTime": ago(45)})
    assert explain_policy(clean, (), None, NOW).debt == ("None: the last scan, 45s ago, found no debt.",)


def test_a_store_that_was_never_read_is_told_with_the_attempts() -> None:
    """The status has the time of an attempt seldom when nothing else changes: whole intervals are added."""
    policy = policy_with({"lastSenseTime": ago(34)}, trigger={"interval": "10s"})
    assert explain_policy(policy, (), None, NOW).debt == (
        "Unknown: the store was never read successfully; last attempt 4s ago, next in 6s.",
    )
    silent = [lease_with(COORDINATOR_LEASE, holder=None)]
    assert explain_policy(policy, (), silent, NOW).debt == (
        "Unknown: the store was never read successfully; last attempt 34s ago.",
    )


def test_what_a_worker_lacks_is_what_to_act_on() -> None:
    """A worker without an image has no log to read."""
    ready = condition("Ready", "LaunchFailed", status="False", message="logs-w-1 cannot start (ImagePull): no such tag")
    worker = {"name": "logs-w-1", "state": "Pending", "reason": "ImagePull", "message": "no such tag"}
    wait = {"reason": "WorkerPending", "count": 2, "since": ago(90), "message": "logs-w-1 was created and waits"}
    status = {"conditions": [ready], "workerStatuses": [worker], "waits": [wait]}
    told = explain_policy(policy_with(status), (), None, NOW)
    (action,) = told.actions
    assert action.startswith("Push the image, or correct workers.image")
    unknown = explain_policy(policy_with({"conditions": [ready]}), (), None, NOW)
    assert not any("log" in sentence.replace("logs", "") for sentence in unknown.actions)


def test_memory_that_was_raised_is_told_with_the_fields_that_limit_it() -> None:
    workers = {"driver": {"memory": "768Mi", "maxMemory": "4Gi"}}
    told = explain_policy(policy_with({"driverMemoryBytes": 3 << 29}, workers=workers), (), None, NOW)
    (said,) = [sentence for sentence in told.state if "memory" in sentence]
    assert said.startswith("The next driver gets 1.5Gi of memory: one was killed for using more than it had.")
    assert "workers.driver says memory 768Mi and maxMemory 4Gi" in said
    assert not any("memory" in sentence for sentence in explain_policy(policy_with(), (), None, NOW).state)


def test_running_jobs_are_named_with_the_progress_their_leases_have() -> None:
    running = {"state": "InProgress", "worker": "logs-w-1", "fencingToken": 3, "assignedAt": ago(20)}
    job = job_with(running | {"progressPercent": 34})
    leases = [lease_with("logs-1", holder="logs-w-1", progress="57")]
    told = explain_policy(policy_with(), [job], leases, NOW)
    assert "Job logs-1 runs on logs-w-1: token 3, 57% done, for 20s." in told.state
    own = explain_job(job, policy_with(), leases, NOW)
    assert any("It has run on logs-w-1 with token 3 for 20s, 57% done" in sentence for sentence in own.state)
    orphan = explain_job(job, policy_with(), [], NOW)
    assert any("Its Lease is gone" in sentence for sentence in orphan.state)
    unknown = explain_job(job, policy_with(), None, NOW)
    assert any("34% done" in sentence for sentence in unknown.state)
    assert not any("Lease is gone" in sentence for sentence in unknown.state)


def test_parked_jobs_damaged_segments_and_logs_that_could_not_be_planned_are_named() -> None:
    failed = condition("Failed", "SourceCorrupt", message="bad CRC")
    jobs = [
        job_with({"state": "Faulty", "finishedAt": ago(60), "conditions": [failed]}, name=f"logs-{number}")
        for number in range(7)
    ]
    damaged = {"target": "/ra/a", "source": "1.segment", "reason": "SourceCorrupt", "message": "CRC", "since": ago(70)}
    error = {"target": "/ra/b", "reason": "PermissionDenied", "message": "give permission"}
    lost = {
        "target": "/ra/c",
        "reason": SegmentReason.LIVE_ENTRIES_MISSING,
        "message": "3 live entries are in no segment",
    }
    missing = {"measures": [{"name": "missingLiveEntries", "value": 4}]}
    status = {"quarantined": [damaged], "targetErrors": [error, lost], "debt": missing}
    told = explain_policy(policy_with(status), jobs, None, NOW)
    assert "Job logs-0 has been parked for 1m: SourceCorrupt." in told.state
    assert "And 2 more jobs are parked." in told.state
    assert "/ra/a/1.segment quarantined for 1m10s: SourceCorrupt. CRC" in told.state
    assert "/ra/b could not be planned: PermissionDenied. give permission" in told.state
    assert "/ra/c has lost records: LiveEntriesMissing. 3 live entries are in no segment" in told.state
    assert any(sentence.startswith("4 live entries are in no segment: ") for sentence in told.state)


def test_the_one_reason_of_a_log_that_was_planned_is_the_stores_own() -> None:
    assert SegmentReason.LIVE_ENTRIES_MISSING.value == LogErrorReason.LIVE_ENTRIES_MISSING.value


def test_a_job_is_told_with_its_work_and_its_receipt() -> None:
    receipt = {
        "token": 1,
        "worker": "logs-w-1",
        "records": 640,
        "bytesBefore": 720 << 10,
        "bytesAfter": 180 << 10,
        "fingerprintBefore": "a",
        "fingerprintAfter": "a",
    }
    used = {"driverCpuSeconds": 0.02, "executorCpuSeconds": 3.6, "bytesRead": 900 << 10, "bytesWritten": 180 << 10}
    done = {"state": "Succeeded", "finishedAt": ago(5), "receipt": receipt, "usage": used}
    told = explain_job(job_with(done), policy_with(), None, NOW)
    assert "Its attempts took 3.62s of CPU, 3.6s in executors, read 900Ki, wrote 180Ki." in told.state
    ended = {"worker": "logs-w-1", "startedAt": ago(9), "endedAt": ago(5)}
    attempts = [ended | {"token": 1, "outcome": "Lost"}, ended | {"token": 2, "outcome": "Succeeded", "usage": used}]
    partly = explain_job(job_with(done | {"attempts": attempts}), policy_with(), None, NOW)
    assert any(said.endswith("wrote 180Ki, beside what 1 of 2 attempts did not report.") for said in partly.state)
    unknown = explain_job(job_with(done | {"usage": {"driverCpuSeconds": 0.02}}), policy_with(), None, NOW)
    assert "CPU" not in " ".join(unknown.state)
    assert told.subject == "CompactionJob storage/logs-1: Succeeded"
    assert told.debt == ("The job rewrites 2 segments into 1, copying 3Mi, in /data/ra/a.",)
    assert (
        "720Ki became 180Ki, 640 entries copied. The live content read back is equal to that of the sources."
        in told.state
    )
    assert told.actions == ()


def test_a_job_that_moved_entries_says_how_many_ranges_are_left() -> None:
    clump = {"entriesMoved": 96, "bytesMoved": 6144, "rangesBefore": 96, "rangesAfter": 1}
    receipt = {"token": 1, "worker": "logs-w-1", "records": 96, "clump": clump}
    job = job_with(
        {"state": "Succeeded", "finishedAt": ago(5), "receipt": receipt},
        sources={"segmentLog": {"path": "/data/ra/a", "clump": {"ownerStopped": True}}},
    )
    told = explain_job(job, policy_with(), None, NOW)
    assert told.debt == ("The job re-writes runs of fewer than 8 live entries at the head, in /data/ra/a.",)
    assert any("96 live entries were re-written at the head, 96 live ranges became 1." in text for text in told.state)


def test_a_job_that_never_ran_says_since_when_it_waits() -> None:
    assert explain_job(job_with(), policy_with(), None, NOW).state == ("It has waited 10m for a worker.",)
    orphan = explain_job(job_with(), None, None, NOW)
    assert any("PolicyNotFound" in sentence for sentence in orphan.state)
    assert any("Create the policy logs" in sentence for sentence in orphan.actions)


def test_attempts_that_nobody_is_to_blame_for_say_so() -> None:
    lost = attempt("WorkerLost", "Lost", charged=False)
    told = explain_job(job_with({"state": "Abandoned", "attempts": [lost]}), policy_with(), None, NOW)
    assert any("was lost 30s ago (not charged), WorkerLost" in sentence for sentence in told.state)


def test_a_parked_job_tells_its_last_attempt_as_well() -> None:
    failed = condition("Failed", "TooManyAttempts", message="3 attempts failed")
    status = {"state": "Faulty", "conditions": [failed], "attempts": [attempt("StoreUnreadable", message="no space")]}
    told = explain_job(job_with(status), policy_with(), None, NOW)
    assert any("TooManyAttempts" in sentence for sentence in told.state)
    assert any("StoreUnreadable" in sentence and "(no space)" in sentence for sentence in told.state)
    assert any("kubectl compaction retry -n storage logs-1" in sentence for sentence in told.actions)


def test_nobody_there_is_said_first_of_all_causes() -> None:
    fresh = policy_with({"observedGeneration": -1})
    nobody: tuple[list[Lease] | None, ...] = ([], None)
    for leases in nobody:
        told = explain_policy(fresh, (), leases, NOW)
        assert "No operator has observed it yet." in told.state
        assert told.actions == ("Start the operator: compactor operator --namespace storage",)
    released = explain_policy(policy_with(), (), [lease_with(COORDINATOR_LEASE, holder=None)], NOW)
    assert any("released its Lease" in sentence for sentence in released.state)
    silent = explain_policy(policy_with(), (), [lease_with(COORDINATOR_LEASE, holder="a", seconds=300)], NOW)
    assert any("a last renewed its Lease 5m ago" in sentence for sentence in silent.state)
    led = explain_policy(policy_with(), (), [lease_with(COORDINATOR_LEASE, holder="a")], NOW)
    assert not any("oordinate" in sentence for sentence in led.state)


def test_what_comes_next_and_when() -> None:
    trigger = {"schedule": "0 1 * * *", "timeZone": "Europe/Berlin"}
    windows = [{"schedule": "0 22 * * *", "duration": "6h"}]
    status = {"nextScheduleTime": ago(-3600), "nextWindowTime": ago(-7800), "lastSenseTime": ago(20)}
    told = explain_policy(policy_with(status, trigger=trigger | {"windows": windows}), (), None, NOW)
    assert told.next == (
        "The next plan is created in 1h, at 2026-11-21T13:00:00Z (trigger.schedule: 0 1 * * *, Europe/Berlin).",
        "The next window opens in 2h10m, at 2026-11-21T14:10:00Z.",
        "The store is scanned every 1m; last scan 20s ago.",
    )


def test_a_plan_that_waits_for_approval_says_so() -> None:
    plan = {"hash": "4d5e", "jobs": 1, "approval": "Pending", "waitingSince": ago(125)}
    told = explain_policy(policy_with({"plan": plan}, approval="Manual"), (), None, NOW)
    assert "The plan 4d5e waits for approval; for 2m5s plans of this policy have been waiting." in told.state


def test_nothing_is_told_twice() -> None:
    ready = condition("Ready", "ApprovalPending", status="False", message="plan 4d5e waits")
    wait = {"reason": "ApprovalPending", "count": 1, "since": ago(5), "message": "plan 4d5e waits"}
    plan = {"hash": "4d5e", "jobs": 1, "approval": "Pending", "waitingSince": ago(125)}
    told = explain_policy(policy_with({"conditions": [ready], "waits": [wait], "plan": plan}), (), None, NOW)
    assert told.state == (
        "ApprovalPending, for 2m10s: plan 4d5e waits.",
        "1 plan waiting for ApprovalPending, 5s by now.",
    )
    assert len(told.actions) == 1


def test_an_answer_that_is_still_to_come_is_said() -> None:
    policy = policy_with()
    changed = policy.model_copy(update={"metadata": policy.metadata.model_copy(update={"generation": 2})})
    told = explain_policy(changed, (), None, NOW)
    assert "The spec has changed since; the operator has not observed the change yet." in told.state


def test_explanations_are_data_too() -> None:
    data = explain_policy(policy_with({"debt": {}}), (), None, NOW).to_object()
    assert data["subject"] == "CompactionPolicy storage/logs: Unknown"
    assert data["next"] == ["The store is scanned every 1m."]


def test_workers_of_another_version_are_told_with_what_to_do() -> None:
    skew = condition("WorkerVersionSkew", "OtherVersion", message="workers of version 0.1.0 run; set the image")
    told = explain_policy(policy_with({"conditions": [skew]}), (), None, NOW)
    assert "WorkerVersionSkew, for 2m10s: workers of version 0.1.0 run; set the image." in told.state


def test_what_was_repaired_is_not_said_to_be_parked() -> None:
    """The quarantine has ended: the job is a record, neither its damage nor the remedy is said to hold."""
    skipped = [{"source": "1.segment", "reason": "SourceCorrupt", "message": "bad"}]
    parked = job_with(
        {
            "state": "Faulty",
            "finishedAt": ago(1680),
            "skipped": skipped,
            "attempts": [attempt("SourceCorrupt", message="1.segment is bad")],
        }
    )
    told = explain_policy(policy_with(), (parked,), None, NOW)
    assert not any("parked" in sentence for sentence in told.state)
    alone = explain_job(parked, policy_with(), None, NOW)
    assert (
        "It ended 28m ago, SourceCorrupt: the damaged sources are not in quarantine any more, and the job is kept as a "
        "record. (1.segment is bad)"
    ) in alone.state
    assert alone.actions == ()
    damaged = {"target": parked.spec.target, "since": ago(1680)} | skipped[0]
    still = explain_policy(policy_with({"quarantined": [damaged]}), (parked,), None, NOW)
    assert any("has been parked for 28m" in sentence for sentence in still.state)


def test_scans_that_are_not_recorded_are_said_to_be() -> None:
    told = explain_policy(policy_with({"lastSenseTime": ago(61)}, trigger={"interval": "10s"}), (), None, NOW)
    recorded = "the last one that is recorded was 1m1s ago, those without news may not be"
    assert told.next[-1] == f"The store is scanned every 10s; {recorded}."


# Who coordinates: the Lease of the namespace says, else any that leads; what is not known is not said.

LEADS = lease_with(COORDINATOR_LEASE, holder="a")
SILENT = lease_with(COORDINATOR_LEASE, holder="b", seconds=300)
RELEASED = lease_with(COORDINATOR_LEASE, holder=None)


def elsewhere(lease: Lease) -> Lease:
    return replace(lease, namespace="compaction-system")


@pytest.mark.parametrize(
    ("leases", "complete", "state"),
    [
        (None, False, Leadership.UNKNOWN),
        ([], False, Leadership.UNKNOWN),
        ([], True, Leadership.ABSENT),
        ([LEADS], False, Leadership.LEADS),
        ([SILENT], False, Leadership.SILENT),
        ([RELEASED], False, Leadership.RELEASED),
        ([SILENT, elsewhere(LEADS)], True, Leadership.SILENT),  # its own operator is away: others may not watch it
        ([elsewhere(LEADS)], True, Leadership.LEADS),
        ([elsewhere(SILENT), elsewhere(LEADS)], True, Leadership.LEADS),
        ([elsewhere(SILENT)], True, Leadership.SILENT),
        ([elsewhere(SILENT)], False, Leadership.UNKNOWN),
        ([lease_with("logs-1", holder="w")], True, Leadership.ABSENT),
    ],
)
def test_who_coordinates(leases: list[Lease] | None, complete: bool, state: Leadership) -> None:
    found = coordination(leases, "storage", NOW, complete=complete)
    assert found.state is state
    assert found.is_missing is (state in MISSING)
    assert bool(found.sentence(NOW)) is found.is_missing


def test_a_silent_one_is_named_with_its_age() -> None:
    said = coordination([SILENT], "storage", NOW, complete=False).sentence(NOW)
    assert said == "No operator coordinates: b last renewed its Lease 5m ago, by its own clock."
