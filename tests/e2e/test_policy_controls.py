"""When, whether and how fast, told a real operator: schedule, windows, approval, retry, release, limit."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from compaction.segments.generate import corrupt_entry
from support.clocks import eventually, set_offset
from support.cluster.by_kubectl import Cluster, LogRoot, Object, condition, make_user
from support.cluster.manifests import job_object
from support.processes.operators import OperatorFleet

pytestmark = pytest.mark.apiserver

LEAP_DAY = "0 0 29 2 *"


def add(logs: LogRoot, *names: str) -> None:
    for name in names:
        logs.add(name, entries_per_segment=64, payload_bytes=64, segments=5)


def waiting(cluster: Cluster, reason: str) -> Object | None:
    found: Object | None = cluster.policy().get("status", {}).get("waiting")
    return found if found is not None and found["reason"] == reason else None


def patch_trigger(cluster: Cluster, **trigger: Any) -> None:
    patch_spec(cluster, trigger=trigger)


def status(cluster: Cluster) -> Object:
    found: Object = cluster.policy()["status"]
    return found


def test_plans_at_the_time_of_a_schedule_and_jobs_inside_a_window(
    operators: OperatorFleet, cluster: Cluster, logs: LogRoot, tmp_path: Path
) -> None:
    add(logs, "a")
    clock = tmp_path / "clock"
    set_offset(clock, 0.0)
    operators.start(light=("--clock", str(clock)))
    far = datetime.now(UTC) + timedelta(hours=12)
    closed = {"schedule": f"{far.minute} {far.hour} * * *", "duration": "1h"}
    cluster.apply_policy(logs.path, trigger={"interval": "2s", "schedule": LEAP_DAY, "windows": [closed]})
    wait = eventually(lambda: waiting(cluster, "AwaitingSchedule"), "the policy to wait for its schedule")
    assert " in 1 log; next plan " in wait["message"]
    assert status(cluster)["nextScheduleTime"].endswith("-02-29T00:00:00Z")
    assert cluster.jobs() == []

    set_offset(clock, 50.0 - time.time() % 60)  # the next full minute is ten seconds away
    patch_trigger(cluster, schedule="* * * * *")
    wait = eventually(lambda: waiting(cluster, "OutsideWindow"), "the planned job to wait for its window")
    assert status(cluster)["nextWindowTime"] == far.strftime("%Y-%m-%dT%H:%M:00Z")
    assert status(cluster)["nextWindowTime"] in wait["message"]
    ready = condition(cluster.policy(), "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "OutsideWindow")
    assert operators.running_workers() == []

    patch_trigger(cluster, windows=[{"schedule": "* * * * *", "duration": "1h"}])
    cluster.await_all_succeeded()
    logs.assert_unchanged()


def test_only_the_approved_plan_is_carried_out_whoever_leads(
    operators: OperatorFleet, cluster: Cluster, logs: LogRoot
) -> None:
    add(logs, "a", "b")
    first = operators.start(lease_seconds=3)
    cluster.apply_policy(logs.path, approval="Manual")

    def pending(jobs: int) -> Object | None:
        plan: Object = cluster.policy().get("status", {}).get("plan", {})
        return plan if (plan.get("approval"), plan.get("jobs")) == ("Pending", jobs) else None

    void = eventually(lambda: pending(2), "a plan of two jobs that waits")
    assert (
        eventually(lambda: waiting(cluster, "ApprovalPending"), "the wait to be said")["since"] == void["waitingSince"]
    )
    add(logs, "c")
    plan = eventually(lambda: pending(3), "the plan to follow the world")
    assert (plan["hash"] != void["hash"], plan["waitingSince"]) == (True, void["waitingSince"])
    cluster.annotate("cpol/logs", approve=void["hash"])
    eventually(lambda: void["hash"] in status(cluster)["waiting"]["message"], "the void approval to be named")
    assert cluster.jobs() == []

    first.kill()
    operators.start(lease_seconds=3)
    cluster.annotate("cpol/logs", approve=plan["hash"])
    jobs = cluster.await_all_succeeded(at_least=3)
    assert sorted(job["metadata"]["name"] for job in jobs) == sorted(work["job"] for work in plan["work"])
    assert cluster.list("cjob", labels=f"compaction.dev/plan={plan['hash']}") == jobs
    assert (status(cluster)["plan"]["hash"], status(cluster)["plan"]["approval"]) == (plan["hash"], "Approved")
    logs.assert_unchanged()


def test_a_segment_that_was_mended_unseen_is_released_and_a_parked_job_is_retried(
    operators: OperatorFleet, cluster: Cluster, logs: LogRoot
) -> None:
    operators.start()
    released_once_it_is_mended(cluster, logs)

    cluster.delete("cpol/logs")
    eventually(lambda: not cluster.jobs(), "the policy's jobs to go with it")
    store = {"segmentLogs": {"root": str(logs.path), "include": ["*"], "thresholds": {"debtBytes": "1Ti"}}}
    cluster.apply_policy(logs.path, store=store)
    group = [f"{number:016d}.segment" for number in range(1, 5)]
    cluster.apply(
        job_object("late", sources={"segmentLog": {"path": str(logs.path / "b"), "groups": [{"segments": group}]}})
    )
    cluster.await_condition("late", "Failed")
    add(logs, "b")
    cluster.annotate("cjob/late", retry="monday")
    cluster.await_condition("late", "Complete")
    assert cluster.jobs()[0]["status"]["retried"] == "monday"
    logs.assert_unchanged()


def released_once_it_is_mended(cluster: Cluster, logs: LogRoot) -> None:
    """In a way that nobody can see from outside: the quarantine does not end by itself."""
    add(logs, "a")
    segment = logs.path / "a" / "0000000000000002.segment"
    sound, times = segment.read_bytes(), segment.stat()
    corrupt_entry(segment.parent, segment=segment.name, record=4)
    cluster.apply_policy(logs.path)
    eventually(lambda: status(cluster).get("quarantined"), "the segment to be set aside")
    with segment.open("r+b") as file:
        file.write(sound)
    os.utime(segment, ns=(times.st_atime_ns, times.st_mtime_ns))
    cluster.annotate("cpol/logs", release=str(segment))
    eventually(lambda: status(cluster).get("released") == str(segment), "the release to be acknowledged")

    def compacted() -> bool:
        receipts = [job["status"].get("receipt", {}) for job in cluster.jobs()]
        return any(segment.name in receipt.get("sources", ()) for receipt in receipts)

    eventually(compacted, "the segment to be compacted")
    cluster.await_idle()
    assert status(cluster).get("quarantined", []) == []
    logs.assert_unchanged()


def test_a_run_a_scan_and_a_hold_are_asked_for_and_a_restart_keeps_the_hold(
    operators: OperatorFleet, cluster: Cluster, logs: LogRoot, control_plane: Any, tmp_path: Path
) -> None:
    """By users with the roles we ship, against a schedule that is years away."""
    editor = make_user(control_plane, cluster.namespace, tmp_path, role="compaction-editor")
    holder = make_user(control_plane, cluster.namespace, tmp_path, role="compaction-holder")
    add(logs, "a")
    first = operators.start(lease_seconds=3)
    cluster.apply_policy(logs.path, trigger={"interval": "1h", "schedule": LEAP_DAY})
    eventually(lambda: waiting(cluster, "AwaitingSchedule"), "the policy to wait for its schedule")

    assert "1 job has succeeded, " in editor.prints("run-now", "logs", "--wait", "--timeout", "2m")
    cluster.await_idle()
    assert status(cluster)["runNow"]["reason"] == "Planned"
    assert "NothingDue" in editor.refused("run-now", "logs", "--wait", "--timeout", "2m")
    cluster.await_events("RunNow", "RunNowRefused")

    add(logs, "b")
    assert "policy logs: Scanned: 2 logs scanned, " in editor.prints("scan", "logs", "--wait", "--timeout", "2m")
    assert status(cluster)["debt"]["bytes"] > 0
    assert len(cluster.jobs()) == 1, "figures, and no plan"

    assert f"{version('compaction-operator')} in {cluster.namespace}, led by replica-0" in editor.prints("version")
    holder.prints("hold", "--reason", "the disk moves", "-n", cluster.namespace)
    eventually(lambda: condition(cluster.policy(), "Ready")["reason"] == "Held", "the policy to be held")
    assert condition(cluster.policy(), "Ready")["message"].endswith(": the disk moves; 0 jobs still run, 0 wait")
    first.kill()
    second = operators.start(lease_seconds=3)
    eventually(lambda: "the hold has changed" in second.output, "the next coordinator to know of the hold")
    assert "Held" in editor.refused("run-now", "logs", "--wait", "--timeout", "2m")
    assert len(cluster.jobs()) == 1

    holder.prints("release", "-n", cluster.namespace)
    eventually(lambda: condition(cluster.policy(), "Ready")["reason"] != "Held", "the policy to go on")
    editor.prints("run-now", "logs", "--wait", "--timeout", "2m")
    assert editor.prints("suspend", "logs", "--wait", "--timeout", "2m").endswith("policy logs: nothing runs\n")
    assert len(cluster.jobs()) == 2
    logs.assert_unchanged()


def test_a_drain_stops_what_runs_and_after_it_everything_goes_on(
    slow_workers: OperatorFleet, cluster: Cluster, logs: LogRoot, control_plane: Any, tmp_path: Path
) -> None:
    holder = make_user(control_plane, cluster.namespace, tmp_path, role="compaction-holder")
    logs.add("a", entries_per_segment=64, payload_bytes=64, segments=41)
    slow_workers.start()
    cluster.apply_policy(logs.path)
    cluster.await_job_state("InProgress")
    holder.prints("hold", "--reason", "the disk moves", "--drain", "-n", cluster.namespace)
    eventually(lambda: slow_workers.running_workers() == [], "the worker to be stopped with its job")
    eventually(lambda: not status(cluster).get("active", 0), "the status to say so")
    (job,) = cluster.jobs()
    assert (job["status"]["state"], job["status"].get("failures", 0)) == ("Abandoned", 0)
    logs.assert_unchanged()
    holder.prints("release", "-n", cluster.namespace)
    cluster.await_all_succeeded()
    logs.assert_unchanged()
    assert logs.leftovers() == []


def test_each_job_is_told_its_share_of_the_bytes_per_second_and_one_that_ends_goes_to_the_other(
    operators: OperatorFleet, cluster: Cluster, logs: LogRoot
) -> None:
    """Each worker is a process of its own: the one that runs on finds the share on the Lease of its job."""
    limit = 20_000
    for name in ("a", "b"):
        logs.add(name, entries_per_segment=64, payload_bytes=4096, segments=5)
    operators.start()
    workers = {"max": 2, "slots": 1}
    cluster.apply_policy(logs.path, limits={"bytesPerSecond": limit}, workers=workers, lease={"durationSeconds": 6})
    eventually(lambda: len(shares(cluster)) == 2, "both jobs to run")
    assert sorted(shares(cluster).values()) == [limit // 2] * 2
    first, second = shares(cluster)
    assert [attempt_share(cluster, job) for job in (first, second)] == [limit // 2] * 2
    granted = "the sum of the shares in the policy's status"
    eventually(lambda: status(cluster).get("grantedBytesPerSecond") == limit, granted)
    patch_spec(cluster, suspend=True)  # or the job would be planned again, and start with its share
    eventually(lambda: is_observed(cluster.policy()), "the policy to be suspended")
    cluster.delete(f"cjob/{first}")
    eventually(lambda: shares(cluster) == {second: limit}, "the other job to have the share of the one that is gone")
    eventually(lambda: attempt_share(cluster, second) == limit, "its attempt to say so")
    patch_spec(cluster, suspend=False, limits={"bytesPerSecond": "1G"})
    cluster.await_all_succeeded(at_least=2)
    logs.assert_unchanged()


def is_observed(policy: Object) -> bool:
    return bool(policy["status"]["observedGeneration"] == policy["metadata"]["generation"])


def patch_spec(cluster: Cluster, **spec: Any) -> None:
    cluster.patch("cpol/logs", {"spec": spec})


def shares(cluster: Cluster) -> dict[str, int]:
    """What the Leases of the jobs that run say."""
    leases = {lease["metadata"]["name"]: lease["metadata"]["annotations"] for lease in cluster.leases("job")}
    return {
        name: int(annotations["compaction.dev/bytes-per-second"])
        for name, annotations in leases.items()
        if "compaction.dev/report" not in annotations
    }


def attempt_share(cluster: Cluster, job: str) -> int:
    found = next(item for item in cluster.jobs() if item["metadata"]["name"] == job)
    share: int = found["status"]["attempts"][-1]["bytesPerSecond"]
    return share
