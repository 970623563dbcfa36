"""A worker as a SparkApplication of Kubeflow's operator, `sparkoperator.k8s.io/v1beta2`.

States and traps: docs/design/spark-applications.md.

Whatever concerns pods stands in pod templates, not in the fields that need that operator's mutating webhook. Labels
stand in both places: that operator copies the application's own over those of every template.
"""

import re
from collections.abc import Mapping
from typing import Final, TypeGuard

from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.api.names import EXECUTOR_SERVICE_ACCOUNT
from compaction.api.policy.workers import DriverSpec, ExecutorSpec
from compaction.kube.client.transport import KUBEFLOW_APPLICATIONS, Obj
from compaction.kube.launchers.applications import (
    MAIN_FILE,
    TTL_SECONDS,
    application,
    driver_of,
    failed,
    main_arguments,
    not_taken_up,
    pod_templates,
    seen,
    waiting_or_running,
)
from compaction.kube.launchers.base import WorkerObservation, WorkerPhase, WorkerRequest
from compaction.kube.launchers.pod_status import Sighting, ending_by_code
from compaction.kube.launchers.pods import (
    QUEUE_LABEL,
    SPARK_VERSION,
    PodRole,
    has_executors,
    heap_and_overhead,
    image_of,
    pods_of,
    spark_conf,
    ui_enabled,
)

WRITTEN_CONF: Final = frozenset(
    {
        *(f"spark.kubernetes.authenticate.{role}.serviceAccountName" for role in ("driver", "executor")),
        *(f"spark.kubernetes.authenticate{role}.{token}" for role in ("", ".driver", ".executor")
          for token in ("oauthToken", "oauthTokenFile")),
        *(f"spark.kubernetes{role}.container.image" for role in ("", ".driver", ".executor")),
        "spark.master",
        "spark.kubernetes.driver.master",
    }
)  # fmt: skip
"""Settings that their operator writes from fields of the application: its webhook refuses an application that has one
of them (2.5.2, internal/webhook/sparkconf_validator.go; a test sends each key through it).
"""
_QUEUED: Final = frozenset({"SUSPENDED", "SUSPENDING", "RESUMING"})
_WAITING: Final = frozenset({"SUBMITTED", "PENDING_RERUN", "INVALIDATING"})
_RUNNING: Final = frozenset({"RUNNING", "SUCCEEDING", "FAILING", "UNKNOWN"})
"""FAILING is not final: the driver's exit code is still to come."""
_FAILED: Final = frozenset({"SUBMISSION_FAILED", "FAILED"})
"""The first becomes the second at once, since applications of ours are never submitted again."""
_DRIVER_GONE: Final = "driver pod not found"
"""What their operator writes when the driver's pod has gone (internal/controller/sparkapplication/controller.go)."""
_LOST_ANSWER: Final = "driver pod already exist"
"""What it writes when an earlier submission has made the driver's pod (submission.go)."""
_EXIT_CODE: Final = re.compile(r"ExitCode: ([0-9]{1,3})\b")
SUBMIT_SECONDS: Final = 180.0
"""It forks one spark-submit per application, a few at a time: an application without a status may stand in line."""


def kubeflow_application(request: WorkerRequest) -> Obj:
    """The SparkApplication object. Raises LaunchError for what cannot be put together (image, sizes, template)."""
    pod = pods_of(request)
    workers = pod.workers
    image = image_of(workers)
    templates = pod_templates(request, image=image)
    spec: Obj = {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "image": image,
        "mainApplicationFile": MAIN_FILE,
        "arguments": main_arguments(request),
        "sparkConf": {key: value for key, value in spark_conf(request, image=image).items() if key not in WRITTEN_CONF},
        "restartPolicy": {"type": "Never"},
        "timeToLiveSeconds": TTL_SECONDS,
        "driver": _pods(request, PodRole.DRIVER, templates),
        "executor": _pods(request, PodRole.EXECUTOR, templates),
    }
    if workers.image_pull_policy is not None:
        spec["imagePullPolicy"] = workers.image_pull_policy.value
    if workers.image_pull_secrets:
        spec["imagePullSecrets"] = [secret.name for secret in workers.image_pull_secrets]
    if workers.dynamic_allocation is not None:
        spec["dynamicAllocation"] = {
            "enabled": True,
            "initialExecutors": max(workers.executor.instances, workers.dynamic_allocation.min_executors),
            "minExecutors": workers.dynamic_allocation.min_executors,
            "maxExecutors": workers.dynamic_allocation.max_executors,
        }
    found = application(request, KUBEFLOW_APPLICATIONS, spec)
    if workers.queue_name:
        # On the application, never on its pods: the queue would admit them twice.
        found["metadata"]["labels"][QUEUE_LABEL] = workers.queue_name
    return found


