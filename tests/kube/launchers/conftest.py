"""An API server of the folder's own for the definitions of both Spark operators; a namespace that is `restricted`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.api.names import ANNOTATION_USED_BY
from compaction.local.programs.binaries import Binaries
from kube.launchers.spark_operators import DEFINITIONS, define, is_served
from support.cluster.control_plane import ControlPlane, audited_control_plane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[ControlPlane]:
    """With the definitions of Spark operators on a server `auto` chooses otherwise for everybody, and to put them there
    and to take them away takes it seconds: so they are on one of these tests alone.
    """
    with audited_control_plane(tmp_path_factory.mktemp("spark-operators"), binaries) as plane:
        yield plane


@pytest.fixture
def restricted(control_plane: Any, namespace: str) -> Iterator[str]:
    """A namespace that refuses every pod that is not `restricted`, with the Secrets that `pods` names. Its pods, which
    no kubelet ends, go at once.
    """
    path, labels = f"/api/v1/namespaces/{namespace}", {"pod-security.kubernetes.io/enforce": "restricted"}
    admin, merge = control_plane.admin, "application/merge-patch+json"
    labelled = admin.request("PATCH", path, {"metadata": {"labels": labels}}, content_type=merge)
    assert labelled.ok, labelled.text
    for name in ("credentials", "certificates", "store-credentials", "store-index"):
        metadata = {"name": name, "annotations": {ANNOTATION_USED_BY: "CompactionPolicy/logs"}}
        made = admin.request("POST", f"{path}/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
        assert made.ok, made.text
    yield namespace
    admin.request("DELETE", f"{path}/pods?gracePeriodSeconds=0")


@pytest.fixture
def spark_operators(control_plane: Any, shared_fixtures: Path) -> None:
    """Both definitions are served."""
    if not all(is_served(control_plane.admin, name) for name in DEFINITIONS):
        define(control_plane.kubectl, shared_fixtures)
