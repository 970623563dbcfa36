"""A person, the commands and the operator: a plan approved, damage seen, a job tried again, a segment released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compaction.segments.generate import corrupt_entry
from support.cluster.by_kubectl import Cluster, LogRoot
from support.cluster.command_users import columns_of, make_user
from support.processes.operators import OperatorFleet
from support.time.waiting import eventually

pytestmark = pytest.mark.apiserver

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
    assert "No current plan has hash 0123456789abcdef" in person.refused("approve", "logs", "0123456789abcdef")
    assert "its 2 jobs are created" in person.prints("approve", "logs", plan["hash"])

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
