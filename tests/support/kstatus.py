"""What `kubectl`-like tools conclude about an object: the rules of cli-utils `pkg/kstatus/status/generic.go`, on JSON.

Flux, kpt and, in its generic health, Argo CD go by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class KStatus(StrEnum):
    CURRENT = "Current"
    IN_PROGRESS = "InProgress"
    FAILED = "Failed"
    TERMINATING = "Terminating"


def kstatus(found: Mapping[str, Any]) -> KStatus:
    """Deletion first, then an outdated generation, the abnormal conditions in their order, and at last Ready."""
    metadata, status = found["metadata"], found.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return KStatus.TERMINATING
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata.get("generation", 0):
        return KStatus.IN_PROGRESS
    conditions = status.get("conditions") or []
    for condition in conditions:
        if condition["status"] == "True" and condition["type"] in _ABNORMAL:
            return _ABNORMAL[condition["type"]]
    ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
    return KStatus.CURRENT if ready is None or ready["status"] == "True" else KStatus.IN_PROGRESS


_ABNORMAL = {"Reconciling": KStatus.IN_PROGRESS, "Stalled": KStatus.FAILED}
