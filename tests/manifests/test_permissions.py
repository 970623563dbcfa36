"""The manifests grant what the operator and its workers really use, by the API server's audit log: not less (they run
with it), and not more.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from compaction.local.cluster.certs import ensure_authority
from compaction.local.cluster.control_plane import start_control_plane
from compaction.local.programs.binaries import Binaries
from manifests.test_alerts import queries
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.by_kubectl import Cluster, LogRoot, files_below, objects_of, write_secret
from support.cluster.control_plane import (
    CLUSTER,
    MANIFESTS,
    NAMESPACED,
    ControlPlane,
    Use,
    account,
    documents,
    granted,
    roles_of,
    uses,
    with_components,
)
from support.cluster.explained import KStatus, kstatus
from support.cluster.manifests import block_policy_object
from support.cluster.orders import catalog_object
from support.processes.operators import OperatorFleet, OperatorProcess
from tools.shipped.files import render

pytestmark = pytest.mark.apiserver

Rendered = Callable[[Path], list[dict[str, Any]]]
SYSTEM, ELSEWHERE = "compaction-system", "storage"
OPERATOR, WORKER, EXECUTOR = "compaction-operator", "compaction-worker", "compaction-executor"
IN_PODS = "in-pods"
WITHOUT = "ValidatingAdmissionPolicyBinding", "compaction-policies"
GROUP, LEASES = "/apis/compaction.dev/v1alpha1", "/apis/coordination.k8s.io/v1"

WATCHED = (
    (GROUP, "compactionpolicies"),
    (GROUP, "compactionjobs"),
    (GROUP, "catalogcompactions"),
    (LEASES, "leases"),
)
BEYOND: dict[str, dict[str, str]] = {
    OPERATOR: {},
    WORKER: {
        "pods": "executors are made where a kubelet runs them: tests/node",
    },
}
"""What this run cannot reach, by account and resource, and where it is reached."""


@contextmanager
def installed(directory: Path, binaries: Binaries, *kustomizations: Path) -> Iterator[ControlPlane]:
    """The manifests, applied to an API server that writes down who does what.

    But for one binding: replicas are processes here, and so may their workers be. Deleted afterwards, it would be in
    force for a moment.
    """
    with start_control_plane(directory, binaries, audit=True) as running:
        plane = ControlPlane(running.kubeconfig, running.url, binaries, running)
        plane.kubectl("create", "namespace", ELSEWHERE)
        for kustomization in kustomizations:
            objects = documents(render(binaries.kubectl, kustomization))
            applied = [item for item in objects if (item["kind"], item["metadata"]["name"]) != WITHOUT]
            plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(applied))
        plane.kubectl("wait", "--for=condition=Established", TIMEOUT_FLAG, "crd", "--all")
        yield plane


@contextmanager
def fleet_of(
    plane: ControlPlane, directory: Path, *, workers_in: str = SYSTEM, **options: Any
) -> Iterator[OperatorFleet]:
    """Replicas and workers that are, to the API server, the service accounts of the manifests."""
    directory.mkdir()

    def kubeconfig(name: str, namespace: str) -> Path:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        path = directory / f"{name}.kubeconfig"
        return plane.running.kubeconfig_for(account(namespace, name), path, groups=groups, namespace=namespace)

    fleet = OperatorFleet(
        kubeconfig=kubeconfig(OPERATOR, SYSTEM),
        worker_kubeconfig=kubeconfig(WORKER, workers_in),
        namespace=SYSTEM,
        directory=directory,
        light=("--task-seconds", "0.7"),
        **options,
    )
    try:
        yield fleet
    finally:
        fleet.close()


@contextmanager
def meddling(plane: ControlPlane) -> Iterator[None]:
    """Somebody annotates everything all the time, so that guarded writes meet other versions, and takes the Lease of a
    running job away now and then.
    """
    ending = threading.Event()

    def meddle() -> None:
        dice = random.Random(1)
        for turn in range(1_000_000):
            began = time.monotonic()
            for group, plural in WATCHED:
                path = f"{group}/namespaces/{SYSTEM}/{plural}"
                for item in plane.admin.request("GET", path).json()["items"]:
                    labels = item["metadata"].get("labels") or {}
                    name = item["metadata"]["name"]
                    patch = {"metadata": {"annotations": {"meddled": str(turn)}}}
                    plane.admin.request("PATCH", f"{path}/{name}", patch, content_type="application/merge-patch+json")
                    if labels.get("compaction.dev/component") == "job" and dice.random() < 0.05:
                        plane.admin.request("DELETE", f"{path}/{name}")
            # Beside a load a turn takes long: without a rest of that length no write would ever meet its own version.
            if ending.wait(max(0.05, 2 * (time.monotonic() - began))):
                return

    thread = threading.Thread(target=meddle, name="meddler")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def pods_come_and_go(cluster: Cluster, done: frozenset[Use]) -> None:
    """No kubelet starts the driver pods here. One is taken away by hand, the next one goes with its policy."""
    if not cluster.list("pod"):
        return
    if Use("", "pods", "get") not in done:
        cluster.kubectl("delete", "pods", "--all")
    elif Use("", "pods", "delete") not in done:
        cluster.kubectl("delete", "cpol", IN_PODS, "--ignore-not-found")


def test_what_is_granted_is_what_is_used(tmp_path: Path, binaries: Binaries, rendered: Rendered) -> None:
    with (
        installed(tmp_path / "plane", binaries, NAMESPACED) as plane,
        fleet_of(plane, tmp_path / "operator") as fleet,
    ):
        use_everything(plane, fleet, tmp_path, rendered(NAMESPACED))


def use_everything(plane: ControlPlane, fleet: OperatorFleet, tmp_path: Path, objects: list[dict[str, Any]]) -> None:
    """Let the operator meet all that makes it do something, until it has used every permission; then compare."""
    log = plane.running.audit_log
    cluster = Cluster(plane, SYSTEM)
    logs = LogRoot(tmp_path / "ra", {})
    logs.path.mkdir()

    def missing(name: str) -> list[str]:
        allowed = granted(roles_of(objects, name))
        return sorted(str(use) for use in allowed - uses(log, account(SYSTEM, name))[0] if not _beyond(name, use))

    fleet.start()
    fleet.start()
    made = 0

    def work_goes_on() -> bool:
        """Make a new log whenever there is nothing left to do, until every verb was used."""
        nonlocal made
        pods_come_and_go(cluster, uses(log, account(SYSTEM, OPERATOR))[0])
        if not missing(OPERATOR) and not missing(WORKER):
            return True
        mine = [job for job in cluster.jobs() if job["spec"]["policyRef"]["name"] == "logs"]
        if not [job for job in mine if job.get("status", {}).get("state") not in {"Succeeded", "Faulty"}]:
            logs.add(f"log-{made}", entries_per_segment=64, payload_bytes=64, segments=13)
            made += 1
        return False

    work_goes_on()
    cluster.apply_policy(
        logs.path,
        workers={"max": 1, "slots": 2, "idleSeconds": 2, "launcher": "process"},
        limits={"maxAttempts": 20},
        successfulJobsHistoryLimit=0,
    )
    cluster.apply_policy(
        logs.path / "elsewhere",
        name=IN_PODS,
        store={"segmentLogs": {"root": str(tmp_path / "elsewhere"), "volume": {"claimName": "segment-logs"}}},
        workers={"launcher": "pod", "image": "compaction-worker:0.1.0"},
    )
    LogRoot(tmp_path / "elsewhere", {}).add("log", entries_per_segment=64, payload_bytes=64, segments=13)
    document = catalog_object(
        catalog={"endpoints": ["http://127.0.0.1:1"]},
        participants=None,
        topology={"minParticipants": 0},
        interval="100ms",
        timeouts={"log": "100ms"},
    )
    cluster.kubectl("apply", "-f", "-", input=json.dumps(document))
    with meddling(plane):
        try:
            eventually(work_goes_on, "every permission to be used", pause=1.0)
        except AssertionError as error:
            raise AssertionError(f"{error}; unused: {missing(OPERATOR)}, {missing(WORKER)}") from None
    cluster.kubectl("delete", "cpol", "--all")
    eventually(lambda: not fleet.running_workers(), "the policy's workers to end")
    logs.assert_unchanged()

    difference = plane.kubectl("diff", "--server-side", "-k", str(NAMESPACED), check=False)
    changed = [line.split()[0] for line in difference.stdout.splitlines() if line.startswith("+++ ")]
    assert len(changed) == 1, "what runs leaves what was applied as it is, but for the binding that we left out"
    assert "..".join(WITHOUT) in difference.stdout
    for name in (OPERATOR, WORKER):
        done, refused = uses(log, account(SYSTEM, name))
        assert refused == frozenset(), name
        assert done <= granted(roles_of(objects, name)), name
        assert missing(name) == []
    assert uses(log, account(SYSTEM, EXECUTOR))[0] == frozenset()
    assert roles_of(objects, EXECUTOR) == []


def test_one_operator_for_all_namespaces(tmp_path: Path, binaries: Binaries) -> None:
    """overlays/cluster: a policy in another namespace, whose workers have the accounts of examples/namespace."""
    further = MANIFESTS / "examples" / "namespace"
    with (
        installed(tmp_path / "plane", binaries, CLUSTER, further) as plane,
        fleet_of(plane, tmp_path / "operator", workers_in=ELSEWHERE, all_namespaces=True) as fleet,
    ):
        logs = LogRoot(tmp_path / "ra", {})
        logs.path.mkdir()
        logs.add("log", entries_per_segment=64, payload_bytes=64)
        cluster = Cluster(plane, ELSEWHERE)
        cluster.apply_policy(logs.path, workers={"max": 1, "idleSeconds": 2, "launcher": "process"})
        assert kstatus(cluster.policy()) is KStatus.IN_PROGRESS, "nobody has looked at it yet"
        replica = fleet.start()
        cluster.await_all_succeeded()
        assert {kstatus(job) for job in cluster.jobs()} == {KStatus.CURRENT}
        eventually(lambda: kstatus(cluster.policy()) is KStatus.CURRENT, "the policy to have nothing to do")
        assert asked_by_the_dashboard() <= exported_by(replica)
        cluster.kubectl("delete", "cpol", "--all")
        eventually(lambda: not cluster.jobs() + cluster.leases("worker"), "jobs and worker Leases to be deleted")
        logs.assert_unchanged()
        for name, namespace in ((OPERATOR, SYSTEM), (WORKER, ELSEWHERE)):
            done, refused = uses(plane.running.audit_log, account(namespace, name))
            assert done
            assert refused == frozenset(), name


def asked_by_the_dashboard() -> set[str]:
    words = {word for query in queries() for word in re.findall(r"[\w:]+", query)}
    return {
        word for word in words if word.startswith(("compaction_", "workqueue_", "rest_client_", "leader_election_"))
    }


def exported_by(replica: OperatorProcess) -> set[str]:
    """The names of all samples that its /metrics has or may have: some appear with what they are about."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{replica.metrics_port}/metrics").read().decode()
    endings = ("", "_total", "_bucket", "_sum", "_count")
    return {family.name + ending for family in text_string_to_metric_families(text) for ending in endings}


