"""The pods of a worker as plain objects: what driver and executors have in common, with every launcher.

They satisfy PodSecurity `restricted` and run on a read-only root: whatever Spark writes goes to an emptyDir. The driver
may talk to the API server (its Leases, and its executors); executors may not.
"""

from collections.abc import Mapping
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
from compaction.api.policy.pods import Toleration
from compaction.api.policy.workers import WorkersSpec
from compaction.errors import CONFIG_MAP
from compaction.kube.client.resources import Obj
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.base import PodRequest, WorkerRequest
from compaction.kube.launchers.baseline import check_pod
from compaction.kube.launchers.templates import with_user_template
from compaction.storage.secrets import MOUNTED_AT

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


class Role(StrEnum):
    """The two kinds of pods of a worker."""

    DRIVER = "driver"
    EXECUTOR = "executor"


def pods_of(request: WorkerRequest) -> PodRequest:
    """What the request says about pods. Raises LaunchError when it says nothing: then it is for another launcher."""
    if request.pod is None:
        raise LaunchError(f"worker {request.name} cannot be started in a pod: nothing is said about its pods")
    return request.pod


def has_executors(workers: WorkersSpec) -> bool:
    """True when tasks run in executor pods; else the driver runs them itself."""
    return workers.executor.instances > 0 or workers.dynamic_allocation is not None


def image_of(workers: WorkersSpec, default: str) -> str:
    """The image of the pods. Raises LaunchError when neither the policy nor the installation names one."""
    if not (image := workers.image or default):
        raise LaunchError(
            "no image is known for workers: set spec.workers.image, or COMPACTION_WORKER_IMAGE of the operator"
        )
    return image


def labels_of(request: WorkerRequest, role: Role) -> dict[str, str]:
    """Labels of a pod: the user's, and ours above them."""
    component = COMPONENT_WORKER if role is Role.DRIVER else COMPONENT_EXECUTOR
    ours = pod_labels(policy=request.policy.name, worker=request.name, component=component, role=role.value)
    return {**pods_of(request).workers.pod_template.metadata.labels, **ours}


def object_labels(request: WorkerRequest) -> dict[str, str]:
    """Labels of the one object that stands for the worker."""
    return pod_labels(
        policy=request.policy.name, worker=request.name, component=COMPONENT_WORKER, role=Role.DRIVER.value
    )


def owner_of(request: WorkerRequest) -> list[Obj]:
    """The policy owns its workers: when it goes, so do they."""
    owner = {"apiVersion": OUR_API_VERSION, "kind": POLICY_KIND, "name": request.policy.name}
    return [owner | {"uid": pods_of(request).owner_uid, "controller": True, "blockOwnerDeletion": False}]


def memory_annotations(request: WorkerRequest) -> dict[str, str]:
    """What the object that stands for the worker remembers: more is given next time, if that was too little."""
    pod = pods_of(request)
    executors = {ANNOTATION_EXECUTOR_MEMORY: str(pod.executor_memory)} if has_executors(pod.workers) else {}
    return {ANNOTATION_DRIVER_MEMORY: str(pod.memory), **executors}


def metadata_of(request: WorkerRequest, role: Role) -> Obj:
    """Labels and annotations of a pod, without its name."""
    pod = pods_of(request)
    annotations = dict(pod.workers.pod_template.metadata.annotations)
    if role is Role.DRIVER:
        annotations |= memory_annotations(request)
    metadata: Obj = {"labels": labels_of(request, role)}
    return metadata | {"annotations": annotations} if annotations else metadata


def pod_spec(request: WorkerRequest, role: Role, *, image: str, container: str, extra: Obj | None = None) -> Obj:
    """The pod's specification, the user's template merged in. `extra` are members of the container that runs Spark.

    Raises LaunchError when the user's template cannot be merged, and for what the installation does not allow.
    """
    pod = pods_of(request)
    workers = pod.workers
    secrets = request.secrets.driver if role is Role.DRIVER else request.secrets.tasks
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
        worker["envFrom"] = [{"secretRef": {"name": one.name}} for one in workers.env_from_secrets]
    is_driver = role is Role.DRIVER
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
        spec["tolerations"] = [_toleration(one) for one in workers.tolerations]
    if workers.priority_class_name:
        spec["priorityClassName"] = workers.priority_class_name
    if workers.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": one.name} for one in workers.image_pull_secrets]
    return spec


def _toleration(one: Toleration) -> Obj:
    return {key: value for key, value in one.to_object().items() if value != ""}
