"""Whoever may write policies and nothing else gets nothing by it: each attempt, on a real API server
(docs/design/threat-model.md). What only a node can show is in tests/node.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import yaml
from click.testing import CliRunner, Result

from compaction.api.names import HOLD_LEASE
from compaction.cli.local.drill import group
from compaction.local.cluster import control_plane
from compaction.local.cluster.control_plane import start_control_plane
from compaction.local.programs.binaries import Binaries
from compaction.local.tenants import OF_WORKERS, TenantAttempt, TenantTable, pod
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.by_kubectl import Object
from support.cluster.control_plane import NAMESPACED, ControlPlane, everything

pytestmark = pytest.mark.apiserver

SYSTEM = "compaction-system"
ATTEMPTS = TenantTable.read().attempts
OLDEST = "1.33"
"""The oldest that an API server of today can emulate."""
HERS = ("hers", *(f"hers-{number}" for number in range(2, 18)))
PLAIN = "plain"
WORKLOADS = {
    "Deployment": "deployments.apps",
    "ReplicaSet": "replicasets.apps",
    "DaemonSet": "daemonsets.apps",
    "StatefulSet": "statefulsets.apps",
    "Job": "jobs.batch",
    "CronJob": "cronjobs.batch",
    "ReplicationController": "replicationcontrollers",
}
OURS: dict[str, Any] = {"name": "a", "image": "a"}
WORKER = f"system:serviceaccount:{SYSTEM}:compaction-worker"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[ControlPlane]:
    """An installation, and two tenants: mallory writes policies and catalogs, alice may read Secrets (`HERS`), too.

    The API server takes expressions as an older one does: a policy that needs more is refused with the installation.
    """
    command = control_plane._apiserver

    def older(*arguments: Any, **options: Any) -> list[str]:
        return [*command(*arguments, **options), f"--emulated-version={OLDEST}"]

    with (
        mock.patch.object(control_plane, "_apiserver", older),
        start_control_plane(tmp_path_factory.mktemp("tenants"), binaries) as running,
    ):
        plane = ControlPlane(running.kubeconfig, running.url, binaries, running)
        kubectl = plane.kubectl
        kubectl("apply", "--server-side", "-k", str(NAMESPACED))
        kubectl("wait", "--for=condition=Established", TIMEOUT_FLAG, "crd", "--all")
        kubectl("create", "namespace", PLAIN)
        kubectl("create", "role", "drivers", "--verb=create", "--resource=pods", namespace=PLAIN)
        bound = ("--role=drivers", f"--serviceaccount={PLAIN}:compaction-worker")
        kubectl(
            "create", "rolebinding", "drivers", *bound, f"--serviceaccount={PLAIN}:compaction-operator", namespace=PLAIN
        )
        workloads = ("--verb=create", f"--resource={','.join(WORKLOADS.values())}")
        kubectl("create", "role", "workloads", *workloads, namespace=PLAIN)
        kubectl("create", "rolebinding", "workloads", "--role=workloads", "--user=workloads", namespace=PLAIN)
        kubectl("create", "rolebinding", "deployer", "--role=workloads", "--user=deployer", namespace=PLAIN)
        own = ("--verb=impersonate", "--resource=serviceaccounts", "--resource-name=compaction-operator")
        kubectl("create", "role", "deployer", *own, namespace=PLAIN)
        kubectl("create", "rolebinding", "impersonator", "--role=deployer", "--user=deployer", namespace=PLAIN)
        for name in ("default", "compaction-executor"):
            # The part of the absent controller, without which no pod is made.
            kubectl("create", "serviceaccount", name, namespace=PLAIN)
        for user in ("mallory", "alice"):
            kubectl(
                "create", "rolebinding", user, "--clusterrole=compaction-editor", f"--user={user}", namespace=SYSTEM
            )
        hers = ("--verb=get", "--resource=secrets", *(f"--resource-name={name}" for name in HERS))
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


def catalog(secret: str) -> dict[str, Any]:
    participants = {"urls": [{"name": "a", "url": "https://mallory.example"}], "token": {"secretName": "hers"}}
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


def template(**spec: Any) -> dict[str, Any]:
    return policy({"podTemplate": {"spec": spec}})


def attempt(plane: ControlPlane, user: str, document: dict[str, Any], *, namespace: str = SYSTEM) -> str:
    """What the API server says to it; nothing when it would do it."""
    command = ("create", "--dry-run=server", f"--as={user}", "-f", "-")
    answer = plane.kubectl(*command, namespace=namespace, input=yaml.safe_dump(document), check=False)
    return "" if answer.returncode == 0 else answer.stderr


def drill(plane: ControlPlane) -> Result:
    command = ["tenants", "-n", SYSTEM, "--kubeconfig", str(plane.kubeconfig)]
    return CliRunner().invoke(group, command, standalone_mode=False)


def attempt_lease(plane: ControlPlane) -> str:
    """A worker takes the coordinator's Lease."""
    lease = yaml.safe_load(
        plane.kubectl("get", "lease", "compaction-coordinator", "-o", "yaml", namespace=SYSTEM).stdout
    )
    lease["spec"] = {"holderIdentity": "a-worker"}
    seize = ("replace", "--dry-run=server", f"--as={WORKER}", "-f", "-")
    return plane.kubectl(*seize, namespace=SYSTEM, input=yaml.safe_dump(lease), check=False).stderr


