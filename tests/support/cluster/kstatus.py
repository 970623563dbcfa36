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


class Verdict(StrEnum):
    """What a tool that waits for an object does next."""

    PASSES = "passes"
    WAITS = "waits"
    FAILS = "fails"


def flux_wait(found: Mapping[str, Any]) -> Verdict:
    """Flux with `wait: true` or a health check (fluxcd/pkg `ssa/manager_wait.go`): goes on when all objects are
    Current, gives up at once when one has Failed, and waits for the rest until its timeout.
    """
    return {KStatus.CURRENT: Verdict.PASSES, KStatus.FAILED: Verdict.FAILS}.get(kstatus(found), Verdict.WAITS)


def argo_sync(health: str) -> Verdict:
    """A wave of an Argo CD sync (gitops-engine `pkg/sync/sync_context.go`): Healthy ends it, Degraded fails it, and
    anything else, Suspended too, keeps it waiting.
    """
    return {"Healthy": Verdict.PASSES, "Degraded": Verdict.FAILS}.get(health, Verdict.WAITS)


def kubectl_wait(found: Mapping[str, Any], condition: str) -> Verdict:
    """`kubectl wait --for=condition=...` (kubectl `pkg/cmd/wait/condition.go`): until the condition is True and not of
    an older generation. It never gives up by itself.
    """
    generation, status = found["metadata"].get("generation", 0), found.get("status") or {}
    for item in status.get("conditions") or []:
        if item["type"] == condition:
            observed = item.get("observedGeneration", status.get("observedGeneration"))
            current = observed is None or observed >= generation
            return Verdict.PASSES if current and item["status"] == "True" else Verdict.WAITS
    return Verdict.WAITS
