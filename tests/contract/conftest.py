from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compaction.local.cluster.control_plane import AdminAnswer
from support.cluster.control_plane import ControlPlane

DryRun = Callable[[dict[str, Any]], AdminAnswer]
PLURALS = {
    "CompactionPolicy": "compactionpolicies",
    "CompactionJob": "compactionjobs",
    "CatalogCompaction": "catalogcompactions",
}


@pytest.fixture
def dry_run(control_plane: ControlPlane) -> DryRun:
    """What the API server answers `kubectl create`, nothing stored: a request costs a hundredth of a process and a
    namespace of its own.
    """

    def create(document: dict[str, Any]) -> AdminAnswer:
        path = f"/apis/{document['apiVersion']}/namespaces/default/{PLURALS[document['kind']]}"
        return control_plane.admin.request("POST", f"{path}?dryRun=All&fieldValidation=Strict", document)

    return create
