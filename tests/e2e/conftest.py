"""A namespace with an operator in it, and logs to compact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Cluster, LogRoot
from support.operators import OperatorFleet

RBAC = Path(__file__).resolve().parents[2] / "manifests" / "base" / "rbac.yaml"
ACCOUNT = "operator"


@pytest.fixture
def fleet(control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[OperatorFleet]:
    """Operators and workers run with the role that the manifests grant, never as administrators."""
    directory = tmp_path / "operator"
    directory.mkdir()
    control_plane.kubectl("apply", "-f", str(RBAC))
    role = "--clusterrole=compaction-operator"
    control_plane.kubectl("create", "rolebinding", ACCOUNT, role, f"--user={ACCOUNT}", namespace=namespace)
    kubeconfig = control_plane.running.kubeconfig_for(ACCOUNT, directory / "kubeconfig", namespace=namespace)
    fleet = OperatorFleet(kubeconfig=kubeconfig, namespace=namespace, directory=directory)
    yield fleet
    fleet.close()
    assert not fleet.running_workers()


@pytest.fixture
def logs(tmp_path: Path) -> LogRoot:
    root = tmp_path / "ra"
    root.mkdir()
    return LogRoot(root, {})


@pytest.fixture
def cluster(control_plane: Any, namespace: str) -> Cluster:
    return Cluster(control_plane, namespace)
