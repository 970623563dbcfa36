"""`check`: each judgement by itself, and all of them on a real API server, by users with the roles we ship."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from compaction.api.crd.definitions import crd_objects
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.cluster.check import (
    MOST_SKEW,
    CheckVerdict,
    ClusterCheck,
    clock_skew,
    definition,
    images,
    leader,
    server_version,
    stores,
)
from compaction.leases.record import Lease
from support.cluster.by_kubectl import Cluster, User, coordinator_lease, make, write_status
from support.cluster.explained import condition
from support.cluster.manifests import policy_object

NOW = datetime(2026, 11, 29, 2, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
OK, FAILED, UNKNOWN = CheckVerdict.OK, CheckVerdict.FAILED, CheckVerdict.UNKNOWN


def told(found: ClusterCheck) -> tuple[CheckVerdict, str]:
    return found.result, found.message


@pytest.mark.parametrize(
    ("minor", "result"), [("36", OK), ("30", OK), ("30+", OK), ("29", FAILED), ("", UNKNOWN), ("x", UNKNOWN)]
)
def test_the_api_server_is_new_enough(minor: str, result: CheckVerdict) -> None:
    assert server_version({"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"}).result is result


def served(crd: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = copy.deepcopy(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    return schema


@pytest.mark.parametrize("crd", crd_objects(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_a_definition_is_of_this_version_older_or_newer(crd: dict[str, Any]) -> None:
    assert definition(crd, served(crd)).result is OK
    assert definition(crd, None).result is FAILED
    older = served(crd)
    del older["properties"]["status"]["properties"]["conditions"]["items"]["properties"]["reason"]
    assert told(definition(crd, older)) == (
        FAILED,
        "it is older than this program, and lacks status.conditions[].reason: apply the definitions of this version",
    )
    newer = served(crd)
    newer["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    assert definition(crd, newer).message.startswith("it is newer than this program, and has spec.later")
    assert definition(crd, {"type": "object"}).result is FAILED, "a definition without fields is none"


def lease(silent: float = 0.0, **spec: Any) -> Lease:
    document = coordinator_lease(silent)
    document["metadata"]["namespace"] = "system"
    document["spec"] |= spec
    return Lease.parse(document)


def test_a_replica_leads_or_not() -> None:
    now = datetime.now(UTC)
    assert told(leader([lease()], "system", now)) == (OK, "replica-a")
    assert leader([lease(3 * 3600)], "system", now).result is FAILED
    assert leader([lease(holderIdentity="")], "system", now).result is FAILED
    assert leader([], "system", now).result is UNKNOWN
    assert leader(None, "system", now).result is UNKNOWN


@pytest.mark.parametrize(
    ("off", "slack", "result"),
    [
        (timedelta(), timedelta(), OK),
        (MOST_SKEW, timedelta(), OK),
        (-MOST_SKEW - SECOND, SECOND, OK),
        (MOST_SKEW + SECOND, timedelta(), FAILED),
        (-timedelta(hours=1), SECOND, FAILED),
    ],
)
def test_a_clock_may_be_off_by_a_little(off: timedelta, slack: timedelta, result: CheckVerdict) -> None:
    found = clock_skew(NOW, [("here", NOW, SECOND), ("the leader", NOW + off, slack)])
    assert found.result is result
    if result is FAILED:
        assert found.message.startswith("the leader is ")
        assert ("ahead of" if off > timedelta() else "behind") in found.message


def pod(reason: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "no such tag"}} if reason else {"running": {}}
    statuses = [{"image": "registry/operator:9", "state": state}]
    return {"metadata": {"namespace": "system", "name": "op-0"}, "status": {"containerStatuses": statuses}}


def test_images_that_cannot_start_are_named() -> None:
    assert images([]).result is UNKNOWN
    assert images([pod(), pod("ContainerCreating"), {"metadata": {"name": "new"}, "status": {}}]).result is OK
    assert told(images([pod(), pod("ImagePullBackOff")])) == (
        FAILED,
        "registry/operator:9 of system/op-0: ImagePullBackOff: no such tag",
    )


def policy(name: str, status: dict[str, Any]) -> CompactionPolicy:
    document = policy_object(name)
    document["metadata"]["namespace"] = "ns"
    return CompactionPolicy.from_object(document | {"status": status})


def stalled(reason: str) -> list[dict[str, Any]]:
    return [condition("Ready", reason, status="False", message="m"), condition("Stalled", reason, message="m")]


def test_stores_that_are_not_reached_are_named_each() -> None:
    scanned = {"lastSenseTime": "2026-11-29T02:00:00Z"}
    fine, new = policy("fine", scanned), policy("new", {})
    assert [found.result for found in stores([])] == [UNKNOWN]
    assert [told(found) for found in stores([fine])] == [(OK, "1 store scanned")]
    assert [told(found) for found in stores([fine, new])] == [(UNKNOWN, "1 of 2 stores were scanned so far")]
    away = policy("away", scanned | {"conditions": stalled("StoreUnreachable")})
    damaged = policy("damaged", scanned | {"conditions": stalled("SourcesQuarantined")})
    worker = {"name": "w", "state": "Pending", "reason": "ImagePull", "message": "no such tag"}
    no_image = policy("no-image", scanned | {"workerStatuses": [worker]})
    assert [(found.name, found.message) for found in stores([fine, away, damaged, no_image])] == [
        ("store of ns/away", "StoreUnreachable: m"),
        ("workers of ns/no-image", "w: ImagePull: no such tag"),
    ]


@pytest.mark.apiserver
def test_on_a_cluster_by_users_of_each_role(cluster: Cluster, user: Callable[[str], User]) -> None:
    def checked(role: str, code: int) -> dict[str, tuple[str, str]]:
        answer = user(role).run("check", "-o", "json")
        assert answer.returncode == code, answer.stdout + answer.stderr
        return {item["check"]: (item["result"], item["message"]) for item in json.loads(answer.stdout)["items"]}

    found = checked("compaction-editor", 0)
    assert found["api server"][0] == "ok"
    for kind in ("CompactionPolicy", "CompactionJob", "CatalogCompaction"):
        assert found[f"definition {kind}"] == ("ok", "of the version of this program")
    assert (found["rights"][0], found["leader"][0], found["stores"][0]) == ("ok", "unknown", "unknown")
    assert found["clocks"] == ("ok", "1 clock within 5 s of the API server")

    make(cluster, coordinator_lease(0))
    make(cluster, policy_object(), {"conditions": stalled("PermissionDenied"), "lastSenseTime": "2026-11-29T02:00:00Z"})
    found = checked("compaction-editor", 1)
    assert found["leader"] == ("ok", "replica-a")
    assert found["operator's rights"][0] == "unknown", "an editor may not review the access of others"
    assert found[f"store of {cluster.namespace}/logs"] == ("FAILED", "PermissionDenied: m")
    write_status(cluster, "cpol/logs", {"conditions": [condition("Ready", "Scheduled")]})
    found = checked("compaction-viewer", 1)
    assert "may not patch compactionpolicies" in found["rights"][1]
    assert found["rights"][1].endswith("bind the role compaction-editor")
    assert checked("", 1)["rights"][1].endswith("bind the role compaction-viewer")


@pytest.mark.apiserver
def test_the_rights_of_the_operator_are_reviewed_by_who_may(cluster: Cluster, control_plane: Any) -> None:
    make(cluster, coordinator_lease(0))
    admin = User(control_plane.binaries.kubectl, control_plane.running.kubeconfig)
    answer = admin.run("check", "-n", cluster.namespace, "-o", "json")
    rows = {item["check"]: item for item in json.loads(answer.stdout)["items"]}
    account = f"system:serviceaccount:{cluster.namespace}:compaction-operator"
    assert (answer.returncode, rows["operator's rights"]["result"]) == (1, "FAILED")
    assert rows["operator's rights"]["message"].startswith(f"{account} may not ")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "compaction-operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "compaction-operator", "namespace": cluster.namespace}],
    }
    cluster.apply(binding)
    answer = admin.run("check", "-n", cluster.namespace)
    assert answer.returncode == 0, answer.stdout
    assert f"{account} may do what it has to in its namespace" in answer.stdout
