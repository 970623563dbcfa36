"""Installed on a real API server, twice, and taken away again."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
from compaction.local.cluster.control_plane import AdminAnswer
from compaction.local.programs.binaries import Binaries
from manifests.test_readme import commands_of, script_of
from support import pinned_modules
from support.clocks import eventually
from support.cluster.control_plane import CLUSTER, MANIFESTS, NAMESPACED, ROOT, ControlPlane, with_components
from support.programs import needs

# Everything that exists on an API server, and the part of the absent namespace controller.

#: Where the API server itself writes all the time, and what.
SERVERS_NAMESPACES = frozenset({"kube-system", "default"})
SERVERS_BUSINESS = frozenset({"events", "leases", "ipaddresses", "endpointslices", "endpoints", "apiservices"})


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource as discovery names it; `prefix` is the path of its group and version."""

    prefix: str
    plural: str
    namespaced: bool
    verbs: frozenset[str]


def kinds(plane: ControlPlane) -> list[Kind]:
    """All that is served, in each group's preferred version."""
    groups = plane.admin.request("GET", "/apis").json()["groups"]
    prefixes = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    found: list[Kind] = []
    for prefix in prefixes:
        answer = plane.admin.request("GET", prefix)
        resources = answer.json()["resources"] if answer.ok else []
        found += [
            Kind(prefix, resource["name"], resource["namespaced"], frozenset(resource["verbs"]))
            for resource in resources
            if "/" not in resource["name"]
        ]
    return found


def everything(plane: ControlPlane) -> set[str]:
    """`group/version/plural/namespace/name` of each object that can be listed, but for the server's own business."""
    found: set[str] = set()
    for kind in kinds(plane):
        if "list" not in kind.verbs:
            continue
        listed = eventually(partial(_listed, plane, kind), f"{kind.plural} to be served")
        for item in listed.json()["items"] if listed is not None and listed.ok else []:
            namespace = item["metadata"].get("namespace", "")
            if kind.plural not in SERVERS_BUSINESS or namespace not in SERVERS_NAMESPACES | {""}:
                found.add(f"{kind.prefix}/{kind.plural}/{namespace}/{item['metadata']['name']}")
    return found


def _listed(plane: ControlPlane, kind: Kind) -> AdminAnswer | None:
    listed = plane.admin.request("GET", f"{kind.prefix}/{kind.plural}")
    if listed.status == 429:  # a definition that has just come is not ready yet
        return None
    assert listed.ok or listed.status == 404, listed.text  # one that has just gone is still in the discovery
    return listed


def finish_deleted_namespaces(plane: ControlPlane, *names: str) -> None:
    """Do what the namespace controller does with namespaces that are being deleted: empty them, then let them go."""
    for name in names:
        for kind in kinds(plane):
            if kind.namespaced and "deletecollection" in kind.verbs:
                emptied = plane.admin.request("DELETE", f"{kind.prefix}/namespaces/{name}/{kind.plural}")
                assert emptied.ok or emptied.status == 404, emptied.text
        namespace = plane.admin.request("GET", f"/api/v1/namespaces/{name}")
        assert namespace.ok, namespace.text
        document = namespace.json()
        assert document["status"]["phase"] == "Terminating", document
        final = plane.admin.request(
            "PUT", f"/api/v1/namespaces/{name}/finalize", document | {"spec": {"finalizers": []}}
        )
        assert final.ok, final.text


Object = dict[str, Any]
Rendered = Callable[[Path], list[Object]]
OVERLAYS = [NAMESPACED, CLUSTER]
APPLY = ("apply", "--server-side", "--validate=strict")
FURTHER = MANIFESTS / "examples" / "namespace"
INSTALLATION = MANIFESTS / "examples" / "installation"
SYSTEM = "compaction-system"


@pytest.mark.apiserver
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


@pytest.mark.apiserver
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


@pytest.mark.apiserver
@needs("prometheus-operator")
def test_components_apply_and_leave_no_difference_and_each_example_is_accepted(
    empty_plane: ControlPlane, tmp_path: Path
) -> None:
    """With the definitions that the Prometheus Operator serves: a field that it does not know would be refused."""
    pinned_modules.define(empty_plane.kubectl)
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


# docs/install.md, followed word by word on a real API server. What needs a kubelet is for a node (tests/node).

PAGE = ROOT / "docs" / "install.md"
COMMANDS = commands_of(PAGE)
#: These wait for pods to run, or build what runs in them.
OF_A_NODE = {("rollout", "status"), ("wait",), ("images",)}
COPY = script_of(PAGE, "cp -r")
EXAMPLES = sorted(path.parent.name for path in (MANIFESTS / "examples").glob("*/kustomization.yaml"))


def needs_a_node(command: list[str]) -> bool:
    return any(tuple(command[1 : 1 + len(words)]) == words for words in OF_A_NODE)


def test_the_page_says_what_it_is_about() -> None:
    programs = {command[0] for command in COMMANDS}
    assert programs == {"make", "kubectl"}
    assert sum(not needs_a_node(command) for command in COMMANDS) >= 10


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_that_is_copied_as_the_page_says_builds_in_another_repository(
    rendered: Callable[[Path], list[dict[str, Any]]], binaries: Binaries, tmp_path: Path, example: str
) -> None:
    script, replaced = re.subn(r"\binstallation\b", example, COPY)
    assert replaced >= 2
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").symlink_to(binaries.kubectl)
    environment = os.environ | {"REPOSITORY": str(tmp_path / "fleet"), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    def run(text: str) -> None:
        answer = subprocess.run(
            ["sh", "-ec", text], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr

    run(script)
    copy = tmp_path / "fleet" / "compaction"
    copied = [path.parent for path in copy.rglob("kustomization.yaml")]
    (own,) = [path for path in copied if not (ROOT / path.relative_to(copy)).exists()]
    assert rendered(own) == rendered(MANIFESTS / "examples" / example)
    # The next release replaces what is ours and leaves alone what is theirs.
    (own / "kustomization.yaml").write_text((own / "kustomization.yaml").read_text() + "# theirs\n")
    run(script.splitlines()[1])
    assert (own / "kustomization.yaml").read_text().endswith("# theirs\n")


@pytest.mark.apiserver
def test_every_command_of_the_page_works(empty_plane: ControlPlane) -> None:
    before = everything(empty_plane)
    done: list[str] = []
    for command in COMMANDS:
        if needs_a_node(command):
            continue
        program, *arguments = command
        assert program == "kubectl"
        if arguments[0] == "delete" and "--ignore-not-found" in arguments:
            arguments.append("--wait=false")  # there is no controller that lets the namespace go
        answer = subprocess.run(
            [str(empty_plane.binaries.kubectl), f"--kubeconfig={empty_plane.kubeconfig}", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, f"{' '.join(command)}\nafter {done}\n{answer.stderr}"
        assert "Warning" not in answer.stderr, answer.stderr
        done.append(" ".join(command))
    finish_deleted_namespaces(empty_plane, "compaction-system")
    left = {
        item for item in everything(empty_plane) - before if "/storage/" not in item and not item.endswith("/storage")
    }
    assert left == set(), "what is left is the namespace of the logs, with its volume"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "runbooks").glob("*.md")), ids=lambda page: page.stem)
def test_runbooks_name_commands_and_pages_that_exist(page: Path) -> None:
    for command in commands_of(page):
        assert command[0] in {"kubectl", "compactor"}, command
    for target in _links(page.read_text()):
        path = target.partition("#")[0]
        assert not path or (page.parent / path).exists(), target


def _links(text: str) -> list[str]:
    return [part.partition(")")[0] for part in text.split("](")[1:]]
