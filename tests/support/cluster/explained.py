"""Policies, jobs and Leases in any state, for tests of what is said about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from compaction.api.base import format_timestamp
from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.leases.record import Lease, LeaseRecord
from support.cluster.catalog_manifests import catalog_object
from support.cluster.manifests import job_object, policy_object

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
