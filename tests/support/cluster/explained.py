"""Policies, jobs and Leases in any state, for tests of what is said about them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from lupa.lua51 import LuaRuntime

from compaction.api.base import format_timestamp
from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.leases.record import Lease, LeaseRecord
from support.cluster.control_plane import MANIFESTS
from support.cluster.manifests import job_object, policy_object
from support.cluster.orders import catalog_object

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def ago(seconds: float) -> str:
    """A time before `NOW`, as it stands in status."""
    return format_timestamp(NOW - timedelta(seconds=seconds))


def condition(type_: str, reason: str, *, status: str = "True", message: str = "", seconds: float = 130) -> Any:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": ago(seconds),
        "observedGeneration": 1,
    }


def policy_with(status: dict[str, Any] | None = None, *, annotations: Any = None, **spec: Any) -> CompactionPolicy:
    """A policy `storage/logs` that an operator has seen."""
    document = policy_object(**spec)
    document["metadata"] |= {"namespace": "storage", "generation": 1, "annotations": annotations or {}}
    return CompactionPolicy.from_object(document | {"status": {"observedGeneration": 1} | (status or {})})


def job_with(status: dict[str, Any] | None = None, *, name: str = "logs-1", **spec: Any) -> CompactionJob:
    """A job `storage/logs-1` of the policy `logs`, made ten minutes ago."""
    document = job_object(name, **{"estimatedBytes": 3 << 20} | spec)
    document["metadata"] |= {"namespace": "storage", "generation": 1, "creationTimestamp": ago(600)}
    return CompactionJob.from_object(document | {"status": {"observedGeneration": 1} | (status or {})})


def attempt(reason: str, outcome: str = "Failed", *, message: str = "", charged: bool = True) -> dict[str, Any]:
    return {
        "token": 1,
        "worker": "logs-w-1",
        "startedAt": ago(60),
        "endedAt": ago(30),
        "outcome": outcome,
        "charged": charged,
        "reason": reason,
        "message": message,
    }


def lease_with(name: str, *, holder: str | None, seconds: float = 2.0, **annotations: str) -> Lease:
    """A Lease that was renewed so many seconds ago."""
    record = LeaseRecord(holder, 15, 1, renew_time=NOW - timedelta(seconds=seconds))
    marked = {f"compaction.dev/{key}": value for key, value in annotations.items()}
    return Lease(name=name, namespace="storage", record=record, annotations=marked)


def catalog_with(status: dict[str, Any] | None = None, *, generation: int = 1, **spec: Any) -> CatalogCompaction:
    """A catalog `storage/orders` that an operator has seen."""
    document = catalog_object(**spec)
    document["metadata"] |= {"namespace": "storage", "generation": generation}
    return CatalogCompaction.from_object(document | {"status": {"observedGeneration": 1} | (status or {})})


def catalog_status(reason: str = "Transaction", **more: Any) -> dict[str, Any]:
    """Of a catalog whose history a transaction of orders-1 pins, unless `reason` or `more` says else."""
    ended = {"reason": reason, "finishedAt": ago(20), "since": ago(3600), "message": "the particulars"}
    return {
        "observedGeneration": 1,
        "conditions": [condition("Ready", reason, message="the particulars")],
        "coordinator": "operator-0",
        "fencingToken": 4,
        "lowWatermark": {"value": 1, "time": ago(600)},
        "requiredTime": {
            "value": 1,
            "time": ago(7200),
            "reason": "Transaction",
            "participant": "orders-1",
            "subject": "transaction 77",
            "since": ago(3700),
        },
        "earliestVersion": 3,
        "latestVersion": 9,
        "compaction": {**ended, "outcome": "Skipped", "participant": "orders-1", "subject": "transaction 77"},
        "propagation": {
            "outcome": "Succeeded",
            "reason": "Propagated",
            "finishedAt": ago(19),
            "since": ago(19),
            "message": "every participant has the minimum",
        },
        "propagatedMinimum": {"value": 1, "time": ago(7200)},
        "versionsCut": 12,
        "bytesCut": 5 << 10,
        "lastCompactionTime": ago(9000),
        "round": {"stage": "Idle", "trigger": "Interval", "startedAt": ago(21), "participants": 2, "answered": 2},
        "nextRunTime": format_timestamp(NOW + timedelta(seconds=40)),
        "participants": [
            {
                "name": "orders-0",
                "reason": "Answered",
                "minimum": ago(600),
                "cause": "LowWatermark",
                "subject": "low watermark",
                "lowWatermark": ago(600),
                "checkpoint": ago(30),
                "partitions": 8,
                "undefinedPartitions": 1,
                "indexBuilds": 1,
                "rebalances": 2,
                "clockSkewMilliseconds": -250,
            },
            {
                "name": "orders-1",
                "reason": "Answered",
                "minimum": ago(7200),
                "cause": "Partition",
                "subject": "partition 3 of table 9",
                "oldestTransaction": ago(3700),
                "partitions": 8,
                "clockSkewMilliseconds": 3,
            },
        ],
        **more,
    }


# What `kubectl`-like tools conclude about an object: the rules of cli-utils `pkg/kstatus/status/generic.go`, on JSON.
#
# Flux, kpt and, in its generic health, Argo CD go by them.


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


# Argo CD's health of our kinds: the script of manifests/examples/argocd, run by its own kind of Lua.

SCRIPT = (MANIFESTS / "examples" / "argocd" / "health.lua").read_text()


def health(found: Mapping[str, Any]) -> tuple[str, str]:
    """(status, message) for an object."""
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    judge = lua.execute(f"return function(obj)\n{SCRIPT}\nend")
    answer = judge(lua.table_from(dict(found), recursive=True))
    return str(answer["status"]), str(answer["message"])
