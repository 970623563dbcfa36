"""Fleets of real processes, logs small enough to compact in seconds, and a control plane that may be broken."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chaos.outages import Logs, Servers
from compaction.local.cluster.control_plane import start_control_plane
from compaction.local.programs.binaries import Binaries
from support.cluster.by_kubectl import Cluster
from support.cluster.control_plane import ControlPlane, with_definitions
from support.processes.operators import OperatorFleet, fleet_in

MakeFleet = Callable[..., OperatorFleet]


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    root = tmp_path / "ra"
    root.mkdir()
    return Logs(root)


@pytest.fixture
def cluster(control_plane: Any, namespace: str) -> Cluster:
    return Cluster(control_plane, namespace)


@pytest.fixture
def make_fleet(control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[MakeFleet]:
    """Fleets in the test's namespace, by default with light workers."""
    with ExitStack() as stack:

        def make(**options: Any) -> OperatorFleet:
            options = {"light": ()} | options
            return stack.enter_context(fleet_in(control_plane, namespace, tmp_path / "operator", **options))

        yield make


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[Servers]:
    """A control plane whose servers may be killed: nobody else uses it."""
    directory = tmp_path_factory.mktemp("breakable")
    servers = Servers(start_control_plane(directory, binaries))
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def own_plane(servers: Servers, binaries: Binaries) -> ControlPlane:
    """Its servers are killed and started again at the same address, with the same data."""
    return with_definitions(servers.running, binaries)


@pytest.fixture
def own_cluster(own_plane: ControlPlane) -> Cluster:
    name = f"test-{secrets.token_hex(4)}"
    own_plane.kubectl("create", "namespace", name)
    return Cluster(own_plane, name)


@pytest.fixture
def own_fleet(own_plane: ControlPlane, own_cluster: Cluster, tmp_path: Path) -> Iterator[OperatorFleet]:
    """Light workers on the control plane that may be broken; each group of a log takes most of a second."""
    light = ("--task-seconds", "0.7")
    with fleet_in(own_plane, own_cluster.namespace, tmp_path / "operator", light=light) as fleet:
        yield fleet