def _pods(request: WorkerRequest, role: PodRole, templates: Mapping[PodRole, Obj]) -> Obj:
    """The part of the application on the pods of a role: their sizes, account and template."""
    pod = pods_of(request)
    workers = pod.workers
    own: Obj = {}
    sizes: DriverSpec | ExecutorSpec = workers.driver
    memory, account = pod.memory, workers.service_account_name
    if role is PodRole.EXECUTOR:
        if not has_executors(workers):
            return {}  # fewer than one instance cannot be written; the driver's own master asks for none
        sizes, memory, account = workers.executor, pod.executor_memory, EXECUTOR_SERVICE_ACCOUNT
        own = {"deleteOnTermination": True} | ({"instances": sizes.instances} if sizes.instances else {})
    heap, overhead = heap_and_overhead(workers.spark_conf, role=role, memory=memory)
    found = {
        "cores": sizes.cores,
        "coreRequest": str(sizes.cpu),
        "memory": heap,
        "memoryOverhead": f"{overhead}m",
        "serviceAccount": account,
        "labels": templates[role]["metadata"]["labels"],
        "template": templates[role],
    }
    return found | own | ({"coreLimit": str(sizes.cpu_limit)} if sizes.cpu_limit is not None else {})


def observe_kubeflow(body: Obj, pod: Obj | None, since: Sighting) -> WorkerObservation:
    """Return what the application's status says about its worker (docs/design/spark-applications.md); pure."""
    status = body.get("status") or {}
    found = status.get("applicationState") or {}
    state, error = str(found.get("state") or ""), str(found.get("errorMessage") or "")
    driver = driver_of(body, pod, since)
    if not state and driver is None:
        return not_taken_up(body, since, KUBEFLOW_APPLICATIONS, limit=SUBMIT_SECONDS, busy=True)
    if state in _QUEUED:
        message = f"its SparkApplication is {state}: a queue or a user holds it back"
        return seen(
            body,
            since,
            WorkerPhase.PENDING,
            reason=state,
            message=message,
            trouble=WorkerTrouble.QUEUED,
            leaving=True,
        )
    if state in _WAITING or state in _RUNNING:
        return waiting_or_running(body, since, driver, running=state in _RUNNING, reason=state, ui=_ui(body, status))
    if state == "COMPLETED":
        return seen(body, since, WorkerPhase.SUCCEEDED, reason=state, ending=WorkerEnding.COMPLETED)
    if state in _FAILED:
        # Their operator says FAILED also of what it never could submit; only a submission counts as an attempt.
        submitted = state == "FAILED" and bool(status.get("executionAttempts"))
        if not submitted and _was_submitted_before(driver, error):
            return driver
        ending = _ending(error) if submitted else WorkerEnding.FAILED
        return failed(body, since, driver, reason=state, message=error, ending=ending)
    # A state of a later release: whatever it means, it is no end that we may act upon.
    return waiting_or_running(body, since, driver, running=False, reason=state)


def _was_submitted_before(driver: WorkerObservation | None, error: str) -> TypeGuard[WorkerObservation]:
    """Return whether the driver is the work of an earlier submission, whose answer was lost: the next one is refused
    because of its pod. What still waits after another error is half of what this submission was to make, and never
    starts.
    """
    if driver is None or driver.ended:
        return False
    return driver.phase is WorkerPhase.RUNNING or _LOST_ANSWER in error


def _ending(error: str) -> WorkerEnding:
    """Return the ending of a driver whose pod is not there to be asked. Of an application that was never submitted the
    message is spark-submit's, in which any word may stand.
    """
    if "OOMKilled" in error:
        return WorkerEnding.OUT_OF_MEMORY
    if "evicted" in error.lower() or "preempt" in error.lower():
        return WorkerEnding.DISRUPTED
    if error == _DRIVER_GONE:
        return WorkerEnding.DELETED
    code = _EXIT_CODE.search(error)
    return ending_by_code(int(code[1]) if code is not None else None)


def _ui(body: Obj, status: Obj) -> str:
    if not ui_enabled(body["spec"].get("sparkConf") or {}):
        return ""
    info = status.get("driverInfo") or {}
    address = str(info.get("webUIIngressAddress") or info.get("webUIAddress") or "")
    return address if "://" in address or not address else f"http://{address}"
