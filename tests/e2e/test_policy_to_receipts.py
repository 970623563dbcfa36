"""The main way: a policy applied with kubectl, logs compacted on Spark, receipts, and nothing readable changed."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from compaction.stores.segments.generate import Pattern, corrupt_entry
from support.cluster import Cluster, LogRoot, Object, condition
from support.operators import OperatorFleet
from support.waiting import eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.spark]


def segment_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.segment") if not path.is_symlink())


def test_policy_to_reclaimed_bytes(fleet: OperatorFleet, cluster: Cluster, logs: LogRoot) -> None:
    for pattern in Pattern:
        logs.add(pattern.value, pattern=pattern, entries_per_segment=256, payload_bytes=512)
    before = segment_bytes(logs.path)
    replica = fleet.start()
    cluster.apply_policy(logs.path)

    cluster.await_all_succeeded(at_least=4)
    cluster.kubectl("wait", "--for=condition=Complete", "cjob", "--all", "--timeout=60s")
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
    reclaimed = sum(int(job["status"]["receipt"]["bytesReclaimed"]) for job in jobs)
    assert int(found["status"]["bytesReclaimed"]) == reclaimed
    # What is dead but named until the end of the grace is promised, not yet freed.
    assert segment_bytes(logs.path) == before - reclaimed + sum(path.stat().st_size for path in marked(jobs))
    assert condition(found, "Ready")["status"] == "True"
    assert {"Planned", "WorkerLaunched", "Succeeded"} <= cluster.events()
    assert cluster.leases("job") == []
    columns = cluster.kubectl("get", "cpol").splitlines()[0].split()
    assert columns == ["NAME", "STORE", "READY", "REASON", "DEBT", "OLDEST", "ACTIVE", "QUEUED", "FAULTY", "ETA", "AGE"]
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{replica.metrics_port}/metrics").read().decode()
    assert "compaction_bytes_reclaimed_total{" in metrics
    told = [line for line in replica.output.splitlines() if "job attempt ended" in line]
    assert sorted(job["metadata"]["name"] for job in jobs) == sorted(
        job["metadata"]["name"] for job in jobs for line in told if f"job={job['metadata']['name']}" in line
    ), "each assignment in the log has its end, once"
    eventually(lambda: not fleet.running_workers(), "the idle worker to end")
    assert cluster.leases("worker") == []


def marked(jobs: list[Object]) -> list[Path]:
    """Dead segments that the jobs marked for deletion."""
    sources = [job["spec"]["sources"]["segmentLog"] for job in jobs]
    return [Path(source["path"]) / name for source in sources for name in source.get("unreferenced", [])]


def test_old_names_are_swept_after_the_grace(fleet: OperatorFleet, cluster: Cluster, logs: LogRoot) -> None:
    directory = logs.add("a", entries_per_segment=256, payload_bytes=128)
    fleet.start()
    cluster.apply_policy(logs.path, cleanup={"delay": "3s"})
    cluster.await_all_succeeded()
    eventually(
        lambda: not [path for path in directory.glob("*.segment") if path.is_symlink()], "the old names to be deleted"
    )
    logs.assert_unchanged()
    assert logs.leftovers() == []


def test_one_corrupt_segment_never_blocks_its_siblings(fleet: OperatorFleet, cluster: Cluster, logs: LogRoot) -> None:
    directory = logs.add("a", entries_per_segment=256, payload_bytes=256, segments=13)
    logs.add("b", entries_per_segment=256, payload_bytes=256)
    damaged = corrupt_entry(directory, segment="0000000000000006.segment", record=8)
    fleet.start()
    cluster.apply_policy(logs.path)

    def quarantined() -> list[dict[str, object]]:
        found: list[dict[str, object]] = cluster.policy().get("status", {}).get("quarantined", [])
        return found

    entries = eventually(quarantined, "the corrupt segment in the policy's status")
    assert [entry["segment"] for entry in entries] == ["0000000000000006.segment"]
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
    assert logs.fingerprint("b") == logs.before["b"]


def test_what_only_the_operator_can_know_is_a_condition(fleet: OperatorFleet, cluster: Cluster, logs: LogRoot) -> None:
    fleet.start()
    missing = logs.path / "not-yet"
    cluster.apply_policy(missing)

    def reason(expected: str) -> bool:
        return condition(cluster.policy(), "Ready").get("reason") == expected

    eventually(lambda: reason("RootNotFound"), "the missing root as a condition")
    assert str(missing) in condition(cluster.policy(), "Ready")["message"]
    missing.mkdir()
    eventually(lambda: condition(cluster.policy(), "Ready").get("status") == "True", "the policy to recover")


def test_suspend_starts_no_new_jobs(fleet: OperatorFleet, cluster: Cluster, logs: LogRoot) -> None:
    logs.add("a", entries_per_segment=64, payload_bytes=128)
    fleet.start()
    cluster.apply_policy(logs.path, suspend=True)
    eventually(lambda: condition(cluster.policy(), "Ready").get("reason") == "Suspended", "the policy to be suspended")
    eventually(lambda: cluster.policy()["status"].get("debt", {}).get("bytes", 0) > 0, "its debt to be known")
    assert cluster.jobs() == []
    cluster.kubectl("patch", "cpol", "logs", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    cluster.await_all_succeeded()
    logs.assert_unchanged()
