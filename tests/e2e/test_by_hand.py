"""What a person does beside writing policies: a job made by hand, the plugin, and what it all costs the API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from compaction.segments.generate import corrupt_entry, generate_log
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.by_kubectl import Cluster, LogRoot, columns_of, condition, make_user
from support.processes.operators import OperatorFleet
from support.segments.log_owners import live_payloads, under_the_maps

pytestmark = pytest.mark.apiserver

WRITES = {"create", "update", "patch", "delete"}


def by_hand(log: Path, *names: str, unreferenced: tuple[str, ...] = ()) -> dict[str, Any]:
    source = {"path": str(log), "groups": [{"segments": list(names)}], "obsolete": list(unreferenced)}
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionJob",
        "metadata": {"name": "by-hand"},
        "spec": {"policyRef": {"name": "logs"}, "kind": "SegmentRewrite", "sources": {"segmentLog": source}},
    }


@pytest.mark.spark
def test_a_job_made_by_hand_runs_on_its_policys_workers_or_is_refused(
    fleet: OperatorFleet, cluster: Cluster, logs: LogRoot, tmp_path: Path
) -> None:
    directory = logs.add("a", entries_per_segment=256, payload_bytes=256)
    fleet.start()
    # The policy itself is suspended: it plans nothing, and what people ask for by hand waits for it, too.
    cluster.apply_policy(logs.path, suspend=True)
    eventually(lambda: condition(cluster.policy(), "Ready").get("reason") == "Suspended", "the policy to be suspended")
    cluster.apply(by_hand(directory, "0000000000000002.segment", "0000000000000003.segment"))
    eventually(
        lambda: cluster.policy()["status"].get("waiting", {}).get("reason") == "Suspended",
        "the policy to say what its job waits for",
    )
    thresholds = {"segmentLogs": {"thresholds": {"debtBytes": "1Ti"}}}
    cluster.patch("cpol/logs", {"spec": {"suspend": False, "store": thresholds}})
    cluster.kubectl("wait", "--for=condition=Complete", "cjob/by-hand", TIMEOUT_FLAG)
    assert [job["metadata"]["name"] for job in cluster.jobs()] == ["by-hand"]
    assert (directory / "0000000000000003.segment").is_symlink()
    logs.assert_unchanged()
    _outside_of_the_policys_root_it_is_refused(cluster, LogRoot(tmp_path / "elsewhere", {}))
    _sparse_entries_are_rewritten(cluster, logs)


def _outside_of_the_policys_root_it_is_refused(cluster: Cluster, elsewhere: LogRoot) -> None:
    job = by_hand(elsewhere.add("a", entries_per_segment=64, payload_bytes=64), "0000000000000002.segment")
    job["metadata"]["name"] = "outside"
    cluster.apply(job)
    assert condition(cluster.await_job_state("Faulty"), "Failed")["reason"] == "OtherStore"
    elsewhere.assert_unchanged()


def _sparse_entries_are_rewritten(cluster: Cluster, logs: LogRoot) -> None:
    """On request only, in a job made by hand; the policy plans nothing of the kind."""
    sparse = logs.path / "sparse"
    generate_log(sparse, segments=4, entries_per_segment=128, payload_bytes=64)
    before = live_payloads(sparse)
    job = by_hand(sparse)
    job["metadata"]["name"] = "clump-by-hand"
    job["spec"]["sources"]["segmentLog"] = {"path": str(sparse), "clump": {"ownerStopped": True}}
    cluster.apply(job)
    cluster.await_condition("clump-by-hand", "Complete")
    receipt = next(job for job in cluster.jobs() if job["metadata"]["name"] == "clump-by-hand")["status"]["receipt"]
    assert receipt["clump"] == {
        "entriesMoved": 96,
        "bytesMoved": 96 * 64,
        "rangesBefore": 96,
        "rangesAfter": 1,
        "firstIndex": 513,
        "lastIndex": 608,
    }
    assert under_the_maps(sparse, before) == before


def test_writes_per_job_are_bounded(
    operators: OperatorFleet, cluster: Cluster, logs: LogRoot, control_plane: Any
) -> None:
    for name in "abcdef":
        logs.add(name, entries_per_segment=64, payload_bytes=64)
    operators.start()
    # Renewals are counted, too: their number grows with the time that a crowded machine takes, so they are made rare.
    cluster.apply_policy(logs.path, limits={"maxConcurrentJobs": 6}, lease={"durationSeconds": 120})
    jobs = {job["metadata"]["name"] for job in cluster.await_all_succeeded(at_least=6)}
    cluster.await_idle()
    eventually(lambda: not cluster.leases("job"), "the job Leases to be deleted")

    writes: Counter[str] = Counter()
    lines = control_plane.running.audit_log.read_text().splitlines()
    for entry in (json.loads(line) for line in lines if cluster.namespace in line):
        target = entry.get("objectRef", {})
        if entry["verb"] in WRITES and target.get("namespace") == cluster.namespace:
            # Of the job and its Lease, which share a name, and of Events about it, whose names begin with it.
            name = str(target.get("name", ""))
            writes.update(job for job in jobs if name == job or name.startswith(f"{job}."))
    assert set(writes) == jobs
    # Creation, Lease, assignment, the worker's report, the end, the Event about it, and the Lease's deletion.
    assert max(writes.values()) <= 8, writes


def test_kubectl_finds_the_plugin(control_plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    kubectl = str(control_plane.binaries.kubectl)
    answer = subprocess.run([kubectl, "compaction", "segments", "--help"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "Inspect segment logs" in answer.stdout


# A person, the commands and the operator: a plan approved, damage seen, a job tried again, a segment released.

DAMAGED = "0000000000000006.segment"


def test_a_plan_is_approved_and_what_went_wrong_is_tried_again(
    operators: OperatorFleet, cluster: Cluster, logs: LogRoot, control_plane: Any, tmp_path: Path
) -> None:
    directory = logs.add("a", entries_per_segment=256, payload_bytes=256, segments=13)
    logs.add("b", entries_per_segment=256, payload_bytes=256)
    corrupt_entry(directory, segment=DAMAGED, record=8)
    person = make_user(control_plane, cluster.namespace, tmp_path, role="compaction-editor")
    operators.start()
    cluster.apply_policy(logs.path, approval="Manual")

    def read(*args: str) -> Any:
        return json.loads(person.prints(*args, "-o", "json"))

    plan = eventually(lambda: (found := read("plan", "logs"))["awaitsApproval"] and found, "a plan to approve")
    assert cluster.jobs() == []
    assert plan["plannedJobs"] == len(plan["work"]) == 2
    assert columns_of(person.prints("status"))[0]["REASON"] == "ApprovalPending"
    told = eventually(lambda: any("ApprovalPending" in item for item in read("why", "logs")["state"]), "why it waits")
    assert told
    assert "No current plan has hash 0123456789abcdef" in person.refused("approve", "logs=0123456789abcdef")
    assert "its 2 jobs are created" in person.prints("approve", f"logs={plan['hash']}")

    def faulty() -> str:
        return next((job["name"] for job in read("status", "logs")["jobs"] if job["state"] == "Faulty"), "")

    job = eventually(faulty, "the job with the damaged segment to be parked")
    assert logs.fingerprint("b") == logs.before["b"]
    eventually(lambda: columns_of(person.prints("quarantine") or "X"), "the damaged segment to be set aside")
    assert columns_of(person.prints("quarantine"))[0]["SOURCE"] == DAMAGED
    assert any(DAMAGED in sentence for sentence in read("why", job)["state"])

    def token() -> int:
        return int(next(item["token"] for item in read("status", "logs")["jobs"] if item["name"] == job))

    assert token() == 1
    assert f"{DAMAGED} is damaged and in quarantine" in person.refused("retry", job), "it could not end otherwise"
    cluster.annotate(f"cjob/{job}", retry="all-the-same")
    cluster.await_events("RetryRefused")
    assert token() == 1
    person.prints("quarantine", "logs", "--release", "--all")
    eventually(lambda: cluster.policy()["status"].get("released") == "all", "the release to be acted upon")
    eventually(lambda: token() == 2, "the job of the released segment to be tried again")
    eventually(lambda: faulty() == job, "it to fail for the same reason")
