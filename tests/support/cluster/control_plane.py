"""A control plane as tests see it: its kubeconfig, its administrator, and the real kubectl."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.local.cluster.control_plane import AdminClient, RunningControlPlane, start_control_plane
from compaction.local.programs.binaries import Binaries
from support.clocks import eventually

DEFINITIONS = Path(__file__).resolve().parents[3] / "crds"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A real API server. `running` has the rest: `kubeconfig_for(user, path)`, `anonymous`, `audit_log`."""

    kubeconfig: Path
    url: str
    binaries: Binaries
    running: RunningControlPlane

    @property
    def admin(self) -> AdminClient:
        return self.running.admin

    def kubectl(
        self, *args: str, input: str | None = None, check: bool = True, namespace: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl; with `check` a failure shows kubectl's own words."""
        command = [str(self.binaries.kubectl), f"--kubeconfig={self.kubeconfig}"]
        if namespace is not None:
            command.append(f"--namespace={namespace}")
        answer = subprocess.run([*command, *args], input=input, capture_output=True, text=True, check=False)
        if check and answer.returncode != 0:
            pytest.fail(f"kubectl {' '.join(args)} ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
        return answer


@contextmanager
def audited_control_plane(directory: Path, binaries: Binaries) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver with their state in `directory`, our definitions served; audited, stopped at the end."""
    with start_control_plane(directory, binaries, audit=True) as running:
        yield with_definitions(running, binaries)


def with_definitions(running: RunningControlPlane, binaries: Binaries, definitions: Path = DEFINITIONS) -> ControlPlane:
    """The control plane once our resource definitions are served, and discovery knows their short names."""
    plane = ControlPlane(running.kubeconfig, running.url, binaries, running)
    plane.kubectl("apply", "--server-side", "-f", str(definitions))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(definitions))
    listed = ("api-resources", "--api-group=compaction.dev", "--output=name")
    count = len(list(definitions.glob("compaction.dev_*.yaml")))
    eventually(lambda: len(plane.kubectl(*listed, check=False).stdout.split()) == count, "discovery lists them")
    return plane


# What the accounts of a control plane really did, from the API server's audit log; and what roles allow.

#: Everybody may ask what they may do (the built-in role system:basic-user).
FOR_EVERYBODY = frozenset({"selfsubjectaccessreviews.authorization.k8s.io", "selfsubjectreviews.authentication.k8s.io"})


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """One verb on one resource (`plural[/subresource]`, with its group), as a rule of a role names it."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


def account(namespace: str, name: str) -> str:
    """A service account as the API server calls its user."""
    return f"system:serviceaccount:{namespace}:{name}"


def uses(
    audit_log: Path, user: str, *, by: Callable[[str], bool] = lambda agent: True
) -> tuple[frozenset[Use], frozenset[Use]]:
    """What a user did, and what it was refused for want of a permission. `by`: which user agents count."""
    done: set[Use] = set()
    refused: set[Use] = set()
    with audit_log.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                break  # half written
            if user not in line:
                continue  # most of the log: parsing it takes longer than all else here
            entry = json.loads(line)
            target = entry.get("objectRef") or {}
            # Without a name: a request whose credentials were not accepted, as by a server that has just started.
            if entry["user"].get("username") != user or "resource" not in target:
                continue  # discovery is everybody's
            if not by(entry.get("userAgent", "")):
                continue
            resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
            use = Use(target.get("apiGroup", ""), resource, entry["verb"])
            if f"{use.resource}.{use.group}" in FOR_EVERYBODY:
                continue
            (refused if entry.get("responseStatus", {}).get("code") == 403 else done).add(use)
    return frozenset(done), frozenset(refused)


def granted(roles: Iterable[Mapping[str, Any]]) -> frozenset[Use]:
    """Every rule of the roles, verb by verb."""
    return frozenset(
        Use(group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def roles_of(objects: Iterable[Mapping[str, Any]], service_account: str) -> list[Mapping[str, Any]]:
    """The roles that the bindings among the objects give to a service account."""
    objects = list(objects)
    bound = {
        (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for binding in objects
        if binding["kind"].endswith("RoleBinding")
        for subject in binding["subjects"]
        if (subject["kind"], subject["name"]) == ("ServiceAccount", service_account)
    }
    return [found for found in objects if (found["kind"], found["metadata"]["name"]) in bound]


# The manifests as a cluster gets them: rendered by the kustomize inside kubectl.

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = ROOT / "manifests"
NAMESPACED = MANIFESTS / "overlays" / "namespaced"
CLUSTER = MANIFESTS / "overlays" / "cluster"


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML stream, empty documents left out."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def with_components(directory: Path, overlay: Path, *components: str) -> Path:
    """Write a user's own kustomization into `directory`: an overlay with components. Returns the directory."""
    directory.mkdir(parents=True)
    to_manifests = Path(os.path.relpath(MANIFESTS, directory.resolve()))
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "compaction-system",
        "resources": [str(to_manifests / overlay.relative_to(MANIFESTS))],
        "components": [str(to_manifests / "components" / component) for component in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return directory


def names(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """(kind, name) of each."""
    return {(item["kind"], item["metadata"]["name"]) for item in objects}
