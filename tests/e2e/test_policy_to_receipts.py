"""The main way: a policy applied with kubectl, logs compacted on Spark, receipts, and nothing readable changed."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from compaction.segments.generate import Pattern, corrupt_entry
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.by_kubectl import Cluster, LogRoot, Object, condition
from support.processes.operators import OperatorFleet, OperatorProcess

pytestmark = [pytest.mark.apiserver, pytest.mark.spark]


def segment_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.segment") if not path.is_symlink())


def test_from_a_suspended_policy_to_reclaimed_bytes_and_the_end_of_the_grace(
    fleet: OperatorFleet, cluster: Cluster, logs: LogRoot, tmp_path: Path
) -> None:
    """One worker carries the whole story; it leaves when there is nothing more to do."""
    for pattern in Pattern:
        logs.add(pattern.value, pattern=pattern, entries_per_segment=256, payload_bytes=512)
    before = segment_bytes(logs.path)
    replica = fleet.start()
    cluster.apply_policy(tmp_path / "not-yet", name="early")
    workers = {"max": 1, "slots": 2, "idleSeconds": 8, "sparkMaster": "local[2]"}
    cluster.apply_policy(logs.path, suspend=True, workers=workers)
    what_only_the_operator_can_know_is_a_condition(cluster, tmp_path / "not-yet")
    suspended_it_starts_no_new_jobs(cluster)

    cluster.kubectl("patch", "cpol", "logs", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    cluster.await_all_succeeded(at_least=4)
    cluster.kubectl("wait", "--for=condition=Complete", "cjob", "--all", TIMEOUT_FLAG)
    found = cluster.await_idle()

    logs.assert_unchanged()
    assert logs.leftovers() == []
    jobs = cluster.jobs()
    for job in jobs:
        receipt = job["status"]["receipt"]
        assert receipt["fingerprintBefore"] == receipt["fingerprintAfter"]
        assert receipt["token"] == job["status"]["fencingToken"] == 1
        assert job["status"]["progressPercent"] == 100
        assert receipt["bytesReclaimed"] > 0
        attempt_and_receipt_say_what_it_cost(job)
    reclaimed = sum(int(job["status"]["receipt"]["bytesReclaimed"]) for job in jobs)
    assert int(found["status"]["bytesReclaimed"]) == reclaimed
    # What is dead but named until the end of the grace is promised, not yet freed.
    assert segment_bytes(logs.path) == before - reclaimed + sum(path.stat().st_size for path in marked(jobs))
    assert condition(found, "Ready")["status"] == "True"
    seconds = sum(job["status"]["usage"][f"{role}CpuSeconds"] for job in jobs for role in ("driver", "executor"))
    assert found["status"]["cost"]["cpuSeconds"] == pytest.approx(seconds, abs=0.01)
    assert found["status"]["cost"]["bytesReclaimed"] == reclaimed
    assert sum(run["cpuSeconds"] for run in found["status"]["history"]) == pytest.approx(seconds, abs=0.01)
    assert cluster.leases("job") == []
    what_people_and_machines_are_shown(cluster, replica, jobs)

    one_corrupt_segment_never_blocks_its_siblings(cluster, logs, tmp_path / "making")
    cluster.patch("cpol/logs", {"spec": {"cleanup": {"delay": "3s"}}})
    old = "the old names to be deleted after the grace"
    eventually(lambda: not [path for path in logs.path.rglob("*.segment") if path.is_symlink()], old)
    logs.assert_unchanged()
    assert logs.leftovers() == []
    eventually(lambda: not fleet.running_workers(), "the idle worker to end")
    assert cluster.leases("worker") == []


def marked(jobs: list[Object]) -> list[Path]:
    """Dead segments that the jobs marked for deletion."""
    sources = [job["spec"]["sources"]["segmentLog"] for job in jobs]
    return [Path(source["path"]) / name for source in sources for name in source.get("obsolete", [])]


def attempt_and_receipt_say_what_it_cost(job: Object) -> None:
    (attempt,) = job["status"]["attempts"]
    used = attempt["usage"]
    assert used == job["status"]["usage"] == job["status"]["receipt"]["usage"]
    assert min(used["driverCpuSeconds"], used["executorCpuSeconds"]) > 0
    if job["spec"]["sources"]["segmentLog"]["groups"]:
        assert used["bytesRead"] > used["bytesWritten"] == job["status"]["receipt"]["bytesAfter"]
        assert used["executorPeakBytes"] > 16 << 20, "a Python process, not nothing"


def what_only_the_operator_can_know_is_a_condition(cluster: Cluster, missing: Path) -> None:
    def ready() -> Object:
        return condition(cluster.policy("early"), "Ready")

    eventually(lambda: ready().get("reason") == "RootNotFound", "the missing root as a condition")
    assert str(missing) in ready()["message"]
    missing.mkdir()
    eventually(lambda: ready().get("status") == "True", "the policy to recover")
    cluster.delete("cpol/early")


def suspended_it_starts_no_new_jobs(cluster: Cluster) -> None:
    eventually(lambda: condition(cluster.policy(), "Ready").get("reason") == "Suspended", "the policy to be suspended")
    eventually(lambda: cluster.policy()["status"].get("debt", {}).get("bytes", 0) > 0, "its debt to be known")
    assert cluster.jobs() == []


def what_people_and_machines_are_shown(cluster: Cluster, replica: OperatorProcess, jobs: list[Object]) -> None:
    cluster.await_events("Planned", "WorkerLaunched", "Succeeded")
    columns = cluster.kubectl("get", "cpol").splitlines()[0].split()
    assert columns == ["NAME", "STORE", "READY", "REASON", "DEBT", "OLDEST", "ACTIVE", "QUEUED", "FAULTY", "ETA", "AGE"]
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{replica.metrics_port}/metrics").read().decode()
    assert "compaction_bytes_reclaimed_total{" in metrics
    used = [line for line in metrics.splitlines() if line.startswith("compaction_cpu_seconds_total{")]
    assert min(float(line.rpartition(" ")[2]) for line in used if 'policy="logs"' in line) > 0
    told = [line for line in replica.output.splitlines() if "job attempt ended" in line]
    assert sorted(job["metadata"]["name"] for job in jobs) == sorted(
        job["metadata"]["name"] for job in jobs for line in told if f"job={job['metadata']['name']}" in line
    ), "each assignment in the log has its end, once"


def one_corrupt_segment_never_blocks_its_siblings(cluster: Cluster, logs: LogRoot, place: Path) -> None:
    """Two logs more appear under the root, complete; one of them is damaged."""
    making = LogRoot(place, {})
    making.add("sound", entries_per_segment=256, payload_bytes=256)
    making.add("damaged", entries_per_segment=256, payload_bytes=256, segments=13)
    damaged = corrupt_entry(place / "damaged", segment="0000000000000006.segment", record=8)
    for name in making.before:
        (place / name).rename(logs.path / name)
    directory = logs.path / "damaged"

    def quarantined() -> list[dict[str, object]]:
        found: list[dict[str, object]] = cluster.policy().get("status", {}).get("quarantined", [])
        return found

    entries = eventually(quarantined, "the corrupt segment in the policy's status")
    assert [entry["source"] for entry in entries] == ["0000000000000006.segment"]
    cluster.await_idle()
    regular = [path.name for path in directory.glob("*.segment") if not path.is_symlink()]
    # Nothing but the damaged file itself, the newest segment and the rewritten siblings is left.
    assert "0000000000000006.segment" in regular
    assert len(regular) <= 5
    faulty = [job for job in cluster.jobs() if job["status"]["state"] == "Faulty"]
    assert [condition(job, "Failed")["reason"] for job in faulty] == ["SourceCorrupt"]
    message = condition(faulty[0], "Failed")["message"]
    assert "0000000000000006.segment" in message
    assert str(damaged.index) in message
    assert logs.fingerprint("sound") == making.before["sound"]
