"""The definitions of both Spark operators on the API server, from the reference files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compaction.local.cluster.control_plane import AdminClient
from support.time.waiting import eventually

DEFINITIONS = ("sparkapplications.sparkoperator.k8s.io", "sparkapplications.spark.apache.org")


def is_served(admin: AdminClient, definition: str) -> bool:
    """Whether a definition is on the server, established, and not about to go."""
    answer = admin.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition}")
    if answer.status == 404:
        return False
    found = answer.json()
    conditions = {item["type"]: item["status"] for item in found.get("status", {}).get("conditions") or ()}
    return conditions.get("Established") == "True" and "deletionTimestamp" not in found["metadata"]


def define(kubectl: Any, fixtures: Path) -> None:
    """Put the definitions on the server and wait until it serves them."""
    kubectl("apply", "--server-side", "-f", str(fixtures / "spark-operators"))
    wait = ("wait", "--for=condition=Established", "--timeout=60s", "crd", *DEFINITIONS)
    # kubectl gives up at once on an object without conditions, which it has for a moment.
    eventually(lambda: kubectl(*wait, check=False).returncode == 0, "the definitions to be served")
