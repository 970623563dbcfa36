"""A namespace with an operator in it, and logs to compact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster.by_kubectl import Cluster, LogRoot
from support.processes.operators import OperatorFleet, fleet_in


@pytest.fixture
def fleet(control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[OperatorFleet]:
    with fleet_in(control_plane, namespace, tmp_path / "operator") as fleet:
        yield fleet


@pytest.fixture
def logs(tmp_path: Path) -> LogRoot:
    root = tmp_path / "ra"
    root.mkdir()
    return LogRoot(root, {})


@pytest.fixture
def cluster(control_plane: Any, namespace: str) -> Cluster:
    return Cluster(control_plane, namespace)


@pytest.fixture
def operators(control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[OperatorFleet]:
    """A fleet whose workers need no Spark: for what is decided by the operator."""
    with fleet_in(control_plane, namespace, tmp_path / "operator", light=()) as fleet:
        yield fleet


@pytest.fixture
def slow_workers(control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[OperatorFleet]:
    """A fleet whose workers need no Spark; each group of a log takes them most of a second."""
    with fleet_in(control_plane, namespace, tmp_path / "operator", light=("--task-seconds", "0.7")) as fleet:
        yield fleet
