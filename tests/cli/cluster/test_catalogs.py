"""`kubectl compaction status` and `why` about catalogs: the real kubectl, a real API server, users with our roles."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.base import OwnerReference
from compaction.api.catalog.catalog import CatalogReason
from compaction.api.catalog.reasons import Reason
from compaction.api.names import API_VERSION, POLICY_KIND
from compaction.catalogs.explaining import CATALOG_WORDS
from compaction.cli.cluster.quarantine import what_follows
from compaction.cli.cluster.status_view import fleet_row, policy_data, show_policy
from compaction.cli.main import main
from compaction.core.explain.explanation import Coordination, Leadership
from compaction.core.meaning import Names
from support.clocks import PATIENCE_SECONDS
from support.cluster.by_kubectl import Cluster, User, ago, columns_of, coordinator_lease, make, write_status
from support.cluster.explained import NOW, condition, job_with, policy_with
from support.cluster.explained import ago as status_view_ago
from support.cluster.manifests import job_object, policy_object
from support.cluster.orders import catalog_object


def pinned() -> dict[str, Any]:
    """A transaction of orders-1 pins the history; orders-2 does not answer."""
    return {
        "observedGeneration": 1,
        "conditions": [condition("Ready", "Transaction", message="transaction 77 is active")],
        "coordinator": "operator-0",
        "fencingToken": 4,
        "lowWatermark": {"value": 1, "time": ago(600)},
        "requiredTime": {
            "value": 1,
            "time": ago(7205),
            "reason": "Transaction",
            "participant": "orders-1",
            "subject": "transaction 77",
            "since": ago(3700),
        },
        "earliestVersion": 3,
        "latestVersion": 9,
        "compaction": {
            "outcome": "Skipped",
            "reason": "Transaction",
            "message": "transaction 77 is active",
            "finishedAt": ago(20),
            "since": ago(3700),
        },
        "propagation": {
            "outcome": "Failed",
            "reason": "NotDelivered",
            "message": "participant orders-2 did not take the minimum",
            "finishedAt": ago(20),
            "since": ago(25),
        },
        "versionsCut": 12,
        "bytesCut": 5 << 10,
        "lastCompactionTime": ago(9000),
        "round": {"stage": "Idle", "trigger": "Interval", "startedAt": ago(21), "participants": 2, "answered": 1},
        "nextRunTime": ago(-40),
        "participants": [
            {"name": "orders-2", "reason": "NoAnswer", "message": "connection refused"},
            {
                "name": "orders-1",
                "reason": "Answered",
                "minimum": ago(7205),
                "cause": "Partition",
                "subject": "partition 3 of table 9",
                "oldestTransaction": ago(3700),
                "partitions": 8,
            },
        ],
    }


@pytest.fixture
def catalog(cluster: Cluster) -> Cluster:
    make(cluster, coordinator_lease(0))
    make(cluster, catalog_object("orders"), pinned())
    return cluster


@pytest.mark.apiserver
def test_status_lists_catalogs_beside_policies(catalog: Cluster, editor: User) -> None:
    (row,) = columns_of(editor.prints("status"))
    assert row.pop("NEXT").startswith("round in ")
    assert row.pop("LAST CUT").startswith("2h30m")
    assert row == {
        "CATALOG": "orders",
        "READY": "True",
        "REASON": "Transaction",
        "EARLIEST": "3",
        "LATEST": "9",
        "BEHIND": "5",
        "PINNED BY": "Transaction of orders-1 (1h1m)",
        "ANSWERS": "1/2",
        "CUT": "12",
    }
    make(catalog, policy_object())
    policies, catalogs = editor.prints("status").split("\n\n")
    assert (columns_of(policies)[0]["NAME"], columns_of(catalogs)[0]["CATALOG"]) == ("logs", "orders")
    (wide,) = columns_of(editor.prints("status", "-o", "wide").partition("\n\n")[2])
    assert (wide["PROPAGATION"], wide["BYTES CUT"], wide["PREFIX"]) == ("NotDelivered", "5Ki", "/catalog/")
    data = json.loads(editor.prints("status", "-o", "json"))
    assert [item["name"] for item in data["items"]] == ["logs"]
    (one,) = data["catalogs"]
    assert (one["behindVersions"], one["pin"]["participant"], one["answered"]) == (5, "orders-1", 1)
    assert datetime.fromisoformat(one["pin"]["requiredAt"]) < datetime.fromisoformat(one["pin"]["since"])


def without_ages(text: str) -> str:
    """Ages go on between two commands, and columns are as wide as they are."""
    return re.sub(r"\b(\d+[smhd])+\b", "AGE", text)


@pytest.mark.apiserver
def test_status_of_one_catalog_has_its_participants(catalog: Cluster, editor: User) -> None:
    text = editor.prints("status", "ccat/orders")
    assert without_ages(text).split() == without_ages(editor.prints("status", "orders")).split(), (
        "no policy has the name"
    )
    for said in (
        "versions 3 to 9, 5 behind",
        "Transaction of orders-1 (1h1m)",
        "Failed, NotDelivered, 2",
        "did not take the minimum",
        "1/2; without one: orders-2",
        "12 versions, 5Ki of updates, the last 2h30m ago",
    ):
        assert said in text
    rows = columns_of(text.partition("\n\n")[2])
    assert [(row["PARTICIPANT"], row["ANSWER"], row["DETAIL"]) for row in rows] == [
        ("orders-2", "NoAnswer", "connection refused"),
        ("orders-1", "Answered", "partition 3 of table 9"),
    ]
    data = yaml.safe_load(editor.prints("status", "ccat/orders", "-o", "yaml"))
    assert [row["name"] for row in data["participantRows"]] == ["orders-2", "orders-1"]
    assert 'no CatalogCompaction "other"' in editor.refused("status", "ccat/other")


@pytest.mark.apiserver
def test_a_catalog_that_waits_for_an_operator_promises_nothing(cluster: Cluster, editor: User) -> None:
    make(cluster, coordinator_lease(3 * 3600))
    make(cluster, catalog_object("orders"), pinned())
    answer = editor.run("status")
    assert columns_of(answer.stdout)[0]["NEXT"] == "no coordinator"
    assert "No operator coordinates: replica-a last renewed its Lease 3h" in answer.stderr
    make(cluster, coordinator_lease(0))
    cluster.patch("ccat/orders", {"spec": {"dryRun": True}})
    assert columns_of(editor.prints("status"))[0]["NEXT"] == "spec not observed"
    assert "generation 1 of 2" in editor.prints("status", "orders")
    assert "rounds decide, and cut and propagate nothing" in editor.prints("status", "orders")
    cluster.patch("ccat/orders", {"spec": {"suspend": True}})
    assert columns_of(editor.prints("status"))[0]["NEXT"] == "suspended"


@pytest.mark.apiserver
def test_a_catalog_without_anything_in_it_is_no_error(cluster: Cluster, editor: User) -> None:
    make(cluster, catalog_object("orders"))
    (row,) = columns_of(editor.prints("status"))
    assert (row["REASON"], row["EARLIEST"], row["PINNED BY"], row["ANSWERS"]) == ("-", "-", "-", "-")
    assert "never: no operator has observed the catalog yet" in editor.prints("status", "orders")
    assert "Unknown: no round has read the log yet." in editor.prints("why", "orders")


@pytest.mark.apiserver
def test_watch_follows_one_catalog(catalog: Cluster, editor: User) -> None:
    command = [str(editor.kubectl), "compaction", "status", "ccat/orders", "--watch", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=editor.environment) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["earliestVersion"] == 3
            write_status(catalog, "ccat/orders", {"earliestVersion": 8})
            assert json.loads(process.stdout.readline())["earliestVersion"] == 8
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130


@pytest.mark.apiserver
def test_why_says_who_pins_what_since_when_and_how_both_processes_ended(catalog: Cluster, editor: User) -> None:
    text = editor.prints("why", "ccat/orders")
    assert without_ages(text) == without_ages(editor.prints("why", "orders"))
    for sentence in (
        f"CatalogCompaction {catalog.namespace}/orders: Transaction",
        "Versions 3 to 9 are kept: 5 versions beyond the two that always stay.",
        "Transaction, transaction 77 of participant orders-1, since ",
        "Compaction: Skipped, Transaction, for 1h1m, ",
        "Propagation: Failed, NotDelivered, for ",
        "Participant orders-2: NoAnswer. connection refused",
        "Participant orders-1 needs the catalog from ",
        "The next round begins in ",
        "Check the participant that is named.",
    ):
        assert sentence in text
    document = json.loads(editor.prints("why", "ccat/orders", "-o", "json"))
    assert document["subject"].endswith("/orders: Transaction")


@pytest.mark.apiserver
def test_why_has_words_for_every_reason_that_the_api_server_stores(catalog: Cluster, editor: User) -> None:
    for reason in (*Reason, *CatalogReason):
        status = pinned() | {"conditions": [condition("Ready", reason, message="the particulars")]}
        if reason in set(Reason):
            status["compaction"] |= {"reason": reason, "message": "the particulars"}
        write_status(catalog, "ccat/orders", status)
        said = json.loads(editor.prints("why", "ccat/orders", "-o", "json"))
        names, meaning = Names(catalog.namespace, catalog="orders"), CATALOG_WORDS[reason]
        assert any(sentence.startswith(f"{reason}, for ") for sentence in said["state"])
        assert names.fill(meaning.next) in said["next"]
        assert bool(meaning.do) == (names.fill(meaning.do) in said["actions"])


@pytest.mark.apiserver
def test_policy_job_and_catalog_of_one_name_are_selected_by_their_kind(catalog: Cluster, editor: User) -> None:
    make(catalog, job_object("orders"))
    assert editor.prints("why", "orders").startswith("CompactionJob")
    make(catalog, policy_object("orders"))
    assert editor.prints("why", "orders").startswith("CompactionPolicy")
    for kind in ("ccat", "catalog", "catalogcompactions.compaction.dev"):
        assert editor.prints("why", f"{kind}/orders").startswith("CatalogCompaction")
    assert "not scanned yet" in editor.prints("status", "orders")
    assert "versions 3 to 9" in editor.prints("status", "ccat/orders")
    assert 'no CatalogCompaction "other"' in editor.refused("why", "ccat/other")
    missing = editor.refused("why", "other")
    assert 'no CompactionPolicy, CompactionJob or CatalogCompaction "other"' in missing


@pytest.mark.apiserver
def test_a_viewer_reads_and_a_user_of_policies_alone_sees_policies(
    catalog: Cluster, user: Callable[[str], User], control_plane: Any, namespace: str
) -> None:
    viewer = user("compaction-viewer")
    for args in (("status",), ("status", "orders"), ("why", "ccat/orders")):
        assert viewer.prints(*args)
    make(catalog, policy_object())
    catalog.kubectl("create", "role", "policies", "--verb=get,list", "--resource=compactionpolicies.compaction.dev")
    catalog.kubectl("create", "rolebinding", "policies", "--role=policies", "--user=clerk")
    admin = User(control_plane.binaries.kubectl, control_plane.kubeconfig)
    seen = admin.prints("-n", namespace, "status", "--as", "clerk")
    assert "logs" in seen
    assert "orders" not in seen


# What `kubectl compaction status NAME` says about workers.


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


LOOKED = {"conditions": [condition("Ready", "Compacting")], "lastSenseTime": status_view_ago(5)}
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


# `compactor operator`: what is refused before anything starts.


def test_the_scope_must_be_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator"]) == 2
    assert main(["operator", "-n", "team-a", "-A"]) == 2
    assert "--namespace NAME or --all-namespaces" in capsys.readouterr().err


def test_unsafe_election_times_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator", "-A", "--lease-duration", "10", "--renew-deadline", "10"]) == 2
    assert "lease duration > renew deadline" in capsys.readouterr().err


def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator", "-n", "x", "--kubeconfig", str(tmp_path / "absent")]) == 1
    error = capsys.readouterr().err
    assert "absent" in error
    assert "Traceback" not in error
