"""Secrets written into a cluster, and everything that is said there and beside: no value may be in it."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from compaction.api.names import ANNOTATION_USED_BY
from support.cluster.by_kubectl import Cluster

EVERYBODY = "CompactionPolicy/*, CatalogCompaction/*"


def write_secret(cluster: Cluster, name: str, values: Mapping[str, str], *, used_by: str = EVERYBODY) -> None:
    """Make a Secret, or give it these keys. `used_by`: for whom it is."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    metadata = {"name": name, "annotations": {ANNOTATION_USED_BY: used_by}}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    cluster.apply(body)


def objects_of(cluster: Cluster) -> str:
    """All objects of the namespace but the Secrets themselves, as YAML."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    return cluster.kubectl(
        "get", ",".join(kind for kind in kinds if kind != "secrets"), "-o", "yaml", "--show-managed-fields"
    )


def files_below(*directories: Path) -> bytes:
    """The content of every file, one after the other; what vanishes meanwhile is left out."""
    return b"".join(_content(path) for directory in directories for path in sorted(directory.rglob("*")))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except (FileNotFoundError, ProcessLookupError):
        return b""


def session_of(pid: int) -> Iterable[psutil.Process]:
    """The processes of the session that `pid` leads."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid:
                yield process
        except ProcessLookupError:
            continue


def shown_by(processes: Iterable[psutil.Process]) -> bytes:
    """What everybody sees of processes, and what their user does: command lines and environments."""
    return b"".join(
        _content(Path(f"/proc/{process.pid}/{name}")) for process in processes for name in ("cmdline", "environ")
    )
