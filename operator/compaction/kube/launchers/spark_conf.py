"""Spark's settings for workers in pods, as plain text: defaults, then the policy's own, then what has to be as it is.

Names and meanings: Spark's "Running on Kubernetes" and "Configuration" pages, release 4.3.
"""

import re
from collections.abc import Mapping
from typing import Final

from compaction.api.names import EXECUTOR_SERVICE_ACCOUNT
from compaction.api.policy.workers import WorkersSpec
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.base import PodRequest, WorkerRequest
from compaction.kube.launchers.pods import has_executors, pods_of

SPARK_VERSION: Final = "4.3.0"
IN_CLUSTER_MASTER: Final = "k8s://in-cluster"
"""Executors in the cluster whose pod the driver is; `compactor worker` puts the API server's address in: a name would
need DNS, and a variable of the kubelet's has no brackets where IPv6 needs them.
"""
HEAP: Final = "512m"
"""The JVM's heap, unless the policy says otherwise: data never passes through the JVM, Spark starts with no less."""
LEAST_OVERHEAD_MIB: Final = 256
DRIVER_PORT: Final = 7078
DATA_PORT: Final = 7079
UI_PORT: Final = 4040
_TASK_FAILURES: Final = 4
"""After so many failures of one task Spark fails its job (spark.task.maxFailures)."""
_MIB: Final = 1 << 20
_SIZE: Final = re.compile(r"([0-9]+)\s*(b|k|kb|m|mb|g|gb|t|tb)?", re.IGNORECASE)
_TO_MIB: Final = {"b": 1 / _MIB, "k": 1 / 1024, "": 1.0, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024.0}


def local_master(workers: WorkersSpec) -> str:
    """The master of a driver that runs all tasks itself."""
    return f"local[{workers.driver.cores}]"


def heap_and_overhead(conf: Mapping[str, str], *, role: str, memory: int) -> tuple[str, int]:
    """The heap as Spark writes it, and the MiB of the pod's `memory` (bytes) that are left for everything else.

    Raises LaunchError when the heap that the policy asks for does not fit.
    """
    key = f"spark.{role}.memory"
    heap = conf.get(key, HEAP)
    found = _SIZE.fullmatch(heap.strip())
    if found is None:
        raise LaunchError(f"spec.workers.sparkConf.{key} is {heap!r}: write a size such as 512m or 2g")
    overhead = memory // _MIB - round(int(found[1]) * _TO_MIB[(found[2] or "")[:1].lower()])
    if overhead < LEAST_OVERHEAD_MIB:
        raise LaunchError(
            f"spec.workers.sparkConf.{key} ({heap}) does not fit into spec.workers.{role}.memory "
            f"({memory // _MIB} MiB) with {LEAST_OVERHEAD_MIB} MiB for Python: raise the one or lower the other"
        )
    return heap, overhead


def spark_conf(request: WorkerRequest, *, image: str) -> dict[str, str]:
    """The settings that hold for every backend. Raises LaunchError when sizes do not fit together."""
    pod = pods_of(request)
    workers = pod.workers
    defaults = {"spark.ui.port": str(UI_PORT)}
    if workers.event_log_dir:
        defaults |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": workers.event_log_dir}
    heap, _ = heap_and_overhead(workers.spark_conf, role="driver", memory=pod.memory)
    required = {"spark.driver.memory": heap}
    if has_executors(workers):
        defaults |= _executor_defaults(workers)
        required |= _executors(request, pod, image=image)
    return {**defaults, **workers.spark_conf, **required}


def _executor_defaults(workers: WorkersSpec) -> dict[str, str]:
    most = max(
        workers.executor.instances, workers.dynamic_allocation.max_executors if workers.dynamic_allocation else 0
    )
    return {
        # Before all executors have come, Spark would count too few cores, for good.
        "spark.default.parallelism": str(most * workers.executor.cores),
        # An executor whose node is drained takes no new tasks, and its running ones are not held against the job.
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "false",
        # A task that its executors cannot hold fails its job, which says why, before Spark gives up the application.
        "spark.executor.maxNumFailures": str(_TASK_FAILURES * (most + 1)),
        "spark.kubernetes.executor.deleteOnTermination": "true",
        "spark.kubernetes.executor.enablePollingWithResourceVersion": "true",
    }


def _executors(request: WorkerRequest, pod: PodRequest, *, image: str) -> dict[str, str]:
    workers, executor = pod.workers, pod.workers.executor
    heap, overhead = heap_and_overhead(workers.spark_conf, role="executor", memory=pod.executor_memory)
    conf = {
        "spark.executor.memory": heap,
        "spark.executor.memoryOverhead": f"{overhead}m",
        "spark.executor.cores": str(executor.cores),
        "spark.kubernetes.executor.request.cores": str(executor.cpu),
        "spark.kubernetes.namespace": request.policy.namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.executor.podNamePrefix": request.name,
        "spark.kubernetes.authenticate.executor.serviceAccountName": EXECUTOR_SERVICE_ACCOUNT,
        # Nothing but pods is made by a driver, so a driver needs no other permission.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(DATA_PORT),
        "spark.blockManager.port": str(DATA_PORT),
    }
    if workers.image_pull_policy is not None:
        conf["spark.kubernetes.container.image.pullPolicy"] = workers.image_pull_policy.value
    if executor.cpu_limit is not None:
        conf["spark.kubernetes.executor.limit.cores"] = str(executor.cpu_limit)
    return conf | _numbers(workers)


def _numbers(workers: WorkersSpec) -> dict[str, str]:
    dynamic = workers.dynamic_allocation
    if dynamic is None:
        return {"spark.executor.instances": str(workers.executor.instances)}
    return {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(dynamic.min_executors),
        "spark.dynamicAllocation.maxExecutors": str(dynamic.max_executors),
        "spark.dynamicAllocation.initialExecutors": str(max(workers.executor.instances, dynamic.min_executors)),
        "spark.dynamicAllocation.executorIdleTimeout": f"{dynamic.idle_seconds}s",
    }


def ui_enabled(conf: Mapping[str, str]) -> bool:
    """True when the policy asks for Spark's web page (by default it is off: it costs memory and a port)."""
    return conf.get("spark.ui.enabled", "false").lower() == "true"


def worker_arguments(request: WorkerRequest) -> list[str]:
    """What `compactor worker` has to know, without Spark's master and settings."""
    return [
        *("--namespace", request.policy.namespace, "--policy", request.policy.name, "--name", request.name),
        *("--slots", str(request.slots), "--idle-seconds", f"{request.idle_seconds:g}"),
        *("--lease-seconds", str(request.lease_seconds)),
    ]
