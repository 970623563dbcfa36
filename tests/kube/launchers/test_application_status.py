"""What the applications of both Spark operators say about their workers: each of their states, and the traps."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from compaction.api.enums import LauncherType, WorkerEnding, WorkerTrouble
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.apache import observe_apache
from compaction.kube.launchers.base import WorkerPhase
from compaction.kube.launchers.kubeflow import observe_kubeflow
from compaction.kube.launchers.objects import Availability, LauncherChoice, choose
from compaction.kube.launchers.pod_status import Sighting
from compaction.worker.loop import WorkerExit
from kube.launchers.played_cluster import NOW, of_spark, pod_object, terminated, waiting

PENDING, RUNNING, SUCCEEDED, FAILED, LOST = (
    WorkerPhase.PENDING,
    WorkerPhase.RUNNING,
    WorkerPhase.SUCCEEDED,
    WorkerPhase.FAILED,
    WorkerPhase.LOST,
)
NAME = "logs-w-abcd-12345"
DRIVER = f"{NAME}-driver"
SINCE = Sighting(NOW, 30)


def driver_object(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """The driver's pod as Spark's submission made it."""
    return pod_object(of_spark(status), name=DRIVER, **metadata)


def application(status: dict[str, Any], *, spark_conf: dict[str, str] | None = None) -> dict[str, Any]:
    owner = {"kind": "CompactionPolicy", "name": "logs", "controller": True}
    metadata = {"name": NAME, "namespace": "default", "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"sparkConf": spark_conf or {}}, "status": status}


def kubeflow(state: str, error: str = "", pod: dict[str, Any] | None = None, *, attempts: int = 1) -> Any:
    status = {"applicationState": {"state": state, "errorMessage": error}, "driverInfo": {}}
    return observe_kubeflow(application(status | ({"executionAttempts": attempts} if attempts else {})), pod, SINCE)


def apache(state: str, pod: dict[str, Any] | None = None, **current: Any) -> Any:
    return observe_apache(application({"currentState": {"currentStateSummary": state, **current}}), pod, SINCE)


KUBEFLOW_STATES = {
    "": PENDING,
    "SUSPENDED": PENDING,
    "SUSPENDING": PENDING,
    "RESUMING": PENDING,
    "SUBMITTED": PENDING,
    "PENDING_RERUN": PENDING,
    "INVALIDATING": PENDING,
    "RUNNING": RUNNING,
    "SUCCEEDING": RUNNING,
    "FAILING": RUNNING,
    "UNKNOWN": RUNNING,
    "COMPLETED": SUCCEEDED,
    "FAILED": FAILED,
    "SUBMISSION_FAILED": FAILED,
    "A_STATE_OF_A_LATER_RELEASE": PENDING,
}
APACHE_STATES = {
    "Submitted": PENDING,
    "DriverRequested": PENDING,
    "ScheduledToRestart": PENDING,
    "DriverStarted": RUNNING,
    "DriverReady": RUNNING,
    "InitializedBelowThresholdExecutors": RUNNING,
    "RunningHealthy": RUNNING,
    "RunningWithPartialCapacity": RUNNING,
    "RunningWithBelowThresholdExecutors": RUNNING,
    "Succeeded": SUCCEEDED,
    "Failed": FAILED,
    "DriverEvicted": FAILED,
    "DriverStartTimedOut": FAILED,
    "DriverReadyTimedOut": FAILED,
    "ExecutorsStartTimedOut": FAILED,
    "SchedulingFailure": FAILED,
    "ResourceReleased": LOST,
    "TerminatedWithoutReleaseResources": LOST,
}


@pytest.mark.parametrize(("state", "phase"), KUBEFLOW_STATES.items())
def test_kubeflows_states(state: str, phase: WorkerPhase) -> None:
    assert kubeflow(state).phase is phase


@pytest.mark.parametrize(("state", "phase"), APACHE_STATES.items())
def test_apaches_states(state: str, phase: WorkerPhase) -> None:
    assert apache(state).phase is phase


def test_every_state_that_apaches_definition_allows_is_known(shared_fixtures: Any) -> None:
    text = (shared_fixtures / "spark-operators" / "apache-sparkapplications.yaml").read_text()
    document = yaml.load(text, yaml.CSafeLoader)  # half a megabyte
    (version,) = (item for item in document["spec"]["versions"] if item["name"] == "v1")
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert set(status["currentState"]["properties"]["currentStateSummary"]["enum"]) == set(APACHE_STATES)


SILENT = pytest.mark.parametrize(("observe", "limit"), [(observe_kubeflow, 180), (observe_apache, 60)])
"""Kubeflow's operator forks a spark-submit per application, a few at a time; Apache's submits within its process."""


@SILENT
def test_an_operator_that_does_not_run_is_named_after_a_while(observe: Any, limit: float) -> None:
    assert observe(application({}), None, Sighting(NOW, limit)).trouble is None
    seen = observe(application({}), None, Sighting(NOW, limit + 1))
    assert (seen.phase, seen.trouble) == (PENDING, WorkerTrouble.OPERATOR_SILENT)
    assert f"no operator has handled SparkApplication default/{NAME}" in seen.message
    assert f"within {limit} s" in seen.message
    assert ("is still submitting" in seen.message) == (observe is observe_kubeflow)
    assert "set spec.workers.launcher to pod" in seen.message
    later = observe(application({}), None, Sighting(NOW, 900))
    assert later.message == seen.message, "else every look would be news"


@SILENT
def test_what_to_do_is_said_however_long_the_names_are(observe: Any, limit: float) -> None:
    body = application({})
    body["metadata"] |= {"namespace": "n" * 63, "name": "w" * 63}
    assert observe(body, None, Sighting(NOW, limit + 1)).message.endswith("set spec.workers.launcher to pod")


@SILENT
def test_the_time_before_a_submission_is_not_the_workers(observe: Any, limit: float) -> None:
    """A launch that waits behind others in its Spark operator has not begun to start."""
    assert observe(application({}), None, SINCE).waited == 30
    assert observe(application({}), None, Sighting(NOW, 900)).waited == limit, "there is an end to it"
    assert kubeflow("SUBMITTED").waited == apache("Submitted").waited == 0


@pytest.mark.parametrize("observe", [observe_kubeflow, observe_apache])
def test_a_driver_of_an_application_without_a_status_was_submitted(observe: Any) -> None:
    """Its operator went away between the submission and the status."""
    seen = observe(application({}), driver_object({"phase": "Running"}), Sighting(NOW, 900))
    assert (seen.phase, seen.trouble, seen.waited) == (RUNNING, None, 0)


def test_a_suspended_application_waits_for_its_queue() -> None:
    assert kubeflow("SUSPENDED").trouble is WorkerTrouble.QUEUED


@pytest.mark.parametrize("of", [lambda pod: kubeflow("SUBMITTED", pod=pod), lambda pod: apache("DriverRequested", pod)])
def test_the_driver_pod_says_what_is_waited_for(of: Any) -> None:
    seen = of(driver_object(waiting("ImagePullBackOff", "manifest unknown")))
    assert (seen.name, seen.phase, seen.trouble) == (NAME, PENDING, WorkerTrouble.IMAGE_PULL)
    assert seen.message == "manifest unknown"
    room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    seen = of(driver_object({"phase": "Pending", "conditions": [room]}))
    assert seen.trouble is WorkerTrouble.UNSCHEDULABLE


DISRUPTED: dict[str, Any] = {
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
}


@pytest.mark.parametrize("of", [lambda pod: kubeflow("FAILED", pod=pod), lambda pod: apache("Failed", pod)])
@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (terminated(137, reason="OOMKilled"), WorkerEnding.OUT_OF_MEMORY),
        (terminated(143, **DISRUPTED), WorkerEnding.DISRUPTED),
        (terminated(1, message="no Java"), WorkerEnding.FAILED),
        (terminated(WorkerExit.EXECUTORS_OUT_OF_MEMORY), WorkerEnding.EXECUTORS_OUT_OF_MEMORY),
    ],
)
def test_the_driver_pod_says_how_it_ended(of: Any, status: dict[str, Any], ending: WorkerEnding) -> None:
    seen = of(driver_object(status))
    assert (seen.name, seen.phase, seen.ending) == (NAME, FAILED, ending)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        ("driver container failed with ExitCode: 137, Reason: OOMKilled", WorkerEnding.OUT_OF_MEMORY),
        ("driver pod failed: the pod was evicted: the node was low on resource: memory", WorkerEnding.DISRUPTED),
        ("driver pod not found", WorkerEnding.DELETED),
        ("driver container failed with ExitCode: 69, Reason: Error", WorkerEnding.EXECUTORS_OUT_OF_MEMORY),
        ('serviceaccount "compaction-worker" not found', WorkerEnding.FAILED),
        ("driver container failed with ExitCode: 1, Reason: Error", WorkerEnding.FAILED),
    ],
)
def test_without_its_pod_kubeflows_message_is_all_there_is(error: str, ending: WorkerEnding) -> None:
    seen = kubeflow("FAILED", error)
    assert (seen.ending, seen.message) == (ending, error)


REFUSED = (
    "failed to submit spark application: failed to run spark-submit: failed to run spark-submit: Exception in thread "
    '"main" io.fabric8.kubernetes.client.KubernetesClientException: pods "x-driver" is forbidden: error looking up '
    'service account ns/worker: serviceaccount "worker" not found.'
)


@pytest.mark.parametrize("error", [REFUSED, "driver pod not found", "the pod was evicted", "OOMKilled"])
def test_what_was_never_submitted_failed_to_start_whatever_the_text_says(error: str) -> None:
    """Their operator counts an execution attempt per submission that was accepted."""
    seen = kubeflow("FAILED", error, attempts=0)
    assert (seen.phase, seen.ending) == (FAILED, WorkerEnding.FAILED)
    assert seen.message


@pytest.mark.parametrize(
    "of",
    [
        lambda pod: kubeflow("RUNNING", pod=pod),
        lambda pod: kubeflow("SUBMITTED", pod=pod),
        lambda pod: kubeflow("FAILING", pod=pod),
        lambda pod: kubeflow("", pod=pod),
        lambda pod: apache("RunningHealthy", pod),
    ],
)
@pytest.mark.parametrize(
    ("status", "phase", "ending", "message"),
    [
        (terminated(137), FAILED, WorkerEnding.FAILED, "exit code 137"),
        (terminated(137, reason="OOMKilled"), FAILED, WorkerEnding.OUT_OF_MEMORY, "more memory than its pod has"),
        (terminated(1, message="no Java"), FAILED, WorkerEnding.FAILED, "exit code 1: no Java"),
        (terminated(0), SUCCEEDED, WorkerEnding.COMPLETED, ""),
    ],
)
def test_a_driver_pod_has_ended_when_it_says_so(
    of: Any, status: dict[str, Any], phase: WorkerPhase, ending: WorkerEnding, message: str
) -> None:
    """While its Spark operator is away, the application stays as it was; nobody restarts the pod."""
    seen = of(driver_object(status))
    assert (seen.name, seen.phase, seen.ending) == (NAME, phase, ending)
    assert message in seen.message


def test_a_suspended_application_whose_driver_is_being_ended_waits_for_its_queue() -> None:
    ending = driver_object(terminated(143), deletionTimestamp="2026-11-21T12:00:00Z")
    seen = kubeflow("SUSPENDING", pod=ending)
    assert (seen.phase, seen.trouble) == (PENDING, WorkerTrouble.QUEUED)


@pytest.mark.parametrize("state", ["SUBMISSION_FAILED", "FAILED"])
def test_a_failed_submission_with_a_live_driver_is_no_failure(state: str) -> None:
    def seen(error: str, status: dict[str, Any] | None) -> Any:
        return kubeflow(state, error, driver_object(status) if status is not None else None, attempts=0)

    lost = "failed to run spark-submit: driver pod already exist"
    assert seen("any text", {"phase": "Running"}).phase is RUNNING
    assert seen(lost, {"phase": "Pending"}).phase is PENDING
    assert seen(lost, None).ending is WorkerEnding.FAILED
    assert seen("admission webhook denied the request", None).ending is WorkerEnding.FAILED
    assert seen(lost, terminated(1, message="no Java")).message == "exit code 1: no Java"


@pytest.mark.parametrize("state", ["SUBMISSION_FAILED", "FAILED"])
def test_a_submission_that_made_half_of_a_driver_has_failed(state: str) -> None:
    """The ConfigMap that its pod is to mount was never made: it waits for ever."""
    seen = kubeflow(state, REFUSED, driver_object({"phase": "Pending"}), attempts=0)
    assert (seen.phase, seen.ending) == (FAILED, WorkerEnding.FAILED)
    assert 'serviceaccount "worker" not found' in seen.message


def test_executors_that_are_lost_do_not_end_a_worker() -> None:
    """Spark runs their tasks again; the driver's word counts."""
    status = {"applicationState": {"state": "RUNNING"}, "driverInfo": {}, "executorState": {"e-1": "FAILED"}}
    assert observe_kubeflow(application(status), None, SINCE).phase is RUNNING
    assert apache("RunningWithBelowThresholdExecutors").phase is RUNNING


