"""Pods of a worker as plain objects: what driver and executors have in common, Spark's settings, a user's template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from compaction.api.names import (
    ANNOTATION_DRIVER_MEMORY,
    ANNOTATION_EXECUTOR_MEMORY,
    COMPONENT_EXECUTOR,
    COMPONENT_WORKER,
    EXECUTOR_SERVICE_ACCOUNT,
    POLICY_KIND,
    pod_labels,
)
from compaction.api.names import API_VERSION as OUR_API_VERSION
from compaction.api.policy.workers import WorkersSpec
from compaction.errors import CONFIG_MAP
from compaction.kube.client.transport import Obj
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.base import PodRequest, WorkerRequest, check_pod
from compaction.storage.secrets import MOUNTED_AT

# A user's pod template merged into ours: nothing of either is lost, and where both speak the user's word counts.
#
# The rules are those of a strategic merge where it matters: maps by key; containers by name, recursively; volumes,
# variables and mounts by their key, as wholes (two kinds of source in one would be refused); tolerations and the like
# are added up; any other list is replaced.

WORKER_CONTAINER: Final = "worker"
"""What a user's template calls the container that runs Spark, whatever a backend calls it."""
DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
"""What Spark and both Spark operators call the containers they look for."""

_MERGED: Final = {"containers": "name", "initContainers": "name"}
_KEYED: Final = {
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ports": "containerPort",
    "hostAliases": "ip",
}
_ADDED: Final = frozenset({"tolerations", "envFrom", "topologySpreadConstraints", "supplementalGroups"})
_WHERE: Final = "spec.workers.podTemplate.spec"


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, where: str = _WHERE) -> Obj:
    """`ours` with `theirs` merged in, as new objects. Raises LaunchError naming a member of another form than ours."""
    result: Obj = {**ours}
    for key, value in theirs.items():
        path = f"{where}.{key}"
        if key in _MERGED or key in _KEYED or key in _ADDED:
            result[key] = _merged_list(key, result.get(key) or [], value, where=path)
        elif isinstance(result.get(key), Mapping):
            if not isinstance(value, Mapping):
                raise LaunchError(f"{path} must be an object, with members of its own")
            result[key] = merged(result[key], value, where=path)
        else:
            result[key] = value
    return result


def _merged_list(key: str, ours: Sequence[Any], theirs: Any, *, where: str) -> list[Any]:
    if not isinstance(theirs, list):
        raise LaunchError(f"{where} must be a list")
    if key in _ADDED:
        return [*ours, *(item for item in theirs if item not in ours)]
    name = _MERGED.get(key) or _KEYED[key]
    found = {item[name]: item for item in ours}
    for number, item in enumerate(theirs):
        here = f"{where}[{number}]"
        if not isinstance(item, Mapping) or not isinstance(item.get(name), str | int):
            raise LaunchError(f"{here} must be an object with {name}")
        known = found.get(item[name])
        found[item[name]] = merged(known, item, where=here) if known is not None and key in _MERGED else dict(item)
    return list(found.values())


def with_user_template(spec: Obj, theirs: Mapping[str, Any], *, container: str) -> Obj:
    """Our pod specification (its first container runs Spark) with the user's merged in; the container is named
    `container` in the end, and stays the first.
    """
    ours = {**spec, "containers": [{**spec["containers"][0], "name": WORKER_CONTAINER}, *spec["containers"][1:]]}
    result = merged(ours, theirs)
    first, *others = result["containers"]
    # What is run is not the template's to say: a worker that runs something else announces itself to nobody.
    kept = {key: ours["containers"][0][key] for key in ("command", "args") if key in ours["containers"][0]}
    first = {key: value for key, value in first.items() if key not in ("command", "args")} | kept
    return result | {"containers": [first | {"name": container}, *others]}


# The pods of a worker as plain objects: what driver and executors have in common, with every launcher.
#
# They satisfy PodSecurity `restricted` and run on a read-only root: whatever Spark writes goes to an emptyDir. The
# driver may talk to the API server (its Leases, and its executors); executors may not.

