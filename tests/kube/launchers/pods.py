"""Requests for workers in pods, pods and applications in every state, and the operators' definitions on the server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from compaction.api.policy.policy import CompactionPolicy
from compaction.kube.executor.policy_objects import pod_request
from compaction.kube.launchers.base import BASELINE, PodAllowance, PolicyKey, WorkerRequest
from compaction.registry import kind_of
from support.cluster.manifests import policy_object

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
IMAGE = "registry.example/compaction-worker:1.0"
FULL: dict[str, Any] = {
    "image": IMAGE,
    "imagePullPolicy": "IfNotPresent",
    "imagePullSecrets": [{"name": "registry"}],
    "driver": {"cpu": "250m", "cpuLimit": 2, "memory": "2Gi", "maxMemory": "4Gi", "cores": 3},
    "executor": {"instances": 2, "cpu": 1, "cpuLimit": "1500m", "memory": "1Gi", "cores": 2},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "system-node-critical",
    "queueName": "compaction",
    "envFromSecrets": [{"name": "credentials"}],
    "secretVolumes": [{"secretName": "certificates", "mountPath": "/etc/certificates"}],
    "eventLogDir": "/tmp/spark-events",
    "sparkConf": {"spark.ui.enabled": "true", "spark.executor.memory": "512m"},
    "podTemplate": {
        "metadata": {"labels": {"team": "storage", "compaction.dev/worker": "mine"}, "annotations": {"note": "x"}},
        "spec": {
            "securityContext": {"fsGroup": 100},
            "containers": [{"name": "worker", "env": [{"name": "TZ", "value": "UTC"}], "args": ["sh"]}],
            "volumes": [{"name": "extra", "emptyDir": {}}],
            "tolerations": [{"key": "team", "operator": "Exists"}],
        },
    },
}
"""A policy's workers with everything that can be said about their pods."""


BLOCKS: dict[str, Any] = {
    "blockStore": {
        "url": "s3://blocks/production",
        "credentialsSecretName": "store-credentials",
        "index": {"secretName": "store-index"},
    }
}
"""A policy's store with a Secret for its objects and one for its index."""


def policy_of(
    workers: dict[str, Any],
    *,
    namespace: str = "default",
    volume: bool = True,
    store: dict[str, Any] | None = None,
) -> CompactionPolicy:
    document = policy_object("logs", workers=workers, **({"store": store} if store is not None else {}))
    document["metadata"] |= {"namespace": namespace, "uid": "11111111-2222-3333-4444-555555555555"}
    if volume and store is None:
        document["spec"]["store"]["segmentLogs"]["volume"] = {"claimName": "segment-logs", "subPath": "ra"}
    return CompactionPolicy.from_object(document)


def request_of(
    workers: dict[str, Any],
    *,
    name: str = "logs-w-abcd-12345",
    namespace: str = "default",
    memory: int | None = None,
    executor_memory: int | None = None,
    store: dict[str, Any] | None = None,
    allowance: PodAllowance = BASELINE,
) -> WorkerRequest:
    """What the executor hands to a launcher for a policy with these workers."""
    policy = policy_of(workers, namespace=namespace, store=store)
    spec = policy.spec.workers
    pod = pod_request(
        policy,
        memory=int(spec.driver.memory) if memory is None else memory,
        executor_memory=int(spec.executor.memory) if executor_memory is None else executor_memory,
    )
    return WorkerRequest(
        name=name,
        policy=PolicyKey(namespace, "logs"),
        slots=spec.slots,
        idle_seconds=spec.idle_seconds,
        lease_seconds=15,
        master=spec.spark_master,
        conf=spec.spark_conf,
        pod=replace(pod, allowance=allowance),
        secrets=kind_of(policy.spec.store).secrets(policy.spec.store),
    )


def pod_object(status: dict[str, Any], *, name: str = "logs-w-abcd-12345", **metadata: Any) -> dict[str, Any]:
    """A driver pod with this status, as a LIST returns it."""
    owner = {"kind": "CompactionPolicy", "name": "logs", "controller": True}
    return {
        "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]} | metadata,
        "spec": {"containers": [{"name": "worker", "ports": [{"containerPort": 4040}]}]},
        "status": status,
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """The status of a pod whose container waits for this reason."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "worker", "image": IMAGE, "state": state}]}


def terminated(code: int, *, reason: str = "Error", message: str = "", **status: Any) -> dict[str, Any]:
    """The status of a pod whose container ended like this."""
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    phase = "Succeeded" if code == 0 else "Failed"
    return {"phase": phase, "containerStatuses": [{"name": "worker", "state": state}]} | status


def of_spark(status: dict[str, Any]) -> dict[str, Any]:
    """The same of a driver pod that Spark's submission made: its container has a name of Spark's."""
    renamed = [item | {"name": "spark-kubernetes-driver"} for item in status.get("containerStatuses", ())]
    return status | ({"containerStatuses": renamed} if renamed else {})
