"""A worker as a SparkApplication of Apache's operator (`spark.apache.org/v1`; docs/design/spark-applications.md).

That operator moves on from Succeeded to ResourceReleased within seconds, and from there nothing can be read but the
history: what was the last state that says how it ended is looked up in `status.stateTransitionHistory`.
"""

from collections.abc import Mapping
from typing import Any, Final

from compaction.api.enums import WorkerEnding
from compaction.kube.client.transport import APACHE_APPLICATIONS, Obj
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
from compaction.kube.launchers.pod_status import Sighting, last_words, observe_pod
from compaction.kube.launchers.pods import (
    DRIVER_CONTAINER,
    EXECUTOR_CONTAINER,
    QUEUE_LABEL,
    SPARK_VERSION,
    PodRole,
    heap_and_overhead,
    image_of,
    pods_of,
    spark_conf,
)

_RUNNING: Final = frozenset(
    {
        "DriverStarted",
        "DriverReady",
        "InitializedBelowThresholdExecutors",
        "RunningHealthy",
        "RunningWithPartialCapacity",
        "RunningWithBelowThresholdExecutors",
    }
)
_FAILED: Final = frozenset(
    {"Failed", "DriverStartTimedOut", "DriverReadyTimedOut", "ExecutorsStartTimedOut", "SchedulingFailure"}
)
_SAY_NOTHING: Final = frozenset({"ResourceReleased", "TerminatedWithoutReleaseResources"})
"""Terminal, and silent about success."""
_DAY_MILLIS: Final = 86_400_000
_RETAINED_MILLIS: Final = 900_000


def apache_application(request: WorkerRequest) -> Obj:
    """The SparkApplication object. Raises LaunchError for what cannot be put together (image, sizes, template)."""
    workers = pods_of(request).workers
    image = image_of(workers)
    templates = pod_templates(request, image=image)
    if workers.queue_name:
        templates[PodRole.DRIVER]["metadata"]["labels"][QUEUE_LABEL] = workers.queue_name
    spec: Obj = {
        "runtimeVersions": {"sparkVersion": SPARK_VERSION},
        "deploymentMode": "ClusterMode",
        "pyFiles": MAIN_FILE,
        "driverArgs": main_arguments(request),
        "sparkConf": _conf(request, image=image),
        "driverSpec": {"podTemplateSpec": templates[PodRole.DRIVER]},
        "executorSpec": {"podTemplateSpec": templates[PodRole.EXECUTOR]},
        "applicationTolerations": {
            "restartConfig": {"restartPolicy": "Never"},
            # A pod that waits for room waits: whether that takes too long is ours to say.
            "applicationTimeoutConfig": {
                "driverStartTimeoutMillis": _DAY_MILLIS,
                "driverReadyTimeoutMillis": _DAY_MILLIS,
                "executorStartTimeoutMillis": _DAY_MILLIS,
            },
            "instanceConfig": {"initExecutors": 0, "minExecutors": 0},
            "resourceRetainPolicy": "OnFailure",
            "resourceRetainDurationMillis": _RETAINED_MILLIS,
            "ttlAfterStopMillis": TTL_SECONDS * 1000,
        },
    }
    return application(request, APACHE_APPLICATIONS, spec)


def _conf(request: WorkerRequest, *, image: str) -> dict[str, str]:
    pod = pods_of(request)
    workers = pod.workers
    _, overhead = heap_and_overhead(workers.spark_conf, role="driver", memory=pod.memory)
    conf = spark_conf(request, image=image) | {
        "spark.kubernetes.namespace": request.policy.namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": workers.service_account_name,
        "spark.kubernetes.driver.podTemplateContainerName": DRIVER_CONTAINER,
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        "spark.kubernetes.driver.request.cores": str(workers.driver.cpu),
        "spark.driver.cores": str(workers.driver.cores),
        "spark.driver.memoryOverhead": f"{overhead}m",
    }
    if workers.driver.cpu_limit is not None:
        conf["spark.kubernetes.driver.limit.cores"] = str(workers.driver.cpu_limit)
    if workers.image_pull_policy is not None:
        conf["spark.kubernetes.container.image.pullPolicy"] = workers.image_pull_policy.value
    if workers.image_pull_secrets:
        conf["spark.kubernetes.container.image.pullSecrets"] = ",".join(
            secret.name for secret in workers.image_pull_secrets
        )
    return conf


def observe_apache(body: Obj, pod: Obj | None, since: Sighting) -> WorkerObservation:
    """Return what the application's status says about its worker (docs/design/spark-applications.md); pure."""
    status = body.get("status") or {}
    entry = _telling(status)
    state, message = str(entry.get("currentStateSummary") or ""), str(entry.get("message") or "")
    driver = driver_of(body, pod, since)
    if not state and driver is None:
        return not_taken_up(body, since, APACHE_APPLICATIONS)
    if state in _SAY_NOTHING:
        message = "its application has ended, and its history does not say how"
        return seen(body, since, WorkerPhase.LOST, reason=state, message=message)
    if state == "Succeeded":
        return seen(body, since, WorkerPhase.SUCCEEDED, reason=state, ending=WorkerEnding.COMPLETED)
    if state == "DriverEvicted":
        words = last_words(message) or "its driver pod was evicted"
        return seen(body, since, WorkerPhase.FAILED, reason=state, message=words, ending=WorkerEnding.DISRUPTED)
    if state in _FAILED:
        return failed(
            body,
            since,
            driver or _last_driver(body, entry, since),
            reason=state,
            message=message,
            ending=WorkerEnding.FAILED,
        )
    return waiting_or_running(body, since, driver, running=state in _RUNNING, reason=state)


def _telling(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The newest state that says something: the current one, or the last one before the resources were released."""
    current: Mapping[str, Any] = status.get("currentState") or {}
    if current.get("currentStateSummary") not in _SAY_NOTHING:
        return current
    history = status.get("stateTransitionHistory") or {}
    for number in sorted((number for number in history if number.isdecimal()), key=int, reverse=True):
        if history[number].get("currentStateSummary") not in _SAY_NOTHING:
            return dict(history[number])
    return current


def _last_driver(body: Obj, entry: Mapping[str, Any], since: Sighting) -> WorkerObservation | None:
    """The driver pod as that operator saw it last: by now it may be gone."""
    status = entry.get("lastObservedDriverStatus")
    if not status:
        return None
    pod = {"metadata": body["metadata"], "spec": {"containers": []}, "status": status}
    return observe_pod(pod, since, container=DRIVER_CONTAINER)
