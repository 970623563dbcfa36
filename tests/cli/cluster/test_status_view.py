"""What `kubectl compaction status NAME` says about workers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from compaction.api.base import OwnerReference
from compaction.api.names import API_VERSION, POLICY_KIND
from compaction.cli.cluster.quarantine import what_follows
from compaction.cli.cluster.status_view import fleet_row, policy_data, show_policy
from compaction.core.explain.explanation import Coordination, Leadership
from support.cluster.explained import NOW, ago, condition, job_with, policy_with


def test_workers_of_which_there_is_more_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": "logs-w-1", "state": "Pending", "reason": "ImagePull", "message": "manifest unknown"},
        {"name": "logs-w-2", "state": "Ready", "ui": "http://10.1.2.3:4040"},
        {"name": "logs-w-3", "state": "Ready"},
    ]
    memory = {"driverMemoryBytes": 4 << 30, "executorMemoryBytes": 2 << 30}
    show_policy(policy_with({"workerStatuses": rows, **memory}), (), NOW)
    said = capsys.readouterr().out
    assert "logs-w-1 waits (ImagePull): manifest unknown" in said
    assert "logs-w-2: http://10.1.2.3:4040" in said
    assert "logs-w-3" not in said, "it is among those that are counted"
    assert "drivers get 4Gi: one ran out of it" in said
    assert "executors get 2Gi: some ran out of it" in said


LOOKED = {"conditions": [condition("Ready", "Compacting")], "lastSenseTime": ago(5)}
GONE = Coordination(Leadership.SILENT, "replica-a", NOW - timedelta(minutes=5))


def test_a_policy_that_nobody_coordinates_promises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    policy = policy_with(LOOKED)
    assert fleet_row(policy_data(policy, NOW, Coordination(Leadership.LEADS, "replica-b")))["next"] == "scan in 55s"
    data = policy_data(policy, NOW, GONE)
    assert fleet_row(data)["next"] == "no coordinator"
    assert data["coordinator"] == {"state": "Silent", "holder": "replica-a", "renewedSeconds": 300}
    show_policy(policy, (), NOW, GONE)
    said = capsys.readouterr().out
    assert "No operator coordinates: replica-a last renewed its Lease 5m ago" in said
    assert "scan in" not in said


@pytest.mark.parametrize(
    ("observed", "said"),
    [
        (1, "generation 1 of 2: the operator has not seen the newest spec yet"),
        (-1, "never: no operator has observed the policy yet"),
    ],
)
def test_a_spec_that_was_not_observed_is_said(observed: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    policy = policy_with(LOOKED | {"observedGeneration": observed})
    changed = policy.model_copy(update={"metadata": policy.metadata.model_copy(update={"generation": 2})})
    data = policy_data(changed, NOW)
    assert (data["observed"], fleet_row(data)["next"]) == (False, "spec not observed")
    show_policy(changed, (), NOW)
    assert said in capsys.readouterr().out


def test_a_retry_of_a_planned_job_is_answered_with_what_decides_about_it() -> None:
    by_hand = job_with({"state": "Faulty"})
    assert what_follows(by_hand) == "retry requested; the coordinator resets its attempts"
    owner = OwnerReference(api_version=API_VERSION, kind=POLICY_KIND, name="logs", uid="u", controller=True)
    planned = by_hand.model_copy(
        update={"metadata": by_hand.metadata.model_copy(update={"owner_references": (owner,)})}
    )
    assert "if the store still offers its sources, otherwise it answers with the Event" in what_follows(planned)