SCRATCH: Final = {"tmp": "/tmp", "work-dir": "/opt/spark/work-dir"}
"""Where a worker writes: volumes by name, and the paths at which they are mounted."""
STORE_VOLUME: Final = "logs"
POD_SECURITY: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True,
    # The operator's: both write in the logs, and each deletes what the other has made.
    "runAsUser": 185,
    "runAsGroup": 0,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
GRACE_SECONDS: Final = 30


class PodRole(StrEnum):
    """The two kinds of pods of a worker."""

    DRIVER = "driver"
    EXECUTOR = "executor"


def pods_of(request: WorkerRequest) -> PodRequest:
    """Return what the request says about pods. Raises LaunchError when it says nothing: then it is for another
    launcher.
    """
    if request.pod is None:
        raise LaunchError(f"worker {request.name} cannot be started in a pod: nothing is said about its pods")
    return request.pod


def has_executors(workers: WorkersSpec) -> bool:
    """True when tasks run in executor pods; else the driver runs them itself."""
    return workers.executor.instances > 0 or workers.dynamic_allocation is not None


def image_of(workers: WorkersSpec) -> str:
    """The image of the pods. Raises LaunchError when neither the policy nor the installation names one."""
    if not workers.image:
        raise LaunchError(
            "no image is known for workers: set spec.workers.image, or defaults.workers.image in the operator's "
            "configuration"
        )
    return workers.image


def labels_of(request: WorkerRequest, role: PodRole) -> dict[str, str]:
    """Labels of a pod: the user's, and ours above them."""
    component = COMPONENT_WORKER if role is PodRole.DRIVER else COMPONENT_EXECUTOR
    ours = pod_labels(policy=request.policy.name, worker=request.name, component=component, role=role.value)
    return {**pods_of(request).workers.pod_template.metadata.labels, **ours}


def object_labels(request: WorkerRequest) -> dict[str, str]:
    """Labels of the one object that stands for the worker."""
    return pod_labels(
        policy=request.policy.name, worker=request.name, component=COMPONENT_WORKER, role=PodRole.DRIVER.value
    )


def owner_of(request: WorkerRequest) -> list[Obj]:
    """The policy owns its workers: when it goes, so do they."""
    owner = {"apiVersion": OUR_API_VERSION, "kind": POLICY_KIND, "name": request.policy.name}
    return [owner | {"uid": pods_of(request).owner_uid, "controller": True, "blockOwnerDeletion": False}]


def memory_annotations(request: WorkerRequest) -> dict[str, str]:
    """Return what the object that stands for the worker remembers: more is given next time, if that was too little."""
    pod = pods_of(request)
    executors = {ANNOTATION_EXECUTOR_MEMORY: str(pod.executor_memory)} if has_executors(pod.workers) else {}
    return {ANNOTATION_DRIVER_MEMORY: str(pod.memory), **executors}


def metadata_of(request: WorkerRequest, role: PodRole) -> Obj:
    """Labels and annotations of a pod, without its name."""
    pod = pods_of(request)
    annotations = dict(pod.workers.pod_template.metadata.annotations)
    if role is PodRole.DRIVER:
        annotations |= memory_annotations(request)
    metadata: Obj = {"labels": labels_of(request, role)}
    return metadata | {"annotations": annotations} if annotations else metadata


