"""A control plane as tests see it: its kubeconfig, its administrator, and the real kubectl."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.local.cluster.control_plane import AdminAnswer, AdminClient, RunningControlPlane, start_control_plane
from compaction.local.programs.binaries import Binaries
from support.clocks import TIMEOUT_FLAG, eventually

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
    plane.kubectl("wait", "--for=condition=Established", TIMEOUT_FLAG, "-f", str(definitions))
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
            code = entry.get("responseStatus", {}).get("code")
            if code == 409:
                continue  # another version, or a namesake: nothing was done, and nothing was judged
            (refused if code == 403 else done).add(use)
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


def take_away(plane: ControlPlane, added: Iterable[str]) -> None:
    """Delete these objects, as `everything` names them, whatever waits for a controller that is not here."""
    # Namespaces last: in one that is gone nothing is changed any more, and what has a finalizer stays.
    for item in sorted(added, key=lambda item: ("/namespaces//" in item, item)):
        prefix, plural, namespace, name = item.rsplit("/", 3)
        where = f"{prefix}/namespaces/{namespace}" if namespace else prefix
        deleted = plane.admin.request("DELETE", f"{where}/{plural}/{name}")
        if deleted.status == 404:
            continue  # with its definition, or its namespace
        assert deleted.ok, deleted.text
        if plural == "namespaces":
            finish_deleted_namespaces(plane, name)
        elif plural != "customresourcedefinitions" and deleted.json()["metadata"].get("deletionTimestamp"):
            # But for definitions: the API server itself deletes their objects first.
            let_go = {"metadata": {"finalizers": None}}
            plane.admin.request(
                "PATCH", f"{where}/{plural}/{name}", let_go, content_type="application/merge-patch+json"
            )


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
