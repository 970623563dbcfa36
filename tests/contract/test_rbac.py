"""The roles in manifests/base: the operator may do what it needs, and nothing it does not use."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.kube.client.transport import PODS
from compaction.kube.launchers.objects import VERBS
from compaction.kube.replica.preflight import needed_permissions
from support.clocks import eventually
from support.cluster.control_plane import ControlPlane
from support.cluster.manifests import policy_object

RBAC = Path(__file__).resolve().parents[2] / "manifests" / "rbac" / "roles.yaml"
ACCOUNT = "operator-of-the-test"


def granted(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of every rule."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def allowed(control_plane: ControlPlane, user: str, verb: str, resource: str, namespace: str) -> bool:
    """What the API server's authorizer says of a user who is named and need not ask: `kubectl auth can-i --as`.

    `resource`: jobs.batch/status, say. A role that was bound just now is known to the authorizer a moment later.
    """
    name, _, subresource = resource.partition("/")
    plural, _, group = name.partition(".")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    answer = control_plane.admin.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer.ok, answer.text
    return bool(answer.json()["status"]["allowed"])


def test_the_operator_is_granted_what_it_checks_for_at_its_start() -> None:
    operator = next(yaml.safe_load_all(RBAC.read_text()))
    needed = {
        (
            permission.resource.group,
            f"{permission.resource.plural}/{permission.subresource}".rstrip("/"),
            permission.verb,
        )
        for permission in needed_permissions(namespace=None, lease_namespace="operators")
    }
    pods = {(PODS.group, PODS.plural, verb) for verb in VERBS}
    assert granted(operator) == needed | pods


@pytest.mark.apiserver
def test_an_account_with_the_role_can_and_cannot(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl
    kubectl("apply", "-f", str(RBAC))
    kubectl(
        "create",
        "rolebinding",
        "operator",
        "--clusterrole=compaction-operator",
        f"--user={ACCOUNT}",
        namespace=namespace,
    )

    def can(verb: str, resource: str, *, where: str = namespace) -> bool:
        return allowed(control_plane, ACCOUNT, verb, resource, where)

    for permission in needed_permissions(namespace=namespace, lease_namespace=namespace):
        kind = ".".join(filter(None, (permission.resource.plural, permission.resource.group)))
        wanted = f"{kind}/{permission.subresource}".rstrip("/")
        eventually(partial(can, permission.verb, wanted), str(permission), pause=0.05)
    assert not can("patch", "compactionpolicies.compaction.dev"), "specs belong to their users"
    assert not can("delete", "compactionpolicies.compaction.dev")
    assert not can("get", "secrets")
    assert not can("list", "compactionjobs.compaction.dev", where="default")


@pytest.mark.apiserver
def test_an_editor_writes_specs_and_no_status(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl
    kubectl("apply", "-f", str(RBAC))
    kubectl("create", "rolebinding", "editor", "--clusterrole=compaction-editor", "--user=editor", namespace=namespace)
    kubectl("create", "--as=editor", "-f", "-", input=json.dumps(policy_object()), namespace=namespace)
    patch = ("patch", "cpol/logs", "--as=editor", "--type=merge", "--subresource=status", "-p", '{"status":{}}')
    refused = kubectl(*patch, namespace=namespace, check=False)
    assert "Forbidden" in refused.stderr


@pytest.mark.apiserver
def test_the_roles_of_people(control_plane: ControlPlane, namespace: str) -> None:
    """One line each: who may do what to policies and jobs."""
    kubectl = control_plane.kubectl
    kubectl("apply", "-f", str(RBAC))
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "approve")
    expected = {
        "compaction-viewer": {"get", "list", "watch"},
        "compaction-approver": {"get", "list", "watch", "patch", "approve"},
        "compaction-editor": {"get", "list", "watch", "create", "update", "patch", "delete"},
    }

    def can(role: str, verb: str) -> bool:
        return allowed(control_plane, role, verb, "compactionpolicies.compaction.dev", namespace)

    for role, may in expected.items():
        kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}", namespace=namespace)
        eventually(partial(can, role, "get"), f"the binding of {role}", pause=0.05)
        assert {verb for verb in verbs if can(role, verb)} == may, role
    labels = {role["metadata"]["name"]: role["metadata"]["labels"] for role in yaml.safe_load_all(RBAC.read_text())}
    aggregated = {
        name: {key.rpartition("-to-")[2] for key in found if "aggregate-to" in key} for name, found in labels.items()
    }
    assert aggregated == {
        "compaction-operator": set(),
        "compaction-viewer": {"view"},
        "compaction-editor": {"edit", "admin"},
        "compaction-approver": {"admin"},
        "compaction-holder": set(),
    }