def pod_spec(request: WorkerRequest, role: PodRole, *, image: str, container: str, extra: Obj | None = None) -> Obj:
    """The pod's specification, the user's template merged in. `extra` are members of the container that runs Spark.

    Raises LaunchError when the user's template cannot be merged, and for what the installation does not allow.
    """
    pod = pods_of(request)
    workers = pod.workers
    secrets = request.secrets.driver if role is PodRole.DRIVER else request.secrets.tasks
    volumes, mounts = _volumes(pod, secrets)
    worker: Obj = {
        "name": container,
        "image": image,
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": mounts,
        # The end of the log is in the pod's status then: the operator needs no permission to read logs.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"imagePullPolicy": workers.image_pull_policy.value} if workers.image_pull_policy else {}),
    }
    if workers.env_from_secrets:
        worker["envFrom"] = [{"secretRef": {"name": secret.name}} for secret in workers.env_from_secrets]
    is_driver = role is PodRole.DRIVER
    spec: Obj = {
        "restartPolicy": "Never",
        "serviceAccountName": workers.service_account_name if is_driver else EXECUTOR_SERVICE_ACCOUNT,
        "automountServiceAccountToken": is_driver,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": dict(POD_SECURITY),
        "containers": [worker | (extra or {})],
        "volumes": volumes,
        **_placement(workers),
    }
    result = with_user_template(spec, workers.pod_template.spec, container=container)
    accounts = pod.allowance.accounts if is_driver else {EXECUTOR_SERVICE_ACCOUNT}
    check_pod(result, pod.allowance, accounts=accounts, annotations=workers.pod_template.metadata.annotations)
    return result


def resources(*, memory: int | None, cpu: str, cpu_limit: str | None) -> Obj:
    """A container's resources; memory (bytes) is requested and the limit at once, so that its use is never a surprise
    to the node.
    """
    amounts = {"memory": str(memory)} if memory is not None else {}
    limits = amounts | ({"cpu": cpu_limit} if cpu_limit is not None else {})
    return {"requests": amounts | {"cpu": cpu}, "limits": limits}


def _volumes(pod: PodRequest, secrets: tuple[str, ...]) -> tuple[list[Obj], list[Obj]]:
    volumes: list[Obj] = [{"name": name, "emptyDir": {}} for name in SCRATCH]
    mounts: list[Obj] = [{"name": name, "mountPath": path} for name, path in SCRATCH.items()]
    if pod.volume is not None:
        volumes.append({"name": STORE_VOLUME, "persistentVolumeClaim": {"claimName": pod.volume.claim_name}})
        mount = {"name": STORE_VOLUME, "mountPath": pod.volume.path}
        mounts.append(mount | ({"subPath": pod.volume.sub_path} if pod.volume.sub_path else {}))
    for number, name in enumerate(secrets):
        source = {"secret": {"secretName": name}}
        if name.startswith(CONFIG_MAP):
            source = {"configMap": {"name": name.removeprefix(CONFIG_MAP)}}
        volumes.append({"name": f"store-secret-{number}", **source})
        mount = {"name": f"store-secret-{number}", "mountPath": f"{MOUNTED_AT}/{name}"}
        mounts.append(mount | {"readOnly": True})
    for number, secret in enumerate(pod.workers.secret_volumes):
        volumes.append({"name": f"secret-{number}", "secret": {"secretName": secret.secret_name}})
        mounts.append({"name": f"secret-{number}", "mountPath": secret.mount_path, "readOnly": True})
    return volumes, mounts


def _placement(workers: WorkersSpec) -> Obj:
    spec: Obj = {}
    if workers.node_selector:
        spec["nodeSelector"] = dict(workers.node_selector)
    if workers.tolerations:
        spec["tolerations"] = [
            {key: value for key, value in toleration.to_object().items() if value != ""}
            for toleration in workers.tolerations
        ]
    if workers.priority_class_name:
        spec["priorityClassName"] = workers.priority_class_name
    if workers.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in workers.image_pull_secrets]
    return spec


# Spark's settings for workers in pods, as plain text: defaults, then the policy's own, then what has to be as it is.
#
# Names and meanings: Spark's "Running on Kubernetes" and "Configuration" pages, release 4.3.

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
    """Return the arguments that `compactor worker` needs, without Spark's master and settings."""
    return [
        *("--namespace", request.policy.namespace, "--policy", request.policy.name, "--name", request.name),
        *("--slots", str(request.slots), "--idle-seconds", f"{request.idle_seconds:g}"),
        *("--lease-seconds", str(request.lease_seconds)),
    ]
