"""Whoever may write policies and nothing else gets nothing by it: each attempt, on a real API server
(docs/design/threat-model.md). What only a node can show is in tests/node.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from compaction.local.cluster.control_plane import start_control_plane
from compaction.local.programs.binaries import Binaries
from support.cluster.control_plane import ControlPlane
from support.cluster.rendered import NAMESPACED
from support.time.waiting import eventually

pytestmark = pytest.mark.apiserver

SYSTEM = "compaction-system"
WORKER = f"system:serviceaccount:{SYSTEM}:compaction-worker"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[ControlPlane]:
    """An installation, and two tenants: mallory writes policies and catalogs, alice may read the Secret `hers`, too."""
    with start_control_plane(tmp_path_factory.mktemp("tenants"), binaries) as running:
        plane = ControlPlane(running.kubeconfig, running.url, binaries, running)
        kubectl = plane.kubectl
        kubectl("apply", "--server-side", "-k", str(NAMESPACED))
        kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        for user in ("mallory", "alice"):
            kubectl(
                "create", "rolebinding", user, "--clusterrole=compaction-editor", f"--user={user}", namespace=SYSTEM
            )
        hers = ("--verb=get", "--resource=secrets", "--resource-name=hers")
        kubectl("create", "role", "hers", *hers, namespace=SYSTEM)
        kubectl("create", "rolebinding", "hers", "--role=hers", "--user=alice", namespace=SYSTEM)
        # The API server takes a moment to see a new admission policy.
        for user, document in (
            ("mallory", policy({"launcher": "process"})),
            ("mallory", catalog("theirs")),
            (WORKER, pod("x")),
        ):
            eventually(
                partial(attempt, plane, user, document), f"the first refusal of a {document['kind']}", timeout=30
            )
        eventually(partial(attempt_lease, plane), "the first refusal of a Lease", timeout=30)
        yield plane


def policy(workers: dict[str, Any] | None = None, *, store: dict[str, Any] | None = None) -> dict[str, Any]:
    spec = {"store": store or {"segmentLogs": {"root": "/data/ra"}}, "workers": workers or {}}
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": "p"},
        "spec": spec,
    }


def template(**spec: Any) -> dict[str, Any]:
    return policy({"podTemplate": {"spec": spec}})


def container(**members: Any) -> dict[str, Any]:
    return template(containers=[{"name": "worker", **members}])


def catalog(secret: str, *, token: str = "hers") -> dict[str, Any]:
    participants = {"urls": [{"name": "a", "url": "https://mallory.example"}], "token": {"secretName": token}}
    spec = {"catalog": {"endpoints": ["https://etcd:2379"], "secretName": secret}, "participants": participants}
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CatalogCompaction",
        "metadata": {"name": "c"},
        "spec": spec,
    }


def blocks(**members: Any) -> dict[str, Any]:
    store = {"url": "s3://mallory/blocks", "index": {"secretName": "hers"}}
    return policy(store={"blockStore": store | members})


def pod(account: str) -> dict[str, Any]:
    spec = {"serviceAccountName": account, "containers": [{"name": "a", "image": "a"}]}
    spec |= {"securityContext": {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}}
    spec["containers"][0]["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": spec}


def attempt(plane: ControlPlane, user: str, document: dict[str, Any]) -> str:
    """What the API server says to it; nothing when it would do it."""
    command = ("create", "--dry-run=server", f"--as={user}", "-f", "-")
    answer = plane.kubectl(*command, namespace=SYSTEM, input=yaml.safe_dump(document), check=False)
    return "" if answer.returncode == 0 else answer.stderr


def attempt_lease(plane: ControlPlane) -> str:
    """A worker takes the coordinator's Lease."""
    lease = yaml.safe_load(
        plane.kubectl("get", "lease", "compaction-coordinator", "-o", "yaml", namespace=SYSTEM).stdout
    )
    lease["spec"] = {"holderIdentity": "a-worker"}
    seize = ("replace", "--dry-run=server", f"--as={WORKER}", "-f", "-")
    return plane.kubectl(*seize, namespace=SYSTEM, input=yaml.safe_dump(lease), check=False).stderr


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (policy({"launcher": "process"}), "cannot be processes in a cluster"),
        (policy({"serviceAccountName": "compaction-operator"}), "workers may run as compaction-worker"),
        (policy({"serviceAccountName": "default"}), "workers may run as compaction-worker"),
        (template(serviceAccountName="compaction-operator"), "may not name a service account"),
        (template(serviceAccount="compaction-operator"), "may not name a service account"),
        (template(hostNetwork=True), "may not use the namespaces of the node"),
        (template(hostPID=True), "may not use the namespaces of the node"),
        (template(hostIPC=True), "may not use the namespaces of the node"),
        (template(nodeName="control-plane"), "may not choose a node"),
        (template(volumes=[{"name": "root", "hostPath": {"path": "/"}}]), "may not mount what is of the node"),
        (template(securityContext={"runAsUser": 0, "runAsNonRoot": False}), "may not run as root"),
        (container(securityContext={"privileged": True}), "may not run as root"),
        (template(initContainers=[{"name": "i", "securityContext": {"runAsUser": 0}}]), "may not run as root"),
        (container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "may not add capabilities"),
        (container(ports=[{"containerPort": 1, "hostPort": 1}]), "ports of the node"),
        (container(terminationMessagePath="/var/run/secrets/token"), "terminationMessagePath"),
        (policy({"envFromSecrets": [{"name": "theirs"}]}), "able to get each Secret that it names: theirs"),
        (policy({"secretVolumes": [{"secretName": "theirs", "mountPath": "/x"}]}), "get each Secret that it names: "),
        (template(volumes=[{"name": "a", "secret": {"secretName": "theirs"}}]), "get each Secret that it names: "),
        (container(envFrom=[{"secretRef": {"name": "theirs"}}]), "get each Secret that it names: "),
        (container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "theirs", "key": "a"}}}]), "theirs"),
        (blocks(credentialsSecretName="theirs"), "get each Secret that it names: "),
        (blocks(caBundle={"secretName": "theirs"}), "get each Secret that it names: "),
        (catalog("theirs"), "able to get each Secret that it names: theirs"),
        (catalog("hers", token="theirs"), "get each Secret that it names: "),
    ],
)
def test_an_attempt_is_refused_and_says_what_is_wrong(plane: ControlPlane, document: dict[str, Any], says: str) -> None:
    said = attempt(plane, "alice", document)
    assert "(Forbidden)" in said, said or "it was allowed"
    assert says in said


