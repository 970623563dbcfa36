"""What a driver pod's status says about its worker: every way to wait and to end."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.api.names import ANNOTATION_DRIVER_MEMORY
from compaction.kube.launchers.base import WorkerPhase
from compaction.kube.launchers.pod_status import Sighting, observe_pod, with_executors
from compaction.kube.launchers.pods import QUEUE_LABEL
from kube.launchers.pods import NOW, pod_object, terminated, waiting

SINCE = Sighting(NOW, 30)


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


DISRUPTED = condition("DisruptionTarget", "True", "PreemptionByScheduler", "preempted by a pod of higher priority")


@pytest.mark.parametrize(
    ("status", "trouble", "words"),
    [
        ({}, None, ""),
        ({"phase": "Pending"}, None, ""),
        (waiting("ContainerCreating"), None, ""),
        (
            {"phase": "Pending"} | condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available"),
            WorkerTrouble.UNSCHEDULABLE,
            "0/3 nodes are available",
        ),
        (waiting("ImagePullBackOff", "not found"), WorkerTrouble.IMAGE_PULL, "not found"),
        (waiting("ErrImageNeverPull"), WorkerTrouble.IMAGE_PULL, "image registry.example"),
        (waiting("CreateContainerConfigError", 'secret "c" not found'), WorkerTrouble.POD_CONFIG, "secret"),
        (
            {"phase": "Pending"} | condition("PodScheduled", "True", ""),
            WorkerTrouble.POD_CONFIG,
            "a volume or a Secret is missing",
        ),
    ],
)
def test_a_pod_that_has_not_begun_says_why(status: dict[str, Any], trouble: WorkerTrouble | None, words: str) -> None:
    seen = observe_pod(pod_object(status), Sighting(NOW, 120))
    assert (seen.phase, seen.trouble, seen.ended) == (WorkerPhase.PENDING, trouble, False)
    assert words in seen.message


def test_a_pod_in_a_queue_waits_for_its_turn() -> None:
    pod = pod_object({"phase": "Pending"} | condition("PodScheduled", "False", "SchedulingGated"))
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    seen = observe_pod(pod, SINCE)
    assert (seen.trouble, "kueue.x-k8s.io/admission" in seen.message) == (WorkerTrouble.QUEUED, True)


def test_a_pod_in_a_queue_names_it_and_how_to_look() -> None:
    """Whoever set queueName may not know Kueue's gates, and reads the queue's own reason in its Workload."""
    pod = pod_object({"phase": "Pending"})
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    pod["metadata"]["labels"] = {QUEUE_LABEL: "compaction"}
    namespace = pod["metadata"]["namespace"]
    seen = observe_pod(pod, SINCE)
    assert seen.trouble is WorkerTrouble.QUEUED
    assert seen.message.startswith(f"LocalQueue {namespace}/compaction has not admitted its pod")
    assert f"workloads.kueue.x-k8s.io -n {namespace}" in seen.message


def test_a_pod_that_was_killed_for_its_memory_says_how_much_it_had_and_what_to_raise() -> None:
    pod = pod_object(terminated(137, reason="OOMKilled"))
    pod["metadata"].setdefault("annotations", {})[ANNOTATION_DRIVER_MEMORY] = str(768 << 20)
    seen = observe_pod(pod, SINCE)
    assert seen.message.startswith("killed for using more memory than its pod has (OOMKilled, 768Mi): raise ")
    assert "spec.workers.driver.memory" in seen.message
    assert "driver.maxMemory" in seen.message
    del pod["metadata"]["annotations"][ANNOTATION_DRIVER_MEMORY]
    assert "(OOMKilled): raise" in observe_pod(pod, SINCE).message


def test_a_pod_that_a_queue_takes_back_was_disrupted_in_the_words_of_the_queue() -> None:
    """Kueue marks an admitted pod before it deletes it: the job that it held must not pay for that."""
    taken = condition("TerminationTarget", "True", "WorkloadEvicted", "The ClusterQueue is stopped")
    seen = observe_pod(pod_object(terminated(143, **taken)), SINCE)
    assert (seen.ending, seen.message) == (WorkerEnding.DISRUPTED, "WorkloadEvicted: The ClusterQueue is stopped")


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (terminated(0, reason="Completed"), WorkerEnding.COMPLETED),
        (terminated(1, message="Spark did not start"), WorkerEnding.FAILED),
        (terminated(137, reason="OOMKilled"), WorkerEnding.OUT_OF_MEMORY),
        (terminated(137), WorkerEnding.FAILED),
        (terminated(143, **DISRUPTED), WorkerEnding.DISRUPTED),
        (terminated(137, reason="OOMKilled", **DISRUPTED), WorkerEnding.DISRUPTED),
        ({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}, WorkerEnding.DISRUPTED),
        ({"phase": "Failed", "reason": "NodeShutdown"}, WorkerEnding.DISRUPTED),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, WorkerEnding.FAILED),
    ],
)
def test_how_a_pod_ended(status: dict[str, Any], ending: WorkerEnding) -> None:
    seen = observe_pod(pod_object(status), SINCE)
    assert (seen.ending, seen.ended) == (ending, True)
    assert seen.phase is (WorkerPhase.SUCCEEDED if ending is WorkerEnding.COMPLETED else WorkerPhase.FAILED)


@pytest.mark.parametrize(("code", "phase"), [(0, WorkerPhase.SUCCEEDED), (1, WorkerPhase.FAILED)])
def test_a_container_beside_ours_does_not_keep_a_worker_alive(code: int, phase: WorkerPhase) -> None:
    status = terminated(code) | {"phase": "Running"}
    status["containerStatuses"].insert(0, {"name": "proxy", "state": {"running": {}}})
    assert observe_pod(pod_object(status), SINCE).phase is phase
    status["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 2}}
    status["containerStatuses"][1]["state"] = {"running": {}}
    assert observe_pod(pod_object(status), SINCE).phase is WorkerPhase.RUNNING, "a proxy that ended is not the worker"


@pytest.mark.parametrize("name", ["spark-kubernetes-driver", "zzz", "a"])
def test_only_the_first_container_of_our_pod_says_how_it_ended(name: str) -> None:
    """A template may call a container of its own as Spark would call ours."""
    status = terminated(1, message="error: Spark did not start")
    beside = {"exitCode": 66, "reason": "OOMKilled", "message": "hunter2"}
    status["containerStatuses"].insert(0, {"name": name, "state": {"terminated": beside}})
    pod = pod_object(status)
    pod["spec"]["containers"].append({"name": name})
    seen = observe_pod(pod, SINCE)
    assert (seen.ending, seen.message) == (WorkerEnding.FAILED, "exit code 1: error: Spark did not start")
    status["containerStatuses"][1]["state"] = {"running": {}}
    assert observe_pod(pod_object(status | {"phase": "Running"}), SINCE).phase is WorkerPhase.RUNNING


def init_failed(code: int, reason: str, **status: Any) -> dict[str, Any]:
    """The kubelet's status of a pod after an init container failed: the others wait for ever."""
    states = {"fetch": {"exitCode": 0, "reason": "Completed"}, "warm": {"exitCode": code, "reason": reason}}
    ended = [{"name": name, "state": {"terminated": state | {"message": "hunter2"}}} for name, state in states.items()]
    return waiting("PodInitializing") | {"phase": "Failed", "initContainerStatuses": ended} | status