def history(*states: str, **last: Any) -> dict[str, Any]:
    entries = {str(number): {"currentStateSummary": state} for number, state in enumerate(states)}
    entries[str(len(states) - 1)] |= last
    return {"currentState": entries[str(len(states) - 1)], "stateTransitionHistory": entries}


def test_released_resources_say_nothing_and_the_history_does() -> None:
    steps = ["Submitted", "DriverRequested", "DriverStarted", "DriverReady", "RunningHealthy"]
    steps += ["RunningWithPartialCapacity", "RunningHealthy"] * 3  # past 9: sorted as numbers, not as text
    seen = observe_apache(application(history(*steps, "Succeeded", "ResourceReleased")), None, SINCE)
    assert (seen.phase, seen.ending) == (SUCCEEDED, WorkerEnding.COMPLETED)
    seen = observe_apache(application(history(*steps, "Failed", "TerminatedWithoutReleaseResources")), None, SINCE)
    assert seen.phase is FAILED
    seen = observe_apache(application(history("ResourceReleased")), None, SINCE)
    assert (seen.phase, seen.ending) == (LOST, None)


def test_apache_remembers_a_driver_pod_that_is_gone() -> None:
    seen = apache(
        "Failed", lastObservedDriverStatus=of_spark(terminated(137, reason="OOMKilled")), message="driver failed"
    )
    assert (seen.name, seen.ending) == (NAME, WorkerEnding.OUT_OF_MEMORY)
    assert apache("DriverEvicted", message="evicted").ending is WorkerEnding.DISRUPTED
    assert apache("SchedulingFailure", message="quota exceeded").message == "quota exceeded"


