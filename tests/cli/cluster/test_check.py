"""`check` and `debug`: each judgement by itself; all of them, and the archive, on a real API server, by users with the
roles that are shipped.
"""

from __future__ import annotations

import copy
import json
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from compaction.api.crd.definitions import RESOURCES, Resource, structural_schema
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
from compaction.cli.cluster.debug import DebugBundle, without_secrets
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


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.INFO.kind)
def test_a_definition_is_of_this_version_older_or_newer(resource: Resource) -> None:
    same = structural_schema(resource)
    assert definition(resource, same).result is OK
    assert definition(resource, None).result is FAILED
    older = copy.deepcopy(same)
    del older["properties"]["status"]["properties"]["conditions"]["items"]["properties"]["reason"]
    assert told(definition(resource, older)) == (
        FAILED,
        "it is older than this program, and lacks status.conditions[].reason: apply the definitions of this version",
    )
    newer = copy.deepcopy(same)
    newer["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    assert definition(resource, newer).message.startswith("it is newer than this program, and has spec.later")
    assert definition(resource, {"type": "object"}).result is FAILED, "a definition without fields is none"


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
    assert images([pod(), pod("ContainerCreating")]).result is OK
    new = {"metadata": {"name": "new"}, "status": {}}
    assert told(images([pod(), new])) == (UNKNOWN, "1 of 2 pods of ours have started so far")
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
    # An operator outside of the cluster has no account there, and rights that this question is not about.
    assert (answer.returncode, rows["operator's rights"]["result"]) == (0, "unknown")
    assert rows["operator's rights"]["message"].startswith(f"{account} does not exist")
    cluster.kubectl("create", "serviceaccount", "compaction-operator")
    answer = admin.run("check", "-n", cluster.namespace, "-o", "json")
    rows = {item["check"]: item for item in json.loads(answer.stdout)["items"]}
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


# `debug`: secrets are put wherever an object may hold one, and none of them is in the archive.

SEEDS = ("hunter2-env", "hunter2-conf", "hunter2-url", "hunter2-note", "hunter2-args", "hunter2-event", "hunter2-log")


@pytest.mark.apiserver
def test_the_archive_holds_no_secret_and_says_what_is_missing(
    cluster: Cluster, user: Callable[[str], User], tmp_path: Path
) -> None:
    env, conf, url, note, args, event, log = SEEDS
    variables = [{"name": "MODE", "value": env}]
    policy = policy_object("logs")
    policy["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": note}
    policy["spec"]["workers"] = {"podTemplate": {"spec": {"containers": [{"name": "worker", "env": variables}]}}}
    stalled = f"cannot connect to postgres://writer:{url}@db.example.com/index"
    make(cluster, policy, {"conditions": [condition("Ready", "StoreUnreadable", status="False", message=stalled)]})
    labels = {"app.kubernetes.io/name": "compaction-worker"}
    container = {"name": "worker", "image": "x", "env": variables, "args": [f"--store-password={args}", "--slots=2"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w-1", "labels": labels}}
    cluster.kubectl("create", "-f", "-", input=json.dumps(pod | {"spec": {"containers": [container]}}))
    about = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CompactionPolicy", "name": "logs"}
    told_of = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e-1"}, "message": f"api_key={event}"}
    made = told_of | {"involvedObject": about | {"namespace": cluster.namespace}, "reason": "Stalled"}
    cluster.kubectl("create", "-f", "-", input=json.dumps(made))

    bundle = tmp_path / "bundle.tgz"
    said = cluster_admin(cluster).run("debug", "-n", cluster.namespace, "-o", str(bundle))
    assert said.returncode == 0, said.stderr
    assert bundle.stat().st_mode & 0o777 == 0o600
    files = content_of(bundle)
    base = f"objects/{cluster.namespace}"
    assert {"README.txt", "check.json", "versions.json", f"{base}/events.json"} <= set(files)
    (found,) = json.loads(files[f"{base}/compactionpolicies.compaction.dev.json"])
    assert found["spec"]["store"]["segmentLogs"]["root"] == "/data/ra"
    assert found["status"]["conditions"][0]["message"] == "cannot connect to postgres://***@db.example.com/index"
    (container,) = json.loads(files[f"{base}/pods/w-1.json"])["spec"]["containers"]
    assert container["args"] == ["--store-password=***", "--slots=2"]
    assert [seed for seed in SEEDS if any(seed in text for text in files.values())] == []
    # No kubelet runs here, so there is no log: that is said, in the archive as well.
    assert f"log of {cluster.namespace}/w-1 worker" in said.stderr
    assert f"log of {cluster.namespace}/w-1 worker" in files["README.txt"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".bundle")] == []

    # A user who may read less gets less, and is told.
    said = user("compaction-viewer").run("debug", "-o", str(bundle))
    assert said.returncode == 0, said.stderr
    assert "pods is forbidden" in said.stderr
    assert f"{base}/compactionpolicies.compaction.dev.json" in content_of(bundle)
    refused = user("compaction-viewer").refused("debug", "-o", str(tmp_path / "nowhere" / "x.tgz"), code=2)
    assert "there is no directory" in refused

    of_logs = DebugBundle()
    of_logs.add("logs/x.log", f"INFO begun\nERROR password={log} is wrong\nINFO ended")
    assert of_logs.files["logs/x.log"] == b"INFO begun\nERROR password=*** is wrong\nINFO ended"
    secret = {"spark.hadoop.fs.s3a.secret.key": conf, "spark.executor.memory": "1g", "credentialsSecretName": "lake"}
    shown = {"spark.hadoop.fs.s3a.secret.key": "***", "spark.executor.memory": "1g", "credentialsSecretName": "lake"}
    assert without_secrets({"sparkConf": secret, "fencingToken": 7}) == {"sparkConf": shown, "fencingToken": 7}


def cluster_admin(cluster: Cluster) -> User:
    return User(cluster.plane.binaries.kubectl, cluster.plane.kubeconfig)


def content_of(bundle: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(bundle) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.removeprefix("compaction-debug/")] = file.read().decode()
    return found