@pytest.mark.parametrize("document", [blocks(), catalog("hers"), policy({"envFromSecrets": [{"name": "hers"}]})])
def test_who_may_read_a_secret_may_name_it_and_no_other(plane: ControlPlane, document: dict[str, Any]) -> None:
    assert attempt(plane, "alice", document) == ""
    assert "get each Secret that it names: hers" in attempt(plane, "mallory", document)


@pytest.mark.parametrize(
    "document",
    [
        policy(),
        container(env=[{"name": "TZ", "value": "UTC"}], resources={"limits": {"memory": "1Gi"}}),
        template(volumes=[{"name": "events", "persistentVolumeClaim": {"claimName": "events"}}], securityContext={}),
        template(securityContext={"runAsUser": 999, "runAsGroup": 999}, tolerations=[{"operator": "Exists"}]),
        policy({"launcher": "pod", "executor": {"instances": 2}, "queueName": "q"}),
    ],
)
def test_what_is_usual_is_allowed(plane: ControlPlane, document: dict[str, Any]) -> None:
    assert attempt(plane, "mallory", document) == ""


def test_accounts_of_ours_do_nothing_but_their_work(plane: ControlPlane) -> None:
    assert "only the operator's own Deployment" in attempt(plane, WORKER, pod("compaction-operator"))
    assert "drivers make executors only" in attempt(plane, WORKER, pod("compaction-worker"))
    operator = f"system:serviceaccount:{SYSTEM}:compaction-operator"
    assert "only the operator's own Deployment" in attempt(plane, operator, pod("compaction-operator"))
    assert "a worker cannot lead" in attempt_lease(plane)
    # Beyond admission only the absence of a node's account is in the way.
    for user, account in ((WORKER, "compaction-executor"), (operator, "compaction-worker")):
        assert attempt(plane, user, pod(account)) == ""