def test_kubeflows_web_page_is_told_when_there_is_one() -> None:
    info = {"webUIAddress": "10.96.1.2:4040"}
    status = {"applicationState": {"state": "RUNNING"}, "driverInfo": info}
    on = application(status, spark_conf={"spark.ui.enabled": "true"})
    assert observe_kubeflow(on, None, SINCE).ui == "http://10.96.1.2:4040"
    assert observe_kubeflow(application(status), None, SINCE).ui == "", "it is off"
    info["webUIIngressAddress"] = "https://spark.example/logs"
    assert observe_kubeflow(on, None, SINCE).ui == "https://spark.example/logs"


# Which launcher a worker gets, from what the policy wants and what is there.

AUTO, PROCESS, KUBEFLOW, APACHE, POD = (
    LauncherType.AUTO,
    LauncherType.PROCESS,
    LauncherType.KUBEFLOW,
    LauncherType.APACHE,
    LauncherType.POD,
)
ABSENT, FORBIDDEN, USABLE = Availability.ABSENT, Availability.FORBIDDEN, Availability.USABLE


def offer(kubeflow: Availability, apache: Availability, pod: Availability, *, in_pod: bool) -> LauncherChoice:
    return LauncherChoice({KUBEFLOW: kubeflow, APACHE: apache, POD: pod}, in_pod=in_pod)


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        (offer(USABLE, USABLE, USABLE, in_pod=True), KUBEFLOW),
        (offer(USABLE, ABSENT, USABLE, in_pod=False), KUBEFLOW),
        (offer(ABSENT, USABLE, USABLE, in_pod=True), APACHE),
        (offer(FORBIDDEN, USABLE, USABLE, in_pod=True), APACHE),
        (offer(FORBIDDEN, FORBIDDEN, USABLE, in_pod=True), POD),
        (offer(ABSENT, ABSENT, USABLE, in_pod=True), POD),
        (offer(ABSENT, ABSENT, USABLE, in_pod=False), PROCESS),
        (offer(ABSENT, ABSENT, FORBIDDEN, in_pod=False), PROCESS),
        (LauncherChoice(), PROCESS),
    ],
)
def test_auto_takes_what_there_is(there: LauncherChoice, taken: LauncherType) -> None:
    assert choose(AUTO, there) is taken


