"""A namespace on a real API server, and users with the roles that are shipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.cluster.by_kubectl import Cluster, User, make_user


@pytest.fixture
def cluster(control_plane: Any, namespace: str) -> Cluster:
    return Cluster(control_plane, namespace)


@pytest.fixture
def user(control_plane: Any, namespace: str, tmp_path: Path) -> Callable[[str], User]:
    """A user with one of our roles in the namespace of the test, or with none."""
    return lambda role: make_user(control_plane, namespace, tmp_path, role=role)


@pytest.fixture
def editor(user: Callable[[str], User]) -> User:
    return user("compaction-editor")
