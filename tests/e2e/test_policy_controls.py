"""When, whether and how fast, told a real operator: schedule, windows, approval, retry, release, limit."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from compaction.segments.generate import corrupt_entry
from support.clocks import eventually, set_offset
from support.cluster.by_kubectl import Cluster, LogRoot, Object, User, condition, make_user
from support.cluster.by_kubectl import policy as policy_of
from support.cluster.control_plane import ROOT
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


def shape(value: Any) -> Any:
    """The fields of an event, and types of their values."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in sorted(value.items())}
    return [shape(item) for item in value[:1]] if isinstance(value, list) else type(value).__name__


def with_sink(directory: Path) -> tuple[str, ...]:
    """Arguments of an operator that writes its events below `directory`."""
    head = {"apiVersion": "config.compaction.dev/v1alpha1", "kind": "OperatorConfiguration"}
    config = directory / "sink.yaml"
    config.write_text(json.dumps(head | {"sink": {"folder": {"path": str(directory / "events")}}}))
    return ("--config", str(config))


def status(cluster: Cluster) -> Object:
    found: Object = cluster.policy()["status"]
    return found


def test_plans_at_the_time_of_a_schedule_and_jobs_inside_a_window(
    operators: OperatorFleet, cluster: Cluster, logs: LogRoot, tmp_path: Path
) -> None:
    add(logs, "a")
    clock = tmp_path / "clock"
    set_offset(clock, 0.0)
    far = datetime.now(UTC) + timedelta(hours=12)
    defaults = {
        "trigger": {"windows": [{"schedule": f"{far.minute} {far.hour} * * *", "duration": "1h"}]},
        "limits": {"maxConcurrentJobs": 1},
    }
    config = tmp_path / "config.yaml"
    head = {"apiVersion": "config.compaction.dev/v1alpha1", "kind": "OperatorConfiguration"}
    config.write_text(json.dumps(head | {"defaults": defaults, "limits": {"maxWorkers": 9}}))
    operators.start(light=("--clock", str(clock)), more=("--config", str(config), "--max-workers", "7"))
    cluster.apply_policy(logs.path, trigger={"interval": "2s", "schedule": LEAP_DAY}, limits={"maxAttempts": 2})
    wait = eventually(lambda: waiting(cluster, "AwaitingSchedule"), "the policy to wait for its schedule")
    assert " in 1 log; next plan " in wait["message"]
    assert status(cluster)["nextScheduleTime"].endswith("-02-29T00:00:00Z")
    # The spec is its owner's; what the installation adds is said beside it, and by the leader.
    assert cluster.policy()["spec"]["limits"] == {"maxAttempts": 2}
    assert "windows" not in cluster.policy()["spec"]["trigger"]
    assert status(cluster)["defaults"] == defaults
    (lease,) = cluster.list("lease", fields="metadata.name=compaction-coordinator")
    told = json.loads(lease["metadata"]["annotations"]["compaction.dev/configuration"])
    assert told["values"] == {"defaults": defaults, "limits": {"maxWorkers": 7}}, "a flag wins over the file"
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
    assert status(cluster)["defaults"] == {"limits": defaults["limits"]}, "a policy with windows has its own"
    logs.assert_unchanged()


