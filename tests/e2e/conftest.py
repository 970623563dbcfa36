"""A namespace with an operator in it, and logs to compact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Cluster, LogRoot
from support.operators import OperatorFleet


@pytest.fixture
def fleet(control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[OperatorFleet]:
    directory = tmp_path / "operator"
    directory.mkdir()
    fleet = OperatorFleet(kubeconfig=control_plane.kubeconfig, namespace=namespace, directory=directory)
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