@pytest.mark.parametrize(("code", "reason"), [(3, "Error"), (137, "OOMKilled"), (128, "StartError")])
def test_an_init_container_that_failed_is_named_with_its_reason_and_code_and_not_its_output(
    code: int, reason: str
) -> None:
    seen = observe_pod(pod_object(init_failed(code, reason)), SINCE)
    assert (seen.phase, seen.ending, seen.exit_code) == (WorkerPhase.FAILED, WorkerEnding.FAILED, None)
    assert seen.reason == "InitContainerFailed"
    assert seen.message == (
        f"the init container warm of its pod failed ({reason}, exit code {code}): "
        "kubectl logs -n default logs-w-abcd-12345 -c warm"
    )


def test_a_disruption_explains_an_init_container_that_was_killed() -> None:
    seen = observe_pod(pod_object(init_failed(137, "Error", **DISRUPTED)), SINCE)
    assert seen.ending is WorkerEnding.DISRUPTED
    assert "hunter2" not in seen.message


@pytest.mark.parametrize("where", ["initContainerStatuses", "containerStatuses"])
@pytest.mark.parametrize("reason", ["RunContainerError", "StartError", "CreateContainerError", "PostStartHookError"])
def test_the_text_of_a_container_that_is_not_ours_is_not_copied(where: str, reason: str) -> None:
    """It may quote its command, in which a variable has become a Secret's value, or what its hook printed."""
    status = waiting("PodInitializing")
    other = {"name": "mine", "state": {"waiting": {"reason": reason, "message": 'exec: "hunter2": not found'}}}
    status[where] = [other, *status.get(where, ())]
    seen = observe_pod(pod_object(status), SINCE)
    assert (seen.trouble, seen.reason) == (WorkerTrouble.POD_CONFIG, reason)
    assert seen.message == f"{reason} of container mine: kubectl describe pod -n default logs-w-abcd-12345"


