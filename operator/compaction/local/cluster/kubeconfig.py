"""Kubeconfig files of the local control plane: self-contained, readable by their owner only."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from compaction.local.cluster.certs import KeyPair, write_private

NAME = "compaction-local"


def write_kubeconfig(path: Path, *, url: str, ca: bytes, client: KeyPair, namespace: str = "default") -> None:
    """Write a kubeconfig that reaches `url` with the client certificate; certificates are embedded, so the file can be
    copied.
    """
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": {"server": url, "certificate-authority-data": _base64(ca)}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": namespace}}],
        "users": [
            {
                "name": NAME,
                "user": {
                    "client-certificate-data": _base64(client.certificate),
                    "client-key-data": _base64(client.key),
                },
            }
        ],
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False).encode())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
