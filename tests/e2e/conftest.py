"""A namespace with an operator in it, and logs to compact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Cluster, LogRoot
from support.operators import OperatorFleet, fleet_in


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
