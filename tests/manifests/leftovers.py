"""Everything that exists on an API server, and the part of the absent namespace controller."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from compaction.local.cluster.control_plane import AdminAnswer
from support.cluster.control_plane import ControlPlane
from support.time.waiting import eventually

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
