"""Kueue of a published release on the node of the tests: its own manager, webhooks, definitions and role.

It runs as a pod whose image holds nothing else, in the node's network: there is no kube-proxy, so the API server calls
its webhooks by the node's address.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from node.on_node import NAMESPACE, Installation
from node.releases import KUEUE, KUEUE_DEFINITIONS, KUEUE_ROLE, KUEUE_WEBHOOKS
from support.clocks import TIMEOUT_FLAG
from support.cluster.by_kubectl import Object
from support.cluster.control_plane import ControlPlane
from tools.node.places import NODE_ADDRESS
from tools.node.running import import_archive

GROUP: Final = "kueue.x-k8s.io"
API: Final = f"{GROUP}/v1beta2"
SYSTEM: Final = "kueue-system"
ACCOUNT: Final = "kueue-controller-manager"
WEBHOOK_PORT: Final = 9443
QUEUE: Final = "compaction"
QUOTA: Final = {"cpu": "100m", "memory": "1536Mi"}
"""Room for one worker (`on_node.small`)."""
CONFIGURATION: Final = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": WEBHOOK_PORT, "certDir": "/certificates"},
    "leaderElection": {"leaderElect": False},
    "internalCertManagement": {"enable": False},
    "integrations": {"frameworks": ["pod"]},
    # Both serve others than the pods of one cluster, and need more than the manager's own role.
    "featureGates": {"MultiKueue": False, "VisibilityOnDemand": False},
}


@dataclass(frozen=True, slots=True)
class Queue:
    """The LocalQueue `compaction` of the operator's namespace, and the ClusterQueue behind it."""

    installation: Installation

    def set(self, *, stop: str = "None") -> None:
        """Whether it is stopped: None, Hold (admits nothing), HoldAndDrain (and evicts)."""
        quotas = [{"name": name, "nominalQuota": amount} for name, amount in QUOTA.items()]
        group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "default", "resources": quotas}]}
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [group],
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "stopPolicy": stop,
        }
        self._apply("ClusterQueue", "all", spec)

    def workloads(self) -> list[Object]:
        """What has been asked of it."""
        found: list[Object] = json.loads(self.installation.kubectl("get", f"workloads.{GROUP}", "-o", "json"))["items"]
        return found

    def make(self) -> None:
        self._apply("ResourceFlavor", "default", {})
        self.set()
        self._apply("LocalQueue", QUEUE, {"clusterQueue": "all"})

    def delete(self) -> None:
        for item in (f"localqueues.{GROUP}/{QUEUE}", f"clusterqueues.{GROUP}/all", f"resourceflavors.{GROUP}/default"):
            self.installation.kubectl("delete", item)

    def _apply(self, kind: str, name: str, spec: Object) -> None:
        self.installation.cluster.apply({"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec})


@contextmanager
def kueue(installation: Installation, report: Callable[[str], None]) -> Iterator[Queue]:
    """A queue that admits the pods which name it, and then nothing of Kueue any more."""
    place, plane = KUEUE.place(), installation.cluster.plane
    import_archive(installation.node, KUEUE.archive, report=report)
    documents = [*_manager(installation), *_webhooks(installation, place)]
    before, webhooks = [document for document in documents if "webhooks" not in document], documents[-2:]
    for name in (*KUEUE_DEFINITIONS, KUEUE_ROLE):
        plane.kubectl("apply", "--server-side", "-f", str(place / name))
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(before))
    plane.kubectl("wait", "--for=condition=Ready", "pod/kueue", TIMEOUT_FLAG, namespace=SYSTEM)
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(webhooks))
    queue = Queue(installation)
    queue.make()
    try:
        yield queue
    except BaseException:
        report("Kueue says: " + plane.kubectl("logs", "kueue", "--tail=20", namespace=SYSTEM, check=False).stdout)
        raise
    queue.delete()
    _remove(plane, place, webhooks=webhooks, others=before)


def _remove(plane: ControlPlane, place: Path, *, webhooks: list[Object], others: list[Object]) -> None:
    plane.kubectl("delete", "-f", "-", input=yaml.safe_dump_all(webhooks))
    # The manager takes its finalizers off what is still there, so it goes last.
    for name in KUEUE_DEFINITIONS:
        plane.kubectl("delete", "-f", str(place / name))
    plane.kubectl("delete", "-f", str(place / KUEUE_ROLE))
    plane.kubectl("delete", "-f", "-", input=yaml.safe_dump_all(others[::-1]))


def _manager(installation: Installation) -> Iterator[Object]:
    meta = {"name": ACCOUNT, "namespace": SYSTEM}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    yield {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "manager-role"},
        "subjects": [{"kind": "ServiceAccount", **meta}],
    }
    server = installation.node.plane.authority.issue_server((NODE_ADDRESS,))
    files = {"tls.crt": server.certificate.decode(), "tls.key": server.key.decode()}
    yield {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": files}
    files = {"config.yaml": yaml.safe_dump(CONFIGURATION)}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files}
    container: dict[str, Any] = {
        "name": "manager",
        "image": KUEUE.image,
        "imagePullPolicy": "Never",
        "args": ["--config=/configuration/config.yaml", "--zap-log-level=2"],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8081}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "configuration", "mountPath": "/configuration"},
            {"name": "certificates", "mountPath": "/certificates"},
            # Where it looks for those of its metrics, and nowhere else.
            {"name": "certificates", "mountPath": "/etc/kueue/metrics/certs"},
        ],
    }
    spec = {
        "hostNetwork": True,
        "serviceAccountName": ACCOUNT,
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [
            {"name": "configuration", "configMap": {"name": ACCOUNT}},
            {"name": "certificates", "secret": {"secretName": ACCOUNT}},
        ],
    }
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kueue", "namespace": SYSTEM}, "spec": spec}


def _webhooks(installation: Installation, place: Path) -> Iterator[Object]:
    """Its own rules for its own objects, and for the pods of the operator's namespace."""
    authority = base64.b64encode(installation.node.plane.authority.ca.read_bytes()).decode()
    for found in yaml.safe_load_all((place / KUEUE_WEBHOOKS).read_text()):
        rules = [item for item in found["webhooks"] if _is_of_pods(item) or item["rules"][0]["apiGroups"] == [GROUP]]
        for rule in rules:
            path = rule["clientConfig"]["service"]["path"]
            url = f"https://{NODE_ADDRESS}:{WEBHOOK_PORT}{path}"
            rule["clientConfig"] = {"url": url, "caBundle": authority}
            if _is_of_pods(rule):
                rule["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
        yield found | {"metadata": {"name": f"kueue-{found['metadata']['name']}"}, "webhooks": rules}


def _is_of_pods(webhook: Object) -> bool:
    rule: Object = webhook["rules"][0]
    return rule["apiGroups"] == [""] and "pods" in rule["resources"]
