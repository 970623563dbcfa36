"""A real etcd for logs, an operator process, and a catalog with participants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.local.programs.binaries import Binaries
from support.catalogs.etcd_members import Members, etcd_members
from support.cluster.by_kubectl import Cluster
from support.cluster.orders import Orders, orders
from support.processes.operators import ACCOUNT, OperatorFleet, fleet_in
from tools.servers.etcd import LocalEtcd, start_etcd


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[Members]:
    """Without TLS: for what a test wants to read on the way."""
    with etcd_members(tmp_path_factory.mktemp("etcd"), binaries.etcd) as running:
        yield running


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[LocalEtcd]:
    """With TLS and client certificates."""
    with start_etcd(tmp_path_factory.mktemp("secured"), binaries.etcd, sync=False) as running:
        yield running


@pytest.fixture
def cluster(control_plane: Any, namespace: str) -> Cluster:
    return Cluster(control_plane, namespace)


@pytest.fixture
def operators(control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[OperatorFleet]:
    """Replicas with the role that the manifests grant, and no further permission."""
    with fleet_in(control_plane, namespace, tmp_path / "operator") as fleet:
        yield fleet


@pytest.fixture
def catalog(cluster: Cluster, etcd: Members, tmp_path: Path) -> Iterator[Orders]:
    """Eight versions, two participants that run, and their Secret, which the operator may read."""
    with orders(cluster, etcd.settings(), tmp_path / "participants", "a", "b") as found:
        found.create()
        found.write_token()
        found.allow_secrets(ACCOUNT)
        yield found
