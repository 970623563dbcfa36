"""A catalog whose participants are pods: found by their labels, asked with the operator's own token, which the API
server reviews for them; an etcd with TLS has the log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.on_node import NAMESPACE, OPERATOR, Installation
from node.private_servers import PrivateServers
from support.clocks import eventually
from support.cluster.by_kubectl import Object, write_secret
from support.cluster.control_plane import MANIFESTS
from support.endpoints import SECRET

PARTICIPANTS = ("orders-0", "orders-1")
PORT = 7800
PREFIX = "/catalogs/orders"
ACCOUNT = "orders"
LABELS = {"app": "orders"}
BEGIN = """
import sys, urllib.request
secret = open("/etc/orders/secret").read().strip()
url, action, body = sys.argv[1:]
request = urllib.request.Request(f"{url}/v1/admin/{action}", body.encode(), {
    "Authorization": f"Bearer {secret}", "Content-Type": "application/json"})
print(urllib.request.urlopen(request).read().decode())
"""
"""Drives a participant from inside of its pod."""


@contextmanager
def catalogs_allowed(installation: Installation, directory: Path) -> Iterator[None]:
    """The component beside the installation and the participants' binding, and gone again."""
    directory.mkdir()
    component = os.path.relpath(MANIFESTS / "components" / "catalogs", directory)
    account = {"op": "add", "path": "/subjects/0/namespace", "value": NAMESPACE}
    patch = {"target": {"kind": "RoleBinding"}, "patch": yaml.safe_dump([account])}
    document = {"namespace": NAMESPACE, "components": [component], "patches": [patch]}
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(document))
    installation.kubectl("apply", "--server-side", "-k", str(directory))
    role = "--clusterrole=compaction-catalog-participant"
    installation.kubectl("create", "clusterrolebinding", ACCOUNT, role, f"--serviceaccount={NAMESPACE}:{ACCOUNT}")
    yield
    installation.kubectl("delete", "clusterrolebinding", ACCOUNT)
    installation.kubectl("delete", "-k", str(directory))


def pod(installation: Installation, name: str, args: Sequence[str], **more: Any) -> None:
    """A pod of the operator's image, as PodSecurity `restricted` wants it."""
    [operator, *_] = installation.operators()
    container: Object = {
        "name": "main",
        "image": operator["spec"]["containers"][0]["image"],
        "imagePullPolicy": "IfNotPresent",
        "args": list(args),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *more.pop("mounts", ())],
    }
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 185,
            "runAsGroup": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container | more.pop("container", {})],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *more.pop("volumes", ())],
        "automountServiceAccountToken": False,
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": more.pop("labels", {})}}
    installation.kubectl("create", "-f", "-", input=json.dumps(body | {"spec": spec | more}))


def address_of(installation: Installation, name: str) -> str:
    """The address of a pod that runs."""

    def found() -> str:
        [body] = installation.cluster.list("pod", fields=f"metadata.name={name}")
        status = body["status"]
        assert status.get("phase") != "Failed", installation.kubectl("logs", name)
        return str(status.get("podIP", "")) if status.get("phase") == "Running" else ""

    return eventually(found, f"pod {name} to run")


def participant_in_a_pod(installation: Installation, name: str) -> None:
    serving = ["catalogs", "serve", f"--name={name}", "--admin", "--bind-address=0.0.0.0", f"--port={PORT}"]
    serving += ["--plain-http", "--availability=1s", "--update-interval=0.2s", "--checkpoint-interval=0.2s"]
    serving += [f"--allow-service-account={NAMESPACE}/{OPERATOR}", f"--audience=compaction-participant/{NAMESPACE}"]
    pod(
        installation,
        name,
        [*serving, "--secret-file=test=/etc/orders/secret"],
        labels=LABELS,
        serviceAccountName=ACCOUNT,
        automountServiceAccountToken=True,
        mounts=[{"name": "secret", "mountPath": "/etc/orders", "readOnly": True}],
        volumes=[{"name": "secret", "secret": {"secretName": "orders-test", "defaultMode": 0o440}}],
    )


def drive(installation: Installation, name: str, action: str, body: str = "{}") -> int:
    """One action of a participant; the timestamp that it answers with."""
    said = installation.kubectl("exec", name, "--", "python3", "-c", BEGIN, f"http://127.0.0.1:{PORT}", action, body)
    return int(json.loads(said)["timestamp"])