def attempt_hold(plane: ControlPlane, user: str = "") -> str:
    """A user, the administrator unless another is given, puts the operator on hold."""
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": HOLD_LEASE}}
    create = ("create", "--dry-run=server", *((f"--as={user}",) if user else ()), "-f", "-")
    return plane.kubectl(*create, namespace=SYSTEM, input=yaml.safe_dump(lease), check=False).stderr


@pytest.mark.parametrize("tried", ATTEMPTS, ids=lambda item: item.name)
def test_an_attempt_is_refused_and_says_what_is_wrong(plane: ControlPlane, tried: TenantAttempt) -> None:
    said = attempt(plane, "alice", tried.body)
    assert tried.says in said, said or "it was allowed"


def test_the_drill_makes_each_attempt_and_keeps_nothing(plane: ControlPlane) -> None:
    before = everything(plane)
    done = drill(plane)
    assert done.return_value == 0, done.output
    assert done.output.count("\nyes ") == len(ATTEMPTS) + len(OF_WORKERS) + 1
    assert "a tenant gains nothing" in done.output
    assert everything(plane) == before


@pytest.mark.parametrize("document", [blocks(), catalog("hers"), policy({"envFromSecrets": [{"name": "hers"}]})])
def test_who_may_read_a_secret_may_name_it_and_no_other(plane: ControlPlane, document: dict[str, Any]) -> None:
    assert attempt(plane, "alice", document) == ""
    assert "get each Secret that it names: hers" in attempt(plane, "mallory", document)


def test_a_policy_may_name_sixteen_secrets_each_of_which_its_writer_may_read(plane: ControlPlane) -> None:
    """An API server lets an expression ask for two, and all of them together for 28."""
    area: dict[str, Any] = {"repository": "lake", "credentialsSecretName": HERS[0]}
    area |= {"kv": {"secretName": HERS[1]}, "caBundle": {"secretName": HERS[2]}}
    env = [
        {"name": f"E{at}", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}} for at, name in enumerate(HERS)
    ]

    def naming(count: int, *more: str) -> dict[str, Any]:
        from_env = [*env[:count], *env[:count]] + [
            {"name": "MORE", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}} for name in more
        ]
        containers = [{"name": "worker", "env": from_env}]
        return policy({"podTemplate": {"spec": {"containers": containers}}}, store={"stagingArea": area})

    assert attempt(plane, "alice", naming(0)) == ""
    assert attempt(plane, "alice", naming(16)) == ""
    assert "may name 16 Secrets" in attempt(plane, "alice", naming(17))
    for count in (3, 15):
        assert "get each Secret that it names" in attempt(plane, "alice", naming(count, "theirs"))


