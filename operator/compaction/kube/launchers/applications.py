"""The common part of workers as SparkApplications, whichever Spark operator runs them.

The application is one attempt: created and deleted, never changed (Kubeflow's operator would run a changed one again),
never restarted by their operator (restarts are ours to decide), and gone by itself at last should we be.
"""

from dataclasses import replace
from typing import Final

from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.api.names import ANNOTATION_DRIVER_MEMORY, ANNOTATION_EXECUTOR_MEMORY
from compaction.kube.client.transport import Obj, Resource
from compaction.kube.launchers.base import WorkerObservation, WorkerPhase, WorkerRequest
from compaction.kube.launchers.pod_status import (
    Sighting,
    is_being_deleted,
    last_words,
    memory_of,
    observe_pod,
    policy_of,
)
from compaction.kube.launchers.pods import (
    DRIVER_CONTAINER,
    EXECUTOR_CONTAINER,
    PodRole,
    has_executors,
    local_master,
    memory_annotations,
    metadata_of,
    object_labels,
    owner_of,
    pod_spec,
    pods_of,
    worker_arguments,
)

MAIN_FILE: Final = "local:///opt/compaction/worker.py"
SILENT_SECONDS: Final = 60.0
"""An application without a status after so long has no operator that handles it, unless its backend knows better."""
TTL_SECONDS: Final = 4200
"""Ended applications are deleted by us; should we be gone, their operator does it after so long."""


def application(request: WorkerRequest, kind: Resource, spec: Obj) -> Obj:
    """The SparkApplication of a request: the name, labels and owner that all of them have, and its spec."""
    metadata = {
        "name": request.name,
        "namespace": request.policy.namespace,
        "labels": object_labels(request),
        "annotations": memory_annotations(request),
        "ownerReferences": owner_of(request),
    }
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


def pod_templates(request: WorkerRequest, *, image: str) -> dict[PodRole, Obj]:
    """The templates of driver and executor pods. Raises LaunchError when the user's cannot be merged."""
    containers = {PodRole.DRIVER: DRIVER_CONTAINER, PodRole.EXECUTOR: EXECUTOR_CONTAINER}
    return {
        role: {
            "metadata": metadata_of(request, role),
            "spec": pod_spec(request, role, image=image, container=container),
        }
        for role, container in containers.items()
    }


def main_arguments(request: WorkerRequest) -> list[str]:
    """The main file's arguments. A driver without executors says so itself: their operator always says k8s://."""
    workers = pods_of(request).workers
    alone = [] if has_executors(workers) else ["--master", local_master(workers)]
    return [*worker_arguments(request), *alone, "--log-format", "json"]


def seen(
    body: Obj,
    since: Sighting,
    phase: WorkerPhase,
    *,
    reason: str,
    message: str = "",
    trouble: WorkerTrouble | None = None,
    ending: WorkerEnding | None = None,
    ui: str = "",
    waited: float = 0.0,
    leaving: bool = False,
) -> WorkerObservation:
    """The observation of an application's worker."""
    return WorkerObservation(
        name=body["metadata"]["name"],
        policy=policy_of(body),
        phase=phase,
        started=since.started,
        reason=reason,
        message=message,
        trouble=trouble,
        ending=ending,
        ui=ui,
        memory=memory_of(body, ANNOTATION_DRIVER_MEMORY),
        executor_memory=memory_of(body, ANNOTATION_EXECUTOR_MEMORY),
        waited=waited,
        leaving=leaving or is_being_deleted(body),
    )


def not_taken_up(
    body: Obj, since: Sighting, kind: Resource, *, limit: float = SILENT_SECONDS, busy: bool = False
) -> WorkerObservation:
    """An application without a status: young, or no operator handles it. `busy`: its operator may still be
    submitting.
    """
    if since.age <= limit:
        return seen(body, since, WorkerPhase.PENDING, reason="New", waited=since.age)
    metadata = body["metadata"]
    submitting = ", or is still submitting others" if busy else ""
    message = (
        f"no operator has handled {kind.kind} {metadata['namespace']}/{metadata['name']} ({kind.api_version}) within "
        f"{limit:.0f} s: its Spark operator does not run, does not watch this namespace{submitting}. Fix that, or set "
        "spec.workers.launcher to pod"
    )
    return seen(
        body,
        since,
        WorkerPhase.PENDING,
        reason="NoStatus",
        message=message,
        trouble=WorkerTrouble.OPERATOR_SILENT,
        waited=limit,
    )


def driver_of(body: Obj, pod: Obj | None, since: Sighting) -> WorkerObservation | None:
    """Return what the driver pod says, where it is seen: it knows more of waiting and ending than the application."""
    return observe_pod(pod, since, about=body, container=DRIVER_CONTAINER) if pod is not None else None


def left_behind(body: Obj, pod: Obj | None, worker: WorkerObservation) -> tuple[str, str] | None:
    """Name and uid of the driver pod, owned by its application, that has not ended although its worker has failed."""
    if pod is None or worker.phase is not WorkerPhase.FAILED or is_being_deleted(pod):
        return None
    if all(owner.get("uid") != body["metadata"]["uid"] for owner in pod["metadata"].get("ownerReferences") or ()):
        return None
    driver = driver_of(body, pod, Sighting(worker.started, 0.0))
    return (pod["metadata"]["name"], pod["metadata"]["uid"]) if driver is not None and not driver.ended else None


def waiting_or_running(
    body: Obj, since: Sighting, driver: WorkerObservation | None, *, running: bool, reason: str, ui: str = ""
) -> WorkerObservation:
    """An application that goes on, by its own status. A driver pod that still waits says for what; one that has ended
    is final, since it is never restarted: its operator may be away, and then the application never says so.
    """
    if driver is not None and driver.phase is not WorkerPhase.RUNNING:
        return driver
    if driver is not None:
        return replace(driver, reason=reason, ui=ui)
    phase = WorkerPhase.RUNNING if running else WorkerPhase.PENDING
    return seen(body, since, phase, reason=reason, ui=ui)


def failed(
    body: Obj, since: Sighting, driver: WorkerObservation | None, *, reason: str, message: str, ending: WorkerEnding
) -> WorkerObservation:
    """An application that failed: as its driver pod says, where that has ended and is seen; else by `message`."""
    if driver is not None and driver.phase is WorkerPhase.FAILED:
        return driver
    return seen(body, since, WorkerPhase.FAILED, reason=reason, message=last_words(message), ending=ending)