def compactor(installation: Installation, *words: str) -> Any:
    """`compactor catalogs` in a pod, what it prints as JSON."""
    return json.loads(
        installation.kubectl("exec", PARTICIPANTS[0], "--", "compactor", "catalogs", *words, "-o", "json")
    )


def grow(installation: Installation, log: Sequence[str], *names: str) -> None:
    """One version per schema."""
    ddl = "".join(f"- {{type: CREATE_SCHEMA, schema: {name}}}\n" for name in names)
    write = f"import sys; open('/tmp/ddl.yaml', 'w').write({ddl!r})"
    installation.kubectl("exec", PARTICIPANTS[0], "--", "python3", "-c", write)
    compactor(installation, "apply", "/tmp/ddl.yaml", *log, "--delay=1", "--max-skew=1")


def status(installation: Installation) -> Object:
    found: Object = installation.cluster.catalog("orders").get("status", {})
    return found


@pytest.fixture
def orders(installation: Installation, servers: PrivateServers, tmp_path: Path) -> Iterator[list[str]]:
    """Two participants in pods, and the options of a log in etcd."""
    installation.kubectl("create", "serviceaccount", ACCOUNT)
    write_secret(installation.cluster, "orders-test", {"secret": SECRET, "ca.crt": servers.trust})
    write_secret(installation.cluster, "orders-etcd", {"ca.crt": servers.trust})
    with catalogs_allowed(installation, tmp_path / "component"):
        for name in PARTICIPANTS:
            participant_in_a_pod(installation, name)
        for name in PARTICIPANTS:
            address_of(installation, name)
        yield ["--etcd", servers.etcd, "--prefix", PREFIX, "--ca", "/etc/orders/ca.crt"]
        installation.kubectl("delete", "ccat", "orders", "--ignore-not-found")
        installation.kubectl("delete", "pod", *PARTICIPANTS, "--ignore-not-found")
    installation.kubectl("delete", "secret", "orders-test", "orders-etcd")
    installation.kubectl("delete", "serviceaccount", ACCOUNT)


def test_history_is_cut_when_no_pod_needs_it(installation: Installation, orders: list[str]) -> None:
    grow(installation, orders, *(f"S{n}" for n in range(7)))
    assert [item["version"] for item in compactor(installation, "list", *orders)] == list(range(1, 9))
    spec = {
        "catalog": {"endpoints": [orders[1]], "prefix": f"{PREFIX}/", "secretName": "orders-etcd"},
        "participants": {
            "selector": {"matchLabels": LABELS, "port": PORT},
            "plainHTTP": True,
            "serviceAccountToken": {},
        },
        "topology": {"participants": list(PARTICIPANTS), "minParticipants": 2},
        "lowWatermark": {"updateInterval": "1s", "dataAvailability": "1s"},
        "interval": "1s",
        "maxClockSkew": "1s",
    }
    document = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CatalogCompaction", "metadata": {"name": "orders"}}
    installation.cluster.apply(document | {"spec": spec})
    eventually(lambda: status(installation).get("earliestVersion") == 7, "history to be cut")
    assert [item["version"] for item in compactor(installation, "list", *orders)] == [7, 8]
    found = status(installation)
    assert {item["name"]: item["reason"] for item in found["participants"]} == dict.fromkeys(PARTICIPANTS, "Answered")

    begun = drive(installation, "orders-1", "begin")
    grow(installation, orders, "LATER", "STILL_LATER")

    def pinned() -> bool:
        pin = status(installation).get("requiredTime") or {}
        return (pin.get("reason"), pin.get("participant")) == ("Transaction", "orders-1")

    eventually(pinned, "the transaction to be named")
    drive(installation, "orders-1", "finish", json.dumps({"timestamp": str(begun)}))
    eventually(lambda: status(installation).get("earliestVersion") == 9, "history to be cut")

    installation.kubectl("delete", "pod", "orders-1")
    missing = "orders-1 to be missing"
    eventually(lambda: status(installation)["compaction"]["reason"] == "MissingParticipant", missing)
    assert "orders-1" in status(installation)["compaction"]["message"]
