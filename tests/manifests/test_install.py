"""Installed on a real API server, twice, and taken away again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.names import (
    COMPONENT_COORDINATOR,
    COORDINATOR_LEASE,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    MANAGED_BY,
)
from compaction.leases.record import Lease, LeaseRecord
from manifests.leftovers import everything, finish_deleted_namespaces
from support.cluster import prometheus_operator
from support.cluster.control_plane import ControlPlane
from support.cluster.rendered import CLUSTER, MANIFESTS, NAMESPACED, with_components
from support.programs import needs

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]
Rendered = Callable[[Path], list[Object]]
OVERLAYS = [NAMESPACED, CLUSTER]
APPLY = ("apply", "--server-side", "--validate=strict")
FURTHER = MANIFESTS / "examples" / "namespace"
INSTALLATION = MANIFESTS / "examples" / "installation"
SYSTEM = "compaction-system"


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_applied_twice_there_is_no_difference_and_deleted_nothing_is_left(
    empty_plane: ControlPlane, rendered: Rendered, overlay: Path
) -> None:
    kubectl = empty_plane.kubectl
    kubectl("create", "namespace", "storage")
    before = everything(empty_plane)
    for directory in (overlay, FURTHER):
        first = kubectl(*APPLY, "-k", str(directory))
        assert "Warning" not in first.stderr
        again = kubectl(*APPLY, "-k", str(directory))
        assert all(line.endswith("serverside-applied") for line in again.stdout.splitlines())
        difference = kubectl("diff", "--server-side", "-k", str(directory), check=False)
        assert (difference.returncode, difference.stdout) == (0, "")
    assert everything(empty_plane) - before
    assert_pods_are_admitted(empty_plane, deployment_of(rendered, overlay))

    kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/compactionpolicies.compaction.dev")
    kubectl("apply", "-f", str(MANIFESTS / "examples" / "policy.yaml"), namespace=SYSTEM)
    for directory in (FURTHER, overlay):
        kubectl("delete", "--wait=false", "-k", str(directory))
    finish_deleted_namespaces(empty_plane, SYSTEM)
    assert everything(empty_plane) - before == set()


def assert_pods_are_admitted(plane: ControlPlane, deployment: Object) -> None:
    """Where `restricted` is enforced, without a warning."""
    kubectl = plane.kubectl
    template, namespace = deployment["spec"]["template"], deployment["metadata"]["namespace"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "tried"}}
    create = ("create", "--dry-run=server", "--validate=strict", "-f", "-")

    admitted = kubectl(*create, input=json.dumps(pod), namespace=namespace)
    assert admitted.stderr == "", "no warning"

    # The check is worth something: the same pod as root is refused there.
    pod["spec"] = {**pod["spec"], "securityContext": {}}
    refused = kubectl(*create, input=json.dumps(pod), namespace=namespace, check=False)
    assert 'violates PodSecurity "restricted:latest"' in refused.stderr


def deployment_of(rendered: Rendered, directory: Path) -> Object:
    (deployment,) = (found for found in rendered(directory) if found["kind"] == "Deployment")
    return deployment


def test_an_installation_beside_the_logs_goes_and_leaves_them_and_comes_back(
    empty_plane: ControlPlane, rendered: Rendered
) -> None:
    kubectl = empty_plane.kubectl
    kubectl(*APPLY, "-f", str(INSTALLATION / "storage.yaml"))
    before = everything(empty_plane)
    applied = kubectl(*APPLY, "-k", str(INSTALLATION))
    assert "Warning" not in applied.stderr
    difference = kubectl("diff", "--server-side", "-k", str(INSTALLATION), check=False)
    assert (difference.returncode, difference.stdout) == (0, "")
    assert_pods_are_admitted(empty_plane, deployment_of(rendered, INSTALLATION))
    kubectl("delete", "-k", str(INSTALLATION), "--timeout=60s")
    assert everything(empty_plane) == before
    kubectl("get", "pvc", "segment-logs", namespace="storage")
    a_lease_that_the_operator_made_is_no_obstacle(empty_plane)


def a_lease_that_the_operator_made_is_no_obstacle(plane: ControlPlane) -> None:
    """Somebody deleted it, and the next leader made another: field by field it agrees with the manifest."""
    labels = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_COORDINATOR}
    record = LeaseRecord("replica_1_abc", 15, 4)
    lease = Lease(name=COORDINATOR_LEASE, namespace="storage", record=record, labels=labels)
    plane.kubectl("create", "-f", "-", input=json.dumps(lease.body()))
    plane.kubectl(*APPLY, "-k", str(INSTALLATION))
    found = json.loads(plane.kubectl("get", "lease", COORDINATOR_LEASE, "-o", "json", namespace="storage").stdout)
    assert Lease.parse(found).record == record


@needs("prometheus-operator")
def test_components_apply_and_leave_no_difference_and_each_example_is_accepted(
    empty_plane: ControlPlane, tmp_path: Path
) -> None:
    """With the definitions that the Prometheus Operator serves: a field that it does not know would be refused."""
    prometheus_operator.define(empty_plane.kubectl)
    directory = with_components(tmp_path / "mine", NAMESPACED, "networkpolicy", "grafana", "approval", "prometheus")
    applied = empty_plane.kubectl(*APPLY, "-k", str(directory))
    assert "networkpolicy.networking.k8s.io/compaction-operator" in applied.stdout
    assert "podmonitor.monitoring.coreos.com/compaction-operator" in applied.stdout
    assert "prometheusrule.monitoring.coreos.com/compaction-operator" in applied.stdout
    assert "Warning" not in applied.stderr
    difference = empty_plane.kubectl("diff", "--server-side", "-k", str(directory), check=False)
    assert (difference.returncode, difference.stdout) == (0, "")
    for file, right, wrong in (("pod-monitor", "honorLabels:", "honourLabels:"), ("rules", "annotations:", "notes:")):
        text = (MANIFESTS / "components" / "prometheus" / f"{file}.yaml").read_text().replace(right, wrong)
        refused = empty_plane.kubectl(*APPLY, "-f", "-", input=text, namespace="default", check=False)
        assert refused.returncode != 0
        assert wrong.rstrip(":") in refused.stderr, "the check is worth something"
    each_example_is_accepted(empty_plane)


def each_example_is_accepted(plane: ControlPlane) -> None:
    kubectl = plane.kubectl
    kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(MANIFESTS.parent / "crds"))
    examples = sorted((MANIFESTS / "examples").glob("*.yaml"))
    kinds = {document["kind"] for path in examples for document in yaml.safe_load_all(path.read_text())}
    assert {"CompactionPolicy", "CompactionJob"} <= kinds
    for example in examples:
        accepted = kubectl(*APPLY, "-f", str(example), namespace="default")
        assert accepted.stderr == "", example.name
