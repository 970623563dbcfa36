"""Installed on a real API server, twice, and taken away again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.crd.definitions import crd_objects
from compaction.api.names import (
    COMPONENT_COORDINATOR,
    COORDINATOR_LEASE,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    MANAGED_BY,
)
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import load_connection
from compaction.kube.errors import KindsNotServedError
from compaction.kube.replica import preflight
from compaction.leases.record import Lease, LeaseRecord
from compaction.local.programs.binaries import Binaries
from manifests.test_readme import commands_of, script_of
from support import pinned_modules
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.control_plane import (
    CLUSTER,
    MANIFESTS,
    NAMESPACED,
    ROOT,
    ControlPlane,
    everything,
    finish_deleted_namespaces,
    with_components,
)
from support.programs import needs

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

    kubectl("wait", "--for=condition=Established", TIMEOUT_FLAG, "crd/compactionpolicies.compaction.dev")
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
    an_operator_does_not_start_with_older_definitions(empty_plane)
    applied = kubectl(*APPLY, "-k", str(INSTALLATION))
    assert "Warning" not in applied.stderr
    eventually(lambda: preflight_of(empty_plane) is None, "the definitions of this version to be enough")
    difference = kubectl("diff", "--server-side", "-k", str(INSTALLATION), check=False)
    assert (difference.returncode, difference.stdout) == (0, "")
    assert_pods_are_admitted(empty_plane, deployment_of(rendered, INSTALLATION))
    kubectl("delete", "-k", str(INSTALLATION), TIMEOUT_FLAG)
    assert everything(empty_plane) == before
    kubectl("get", "pvc", "segment-logs", namespace="storage")
    a_lease_that_the_operator_made_is_no_obstacle(empty_plane)


def an_operator_does_not_start_with_older_definitions(plane: ControlPlane) -> None:
    """The API server would drop what it writes, and a run that was asked for once would begin again and again."""
    for crd in crd_objects():
        status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
        status["properties"].pop("lastHandledRunNow", None)
        plane.kubectl(*APPLY, "-f", "-", input=json.dumps(crd))
    said = "the definition of CompactionPolicy is older than this operator, and lacks status.lastHandledRunNow: "
    eventually(lambda: (preflight_of(plane) or "").startswith(said), said)


def preflight_of(plane: ControlPlane) -> str | None:
    """What keeps an operator of an administrator from starting."""

    async def checked() -> str | None:
        async with ApiClient(load_connection(plane.kubeconfig)) as client:
            try:
                await preflight.check(client, namespace=None, lease_namespace="storage")
            except KindsNotServedError as error:
                return str(error)
        return None

    return asyncio.run(checked())


def a_lease_that_the_operator_made_is_no_obstacle(plane: ControlPlane) -> None:
    """Somebody deleted it, and the next leader made another: field by field it agrees with the manifest."""
    labels = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_COORDINATOR}
    record = LeaseRecord("replica_1_abc", 15, 4)
    lease = Lease(name=COORDINATOR_LEASE, namespace="storage", record=record, labels=labels)
    plane.kubectl("create", "-f", "-", input=json.dumps(lease.body()))
    plane.kubectl(*APPLY, "-k", str(INSTALLATION))
    found = json.loads(plane.kubectl("get", "lease", COORDINATOR_LEASE, "-o", "json", namespace="storage").stdout)
    assert Lease.parse(found).record == record


COMPONENTS = ("networkpolicy", "grafana", "approval", "prometheus", "console")


@pytest.mark.apiserver
@needs("prometheus-operator")
def test_components_apply_and_leave_no_difference_and_each_example_is_accepted(
    empty_plane: ControlPlane, tmp_path: Path
) -> None:
    """With the definitions that the Prometheus Operator serves: a field that it does not know would be refused."""
    pinned_modules.define(empty_plane.kubectl)
    directory = with_components(tmp_path / "mine", NAMESPACED, *COMPONENTS)
    applied = empty_plane.kubectl(*APPLY, "-k", str(directory))
    assert "networkpolicy.networking.k8s.io/compaction-operator" in applied.stdout
    assert "podmonitor.monitoring.coreos.com/compaction-operator" in applied.stdout
    assert "prometheusrule.monitoring.coreos.com/compaction-operator" in applied.stdout
    assert "Warning" not in applied.stderr
    difference = empty_plane.kubectl("diff", "--server-side", "-k", str(directory), check=False)
    assert (difference.returncode, difference.stdout) == (0, "")
    console = json.loads(
        empty_plane.kubectl("get", "deploy", "compaction-console", "-o", "json", namespace=SYSTEM).stdout
    )
    template = console["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "tried"}}
    created = empty_plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod), namespace=SYSTEM)
    assert created.stderr == "", "restricted, and no warning"
    for file, right, wrong in (("pod-monitor", "honorLabels:", "honourLabels:"), ("rules", "annotations:", "notes:")):
        text = (MANIFESTS / "components" / "prometheus" / f"{file}.yaml").read_text().replace(right, wrong)
        refused = empty_plane.kubectl(*APPLY, "-f", "-", input=text, namespace="default", check=False)
        assert refused.returncode != 0
        assert wrong.rstrip(":") in refused.stderr, "the check is worth something"
    each_example_is_accepted(empty_plane)


def each_example_is_accepted(plane: ControlPlane) -> None:
    kubectl = plane.kubectl
    kubectl("wait", "--for=condition=Established", TIMEOUT_FLAG, "-f", str(MANIFESTS.parent / "crds"))
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
