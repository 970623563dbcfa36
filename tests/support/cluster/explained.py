"""Policies, jobs and Leases in any state, for tests of what is said about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from compaction.api.job.resource import CompactionJob
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.times import format_timestamp
from compaction.leases.record import Lease, LeaseRecord
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
