"""A connection to the tests' control plane."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.kube.client.config import ApiConnection, load_connection


@pytest.fixture
def connection(control_plane: Any) -> ApiConnection:
    return load_connection(control_plane.kubeconfig)