def test_only_the_approved_plan_is_carried_out_whoever_leads(
    operators: OperatorFleet, cluster: Cluster, logs: LogRoot, tmp_path: Path
) -> None:
    add(logs, "a", "b")
    sink = with_sink(tmp_path)
    first = operators.start(lease_seconds=3, more=sink)
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
    operators.start(lease_seconds=3, more=sink)
    cluster.annotate("cpol/logs", approve=plan["hash"])
    jobs = cluster.await_all_succeeded(at_least=3)
    assert sorted(job["metadata"]["name"] for job in jobs) == sorted(work["job"] for work in plan["work"])
    assert cluster.list("cjob", labels=f"compaction.dev/plan={plan['hash']}") == jobs
    assert (status(cluster)["plan"]["hash"], status(cluster)["plan"]["approval"]) == (plan["hash"], "Approved")
    logs.assert_unchanged()

    # Two plans have waited; each job has its receipt, the run its end, and each event one number, across the kill.
    def told() -> list[Object]:
        found = [json.loads(path.read_text()) for path in sorted((tmp_path / "events").rglob("*.jsonl"))]
        return found if any(event["type"] == "dev.compaction.run.ended" for event in found) else []

    events = eventually(told, "the end of the run to be told")
    assert [int(event["sequence"]) for event in events] == list(range(1, len(events) + 1))
    assert len({event["id"] for event in events}) == len(events)
    waits = [event["subject"] for event in events if event["type"] == "dev.compaction.plan.waits"]
    assert waits == [void["hash"], plan["hash"]]
    ended = {event["subject"]: event["data"] for event in events if event["type"] == "dev.compaction.job.ended"}
    assert set(ended) == {work["job"] for work in plan["work"]}
    assert all(data["receipt"]["fingerprintBefore"] == data["receipt"]["fingerprintAfter"] for data in ended.values())
    (line,) = re.findall(r"```json\n(.*?)\n```", (ROOT / "docs" / "events.md").read_text())
    documented, real = json.loads(line), next(event for event in events if event["subject"] == min(ended))
    assert shape(documented) == shape(real), "the example of the page is what is written"
    assert (events[-1]["type"], events[-1]["data"]["run"]["succeeded"]) == ("dev.compaction.run.ended", 3)
    patch_spec(cluster, successfulJobsHistoryLimit=1)
    eventually(lambda: len(cluster.jobs()) == 1, "all jobs but one to be deleted")
    eventually(
        lambda: "waiting" not in status(cluster)["events"] or not status(cluster)["events"]["waiting"],
        "no event to wait",
    )


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

    before = what_another_spec_would_do(cluster, editor, logs, tmp_path)
    changed = {key for key, value in status(cluster).items() if before.get(key) != value}
    assert (changed, cluster.jobs()) == ({"preview", "lastHandledPreview"}, []), "what is in force stays as it is"

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
    (asked,) = json.loads(editor.prints("plan", "-f", str(tmp_path / "new.yaml"), "-o", "json"))
    assert (asked["inForce"]["begins"]["reason"], asked["proposed"]["begins"]["reason"]) == ("Held", "NothingDue")
    assert len(cluster.jobs()) == 1

    holder.prints("release", "-n", cluster.namespace)
    eventually(lambda: condition(cluster.policy(), "Ready")["reason"] != "Held", "the policy to go on")
    editor.prints("run-now", "logs", "--wait", "--timeout", "2m")
    assert editor.prints("suspend", "logs", "--wait", "--timeout", "2m").endswith("policy logs: nothing runs\n")
    assert len(cluster.jobs()) == 2
    (asked,) = json.loads(editor.prints("plan", "-f", str(tmp_path / "new.yaml"), "-o", "json"))
    assert asked["outcome"] == "Accepted"
    logs.assert_unchanged()


def what_another_spec_would_do(cluster: Cluster, editor: User, logs: LogRoot, directory: Path) -> Object:
    """Asked by files, with the rights of who may edit; the status before."""

    def file(name: str, policy: str, root: Path, **spec: Any) -> str:
        store = {"root": str(root), "include": ["*"], "thresholds": {"debtSegments": 100}}
        trigger = {"interval": "1h", "schedule": LEAP_DAY}
        document = policy_of(root, name=policy, **{"store": {"segmentLogs": store}, "trigger": trigger} | spec)
        (directory / name).write_text(json.dumps(document))
        return str(directory / name)

    before = status(cluster)
    new = file("new.yaml", "logs", logs.path)
    said = editor.prints("plan", "-f", new)
    rows = [line.split() for line in said.splitlines()]
    assert ["spec.store.segmentLogs.thresholds.debtSegments", "1", "100"] in rows
    assert ["Jobs", "1", "0"] in rows
    assert ["Left", "out:", "BelowThreshold", "0", "1"] in rows
    assert [str(logs.path / "a"), "1", "job:", "copy"] in [row[:4] for row in rows]
    assert next(row for row in rows if row[:1] == ["Begins"])[1].startswith("AwaitingSchedule")
    cluster.await_events("Preview")

    elsewhere = file("elsewhere.yaml", "logs", directory)
    refused = editor.refused("plan", "-f", elsewhere)
    assert "OtherStore: " in refused
    assert f"spec.store.segmentLogs.root: {logs.path} -> {directory}" in refused
    # The remedy that it names: another name, suspended.
    absent = file("absent.yaml", "other", directory / "none", suspend=True)
    assert "apply it with spec.suspend: true" in editor.refused("plan", "-f", absent)
    (directory / "none").mkdir()
    cluster.apply(json.loads(Path(absent).read_text()))
    (asked,) = json.loads(editor.prints("plan", "-f", absent, "-o", "json"))
    assert (asked["outcome"], asked["changed"], asked["policy"]) == ("Accepted", 0, "other")
    cluster.delete("cpol/other")
    wrong = file("wrong.yaml", "logs", logs.path, trigger={"interval": "0s"})
    assert f"{wrong}: CompactionPolicy logs: spec.trigger.interval: must be longer" in editor.refused(
        "plan", "-f", wrong, code=2
    )
    return before


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