@pytest.mark.parametrize("wanted", [KUBEFLOW, APACHE, POD, PROCESS])
def test_a_named_launcher_is_taken_whatever_else_there_is(wanted: LauncherType) -> None:
    assert choose(wanted, offer(USABLE, USABLE, USABLE, in_pod=False)) is wanted


@pytest.mark.parametrize(
    ("wanted", "there", "advice"),
    [
        (KUBEFLOW, offer(ABSENT, USABLE, USABLE, in_pod=True), "does not serve sparkapplications.sparkoperator.k8s.io"),
        (APACHE, offer(USABLE, ABSENT, USABLE, in_pod=True), "does not serve sparkapplications.spark.apache.org"),
        (APACHE, offer(USABLE, FORBIDDEN, USABLE, in_pod=True), "Grant it get, list, create and delete on sparkapp"),
        (POD, offer(ABSENT, ABSENT, FORBIDDEN, in_pod=False), "Grant it get, list, create and delete on pods"),
        (AUTO, offer(ABSENT, ABSENT, FORBIDDEN, in_pod=True), "Grant it get, list, create and delete on pods"),
    ],
)
def test_what_cannot_be_used_says_what_to_do(wanted: LauncherType, there: LauncherChoice, advice: str) -> None:
    with pytest.raises(LaunchError) as refusal:
        choose(wanted, there)
    assert advice in str(refusal.value)