def test_a_hook_that_a_template_gives_to_our_container_is_not_quoted() -> None:
    seen = observe_pod(pod_object(waiting("PostStartHookError", "hunter2")), SINCE)
    assert (seen.trouble, "hunter2" in seen.message) == (WorkerTrouble.POD_CONFIG, False)
    assert 'exec: "compactor"' in observe_pod(pod_object(waiting("StartError", 'exec: "compactor"')), SINCE).message


@pytest.mark.parametrize(
    "status",
    [
        terminated(1, message="error: postgresql://lake:hunter2@db: refused"),
        waiting("ErrImagePull", "https://lake:hunter2@registry.example: 401"),
        {"phase": "Failed", "reason": "Evicted", "message": "token=hunter2"},
        {"phase": "Failed", **condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "password=hunter2")},
    ],
)
def test_no_message_has_a_credential(status: dict[str, Any]) -> None:
    assert "***" in observe_pod(pod_object(status), SINCE).message
    assert "hunter2" not in observe_pod(pod_object(status), SINCE).message


def test_the_end_of_the_log_is_in_the_message() -> None:
    seen = observe_pod(pod_object(terminated(1, message="error: Spark did not start\n")), SINCE)
    assert (seen.exit_code, seen.message) == (1, "exit code 1: error: Spark did not start")


@pytest.mark.parametrize(
    ("address", "url"), [("10.1.2.3", "http://10.1.2.3:4040"), ("fd00::1", "http://[fd00::1]:4040")]
)
def test_a_running_pod_shows_its_web_page(address: str, url: str) -> None:
    pod = pod_object({"phase": "Running", "podIP": address})
    assert observe_pod(pod, SINCE).ui == url
    pod["spec"]["containers"][0]["ports"] = []
    assert observe_pod(pod, SINCE).ui == "", "it is off"


def test_a_driver_without_an_executor_waits_for_what_its_executors_do() -> None:
    running = observe_pod(pod_object({"phase": "Running"}), SINCE)
    young = pod_object({"phase": "Pending"} | condition("PodScheduled", "True", ""), name="e-1")
    full = {"phase": "Pending"} | condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")
    assert with_executors(running, [young]).trouble is None
    seen = with_executors(running, [young, pod_object(full, name="e-2")])
    assert (seen.phase, seen.trouble) == (WorkerPhase.RUNNING, WorkerTrouble.UNSCHEDULABLE)
    assert seen.message == "its executor e-2: 0/3 nodes are available"
    pulling = observe_pod(pod_object(waiting("ImagePullBackOff", "not found")), SINCE)
    assert with_executors(pulling, [pod_object(full)]) == pulling, "the driver itself has not begun"
