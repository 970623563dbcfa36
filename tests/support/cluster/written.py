"""Objects with a status that a test writes, as the operator would."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from compaction.api.base import timestamp_from_epoch
from compaction.api.names import COORDINATOR_LEASE
from compaction.leases.record import format_micro_time
from support.cluster.by_kubectl import Cluster


def ago(seconds: float) -> str:
    return timestamp_from_epoch(time.time() - seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def make(cluster: Cluster, document: dict[str, Any], status: dict[str, Any] | None = None) -> None:
    """Create an object, and write its status as the operator would."""
    cluster.apply(document)
    if status is not None:
        kind, name = document["kind"], document["metadata"]["name"]
        write_status(cluster, f"{kind}/{name}", status)


def write_status(cluster: Cluster, name: str, status: dict[str, Any]) -> None:
    cluster.patch(name, {"status": status}, subresource="status")


def coordinator_lease(silent: float) -> dict[str, Any]:
    """The coordinator's Lease, renewed so many seconds ago."""
    renewed = format_micro_time(datetime.now(UTC) - timedelta(seconds=silent))
    spec = {"holderIdentity": "replica-a", "leaseDurationSeconds": 900, "renewTime": renewed}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": COORDINATOR_LEASE},
        "spec": spec,
    }
