"""A namespace that enforces `restricted`, and the definitions of both Spark operators on the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kube.launchers.spark_operators import DEFINITIONS, define


@pytest.fixture
def restricted(control_plane: Any, namespace: str) -> Iterator[str]:
    """A namespace that refuses every pod that is not `restricted`."""
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    yield namespace
    control_plane.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", namespace=namespace, check=False)


@pytest.fixture(scope="module")
def spark_operators(control_plane: Any, shared_fixtures: Path) -> Iterator[None]:
    """Their definitions, for one module: with them on the server, `auto` chooses otherwise for everybody."""
    define(control_plane.kubectl, shared_fixtures)
    yield
    control_plane.kubectl("delete", "crd", "--ignore-not-found", "--timeout=60s", *DEFINITIONS)
