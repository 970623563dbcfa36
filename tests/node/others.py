"""Pods of others in the namespace of the workers: they take memory, processors or a place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from node.on_node import Installation
from support.cluster.by_kubectl import Object
from tools.node.running import TOOLS_IMAGE

FOREVER = "sleep 100000"


@contextmanager
def other_pod(
    installation: Installation,
    name: str,
    command: str = FOREVER,
    *,
    image: str = TOOLS_IMAGE,
    requests: Mapping[str, str],
    limits: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    priority: str = "",
) -> Iterator[None]:
    """A pod that runs a command of the shell, as PodSecurity `restricted` wants it; afterwards it is gone."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    main = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", command]}
    main |= {"securityContext": security, "resources": {"requests": requests, "limits": limits or {}}}
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 185, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [main],
    } | ({"priorityClassName": priority} if priority else {})
    metadata = {"name": name, "labels": dict(labels or {})}
    installation.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        yield
    finally:
        installation.kubectl("delete", "pod", name, "--grace-period=0", "--force")


def container_state(installation: Installation, name: str) -> Object:
    """Of the pod's one container: waiting, running or terminated; {} before there is one."""
    [pod] = installation.cluster.list("pod", fields=f"metadata.name={name}")
    found: Object = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
    return found


@contextmanager
def priority_class(installation: Installation, name: str, value: int) -> Iterator[None]:
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    installation.cluster.apply(body | {"value": value, "globalDefault": False})
    yield
    installation.kubectl("delete", "priorityclass", name)
