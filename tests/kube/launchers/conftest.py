"""A namespace that enforces `restricted`, and the definitions of both Spark operators on the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kube.launchers.spark_operators import DEFINITIONS, define, is_served


@pytest.fixture
def restricted(control_plane: Any, namespace: str) -> Iterator[str]:
    """A namespace that refuses every pod that is not `restricted`."""
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    yield namespace
    control_plane.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", namespace=namespace, check=False)


@pytest.fixture(scope="package")
def spark_operators_go(control_plane: Any) -> Iterator[None]:
    """Their definitions go with the last test of this folder: with them on the server, `auto` chooses otherwise for
    everybody. To put them there and to take them away takes the server seconds: the files that use them run in one
    process, one after the other (`xdist_group`).
    """
    yield
    control_plane.kubectl("delete", "crd", "--ignore-not-found", "--timeout=60s", *DEFINITIONS)


@pytest.fixture
def spark_operators(control_plane: Any, shared_fixtures: Path, spark_operators_go: None) -> None:
    """Both definitions are served."""
    if not all(is_served(control_plane.admin, name) for name in DEFINITIONS):
        define(control_plane.kubectl, shared_fixtures)