def _beyond(name: str, use: Use) -> bool:
    return use.resource in BEYOND[name]


# What a block store needs of the API server beside all else, by its audit log: its Secrets, by name, with get.

VALUE = "s3cr3t-value-that-nobody-may-see"
READS = Use("", "secrets", "get")
READS_AUTHORITIES = Use("", "configmaps", "get")


def ready(cluster: Cluster, policy: str) -> tuple[str, str]:
    """Reason and message of the condition Ready."""
    conditions = cluster.policy(policy).get("status", {}).get("conditions", ())
    return next(
        ((condition["reason"], condition["message"]) for condition in conditions if condition["type"] == "Ready"),
        ("", ""),
    )


def await_reason(cluster: Cluster, policy: str, *reasons: str) -> str:
    """The message that goes with one of the reasons."""

    def found() -> str | None:
        reason, message = ready(cluster, policy)
        return message if reason in reasons else None

    return eventually(found, f"policy {policy} to be {' or '.join(reasons)}", pause=0.2)


def test_a_block_store_is_looked_at_with_its_secrets_and_no_other_permission(
    tmp_path: Path, binaries: Binaries, rendered: Rendered
) -> None:
    mine = with_components(tmp_path / "mine", NAMESPACED, "block-stores")
    with (
        installed(tmp_path / "plane", binaries, NAMESPACED) as plane,
        fleet_of(plane, tmp_path / "operator") as fleet,
    ):
        cluster = Cluster(plane, SYSTEM)
        log = plane.running.audit_log
        make_policies(cluster, tmp_path)
        replica = fleet.start()

        said = await_reason(cluster, "lake", "PermissionDenied")
        assert f"may not get secrets in namespace {SYSTEM}" in said
        assert "manifests/components/block-stores" in said
        assert "cannot be looked after" in replica.output, "said at the start as well"
        assert uses(log, account(SYSTEM, OPERATOR))[1] == {READS}

        plane.kubectl("apply", "--server-side", "-k", str(mine))
        said = await_reason(cluster, "lake", "SecretMissing")
        assert 'Secret "lake-index" not found in namespace' in said
        write_secret(cluster, "lake-index", {"dsn": "x"})
        assert "key url of Secret lake-index" in eventually(
            lambda: ready(cluster, "lake")[1] if "key url" in ready(cluster, "lake")[1] else None, "the key to be named"
        )
        write_secret(cluster, "lake-index", {"url": f"sqlite:///{tmp_path}/index.db"})
        await_reason(cluster, "lake", "Scheduled", "NoBlocksFound", "NoLogsFound")
        assert (tmp_path / "index.db").exists()

        done, _ = uses(log, account(SYSTEM, OPERATOR))
        objects = rendered(mine)
        assert {use for use in done if use.resource.startswith(("secrets", "configmaps"))} == {READS, READS_AUTHORITIES}
        assert done <= granted(roles_of(objects, OPERATOR))
        more = granted(roles_of(objects, OPERATOR)) - granted(roles_of(rendered(NAMESPACED), OPERATOR))
        assert more == {READS, READS_AUTHORITIES}, "what the component adds is what is used"

        await_reason(cluster, "remote", "StoreUnreachable", "SenseFailed")
        assert VALUE not in objects_of(cluster) + replica.output
        assert VALUE.encode() not in files_below(fleet.state_dir)


def make_policies(cluster: Cluster, tmp_path: Path) -> None:
    """One of a folder, whose index Secret is missing, and one of a server that is not there, with secrets to tell."""
    authorities = ensure_authority(tmp_path / "authority").ca.read_text()
    cluster.kubectl("create", "configmap", "authorities", f"--from-literal=ca.crt={authorities}")
    stores: dict[str, dict[str, Any]] = {
        "lake": {"url": f"file://{tmp_path}/lake", "index": {"secretName": "lake-index"}},
        "remote": {
            "url": "s3://bucket/blocks",
            "credentialsSecretName": "remote-credentials",
            "caBundle": {"configMapName": "authorities"},
            "index": {"secretName": "remote-index", "key": "dsn"},
        },
    }
    options = {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "region": "us-east-1"}
    write_secret(cluster, "remote-credentials", options | {"access_key_id": VALUE, "secret_access_key": VALUE})
    write_secret(cluster, "remote-index", {"dsn": f"postgresql://user:{VALUE}@127.0.0.1:9/index"})
    for name, store in stores.items():
        cluster.apply(block_policy_object(name, store={"blockStore": store}, trigger={"interval": "2s"}))