@pytest.mark.parametrize(
    "document",
    [
        policy(),
        template(containers=[{"name": "worker", "env": [{"name": "TZ", "value": "UTC"}]}]),
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
    assert "compaction-hold are the operator's" in attempt_hold(plane, WORKER)
    assert attempt_hold(plane) == "", "who may is not held back"
    # Beyond admission only the absence of a node's account is in the way.
    for user, account in ((WORKER, "compaction-executor"), (operator, "compaction-worker")):
        assert attempt(plane, user, pod(account)) == ""


BEYOND: tuple[tuple[Object, str], ...] = (
    ({"hostNetwork": True}, "nothing of the node"),
    ({"hostPID": True}, "nothing of the node"),
    ({"hostIPC": True}, "nothing of the node"),
    ({"nodeName": "control-plane"}, "nothing of the node"),
    ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "nothing of the node"),
    ({"containers": [OURS | {"ports": [{"containerPort": 1, "hostPort": 1}]}]}, "nothing of the node"),
    ({"securityContext": {}}, "do not run as root"),
    ({"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}, "do not run as root"),
    ({"containers": [OURS | {"securityContext": {"allowPrivilegeEscalation": True}}]}, "do not run as root"),
    ({"initContainers": [OURS | {"name": "i", "securityContext": {"runAsUser": 0}}]}, "do not run as root"),
    ({"containers": [OURS | {"securityContext": {"runAsNonRoot": False}}]}, "do not run as root"),
    ({"containers": [OURS | {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}, "keep to the Baseline"),
    ({"containers": [OURS | {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}]}, "keep to the Baseline"),
)


@pytest.mark.parametrize(("members", "says"), BEYOND)
def test_accounts_of_ours_make_no_pod_beyond_the_baseline_where_nothing_else_refuses_it(
    plane: ControlPlane, members: dict[str, Any], says: str
) -> None:
    """A namespace without the labels of Pod Security: whose code runs in a driver has the driver's token."""
    driver = f"system:serviceaccount:{PLAIN}:compaction-worker"
    operator = f"system:serviceaccount:{PLAIN}:compaction-operator"
    usual = pod("compaction-executor")
    for user in (driver, operator):
        assert says in attempt(plane, user, {**usual, "spec": usual["spec"] | members}, namespace=PLAIN)
        assert attempt(plane, user, usual, namespace=PLAIN) == ""


def workload(kind: str, account: str) -> dict[str, Any]:
    labels = {"app": "a"}
    of_pod = pod(account)["spec"]
    ends = kind in {"Job", "CronJob"}
    template = {"metadata": {"labels": labels}, "spec": of_pod | ({"restartPolicy": "Never"} if ends else {})}
    spec: dict[str, Any] = {"template": template}
    if kind == "CronJob":
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
    elif kind == "ReplicationController":
        spec["selector"] = labels
    elif not ends:
        spec |= {"selector": {"matchLabels": labels}} | ({"serviceName": "a"} if kind == "StatefulSet" else {})
    group = WORKLOADS[kind].partition(".")[2]
    version = f"{group}/v1" if group else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "compaction-operator-x"}, "spec": spec}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_no_other_workload_runs_as_the_operator_unless_its_writer_may_impersonate_it(
    plane: ControlPlane, kind: str
) -> None:
    """Their pods are made by controllers, which may all have one name, and the policy for pods lets it through."""
    # The built-in roles `edit` and `admin` may.
    refused = "only who may impersonate compaction-operator"
    assert refused in attempt(plane, "workloads", workload(kind, "compaction-operator"), namespace=PLAIN)
    assert attempt(plane, "workloads", workload(kind, "default"), namespace=PLAIN) == ""
    assert attempt(plane, "deployer", workload(kind, "compaction-operator"), namespace=PLAIN) == ""


def test_a_worker_does_not_lead_where_the_lease_is_missing_either(plane: ControlPlane) -> None:
    lease = plane.kubectl("get", "lease", "compaction-coordinator", "-o", "yaml", namespace=SYSTEM).stdout
    plane.kubectl("delete", "lease", "compaction-coordinator", namespace=SYSTEM)
    assert "yes  a worker leads: refused" in drill(plane).output
    kept = yaml.safe_load(lease)
    del kept["metadata"]["resourceVersion"], kept["metadata"]["uid"]
    plane.kubectl("create", "-f", "-", namespace=SYSTEM, input=yaml.safe_dump(kept))


def test_the_drill_says_what_a_cluster_without_admission_gives(plane: ControlPlane) -> None:
    """Last of this file: the policies are gone after it."""
    plane.kubectl("delete", "validatingadmissionpolicybinding", "compaction-policies", "compaction-leases")
    eventually(lambda: attempt(plane, "mallory", policy({"launcher": "process"})) == "", "the policy to be gone")
    done = drill(plane)
    assert done.return_value == 1
    assert "NO   workers as the operator: expected 'workers may run as'; it was taken" in done.output
    assert "NO   a worker leads: expected 'a worker cannot lead'; it was taken" in done.output
    assert "A TENANT GAINS SOMETHING: apply manifests/admission" in done.output
