"""A worker as a driver pod that the operator makes itself: no Spark operator, no submission.

The pod runs `compactor worker` in client mode: it *is* the driver. Without executors it runs all tasks itself and asks
the API server for nothing but its Leases. With executors it creates their pods; their template travels in an annotation
of the driver pod and is a file in it, so that no ConfigMap has to be made and cleaned up. Executors are owned by the
driver pod (spark.kubernetes.driver.pod.name): when it goes, they go.
"""

import json
from typing import Final

from compaction.api.names import ANNOTATION_EXECUTOR_TEMPLATE
from compaction.kube.client.transport import Obj
from compaction.kube.launchers.base import WorkerRequest
from compaction.kube.launchers.pods import (
    DATA_PORT,
    DRIVER_PORT,
    EXECUTOR_CONTAINER,
    IN_CLUSTER_MASTER,
    QUEUE_LABEL,
    UI_PORT,
    WORKER_CONTAINER,
    PodRole,
    has_executors,
    image_of,
    local_master,
    metadata_of,
    owner_of,
    pod_spec,
    pods_of,
    resources,
    spark_conf,
    ui_enabled,
    worker_arguments,
)

TEMPLATE_DIRECTORY: Final = "/etc/compaction"
_TEMPLATE_FILE: Final = "executor.json"


def driver_pod(request: WorkerRequest) -> Obj:
    """The Pod object. Raises LaunchError for what cannot be put together (image, sizes, template)."""
    pod = pods_of(request)
    workers = pod.workers
    image = image_of(workers)
    distributed = has_executors(workers)
    conf = spark_conf(request, image=image) | (_client_mode() if distributed else {})
    extra: Obj = {
        "args": _command(request, conf, master=IN_CLUSTER_MASTER if distributed else local_master(workers)),
        "resources": resources(
            memory=pod.memory,
            cpu=str(workers.driver.cpu),
            cpu_limit=str(workers.driver.cpu_limit) if workers.driver.cpu_limit is not None else None,
        ),
        "env": [_from_pod("POD_NAME", "metadata.name"), _from_pod("POD_IP", "status.podIP")],
        "ports": _ports(distributed=distributed, ui=ui_enabled(conf)),
    }
    spec = pod_spec(request, PodRole.DRIVER, image=image, container=WORKER_CONTAINER, extra=extra)
    metadata = metadata_of(request, PodRole.DRIVER)
    if workers.queue_name:
        metadata["labels"][QUEUE_LABEL] = workers.queue_name
    # Executors are made by Spark in the driver, which reads their template from its own pod.
    if distributed:
        spec = _with_executor_template(spec)
        template = json.dumps(executor_template(request, image=image), separators=(",", ":"))
        metadata["annotations"][ANNOTATION_EXECUTOR_TEMPLATE] = template
    metadata |= {"name": request.name, "namespace": request.policy.namespace, "ownerReferences": owner_of(request)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def executor_template(request: WorkerRequest, *, image: str) -> Obj:
    """The pod template of executors: Spark adds its command, resources, ports and local directories."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata_of(request, PodRole.EXECUTOR),
        "spec": pod_spec(request, PodRole.EXECUTOR, image=image, container=EXECUTOR_CONTAINER),
    }


def _client_mode() -> dict[str, str]:
    # The kubelet puts the variables in.
    return {
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "$(POD_IP)",
        "spark.kubernetes.executor.podTemplateFile": f"{TEMPLATE_DIRECTORY}/{_TEMPLATE_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
    }


def _command(request: WorkerRequest, conf: dict[str, str], *, master: str) -> list[str]:
    ours = _client_mode()
    command = ["compactor", "worker", *worker_arguments(request), "--master", master, "--log-format", "json"]
    for key, value in sorted(conf.items()):
        # A value of the user's that looks like a variable of the kubelet's is none.
        written = value if ours.get(key) == value else value.replace("$(", "$$(")
        command += ["--conf", f"{key}={written}"]
    return command


def _ports(*, distributed: bool, ui: bool) -> list[Obj]:
    ports = [("driver-rpc", DRIVER_PORT), ("blockmanager", DATA_PORT)] if distributed else []
    ports += [("spark-ui", UI_PORT)] if ui else []
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports]


def _from_pod(name: str, field: str) -> Obj:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _with_executor_template(spec: Obj) -> Obj:
    item = {
        "path": _TEMPLATE_FILE,
        "fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION_EXECUTOR_TEMPLATE}']"},
    }
    volume = {"name": "executor-template", "downwardAPI": {"items": [item]}}
    mount = {"name": "executor-template", "mountPath": TEMPLATE_DIRECTORY, "readOnly": True}
    first, *others = spec["containers"]
    first = first | {"volumeMounts": [*first["volumeMounts"], mount]}
    return spec | {"containers": [first, *others], "volumes": [*spec["volumes"], volume]}
