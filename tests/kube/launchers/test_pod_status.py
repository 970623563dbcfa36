"""What a driver pod's status says about its worker: every way to wait and to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.api.names import ANNOTATION_DRIVER_MEMORY
from compaction.kube.launchers.base import WorkerPhase
from compaction.kube.launchers.pod_status import LONGEST, Sighting, ending_of, last_words, observe_pod, with_executors
from compaction.kube.launchers.pods import QUEUE_LABEL
from compaction.worker.loop import WorkerExit
from kube.launchers.played_cluster import NOW, pod_object, terminated, waiting
from support.clocks import PATIENCE_SECONDS

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


# What is said of a worker that ended: one sentence, whatever its log ends with.

JAVA = """\
26/11/21 10:02:11 WARN ExecutorPodsWatchSnapshotSource: Kubernetes client has been closed.
io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.
\tat io.fabric8.kubernetes.client.KubernetesClientException.launderThrowable(KubernetesClientException.java:129)
\tat java.base/java.util.concurrent.CompletableFuture.complete(Unknown Source)
Caused by: java.net.ConnectException: Connection refused: /127.0.0.1:6443
\tat java.base/sun.nio.ch.Net.pollConnect(Native Method)
\t... 24 more
26/11/21 10:02:12 INFO ShutdownHookManager: Deleting directory /tmp/spark-8a
"""
KEYS = "[compaction.cli.cluster.worker] policy=ns/logs worker=logs-w-1"
TEXT_END = f"2026-11-21T10:02:11.005478Z [info     ] worker ends: the API server does not answer {KEYS}\n"
JSON_END = '{"message": "worker ends: the API server does not answer", "level": "info", "code": 66}\n'
PYTHON = """\
2026-11-21T10:02:11.005478Z [info     ] spark is up  [compaction.worker.spark.session] master=local[2]
Traceback (most recent call last):
  File "/opt/worker.py", line 7, in run
    raise ValueError("no such field")
ValueError: no such field
"""

QUOTA = 'pods "x-driver" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0'
CLIENT = "io.fabric8.kubernetes.client.KubernetesClientException: "
SUBMISSION = f"""\
failed to run spark-submit: failed to run spark-submit: WARNING: Using incubator modules: jdk.incubator.vector
26/11/27 20:22:56 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...
26/11/27 20:23:08 ERROR Client: Please check "kubectl auth can-i create pod" first. It should be yes.
Exception in thread "main" {CLIENT}Failure executing: POST at: https://127.0.0.1:1/api/v1/namespaces/c/pods. Message: \
{QUOTA}. Received status: Status(apiVersion=v1, code=403, message={QUOTA}, status=Failure).
\tat io.fabric8.kubernetes.client.KubernetesClientException.copyAsCause(KubernetesClientException.java:205)
Caused by: {CLIENT}Failure executing: POST at: https://127.0.0.1:1/api/v1/namespaces/c/pods. Message: \
{QUOTA}. Received status: Status(apiVersion=v1, code=403, message={QUOTA}, status=Failure).
\t... 24 more
26/11/27 20:23:09 ERROR ShutdownHookManager: it was the last line
"""
"""What Spark's submission prints, in the form of spark-submit 4.1."""
NO_ANSWER = f"""\
failed to run spark-submit: Exception in thread "main" {CLIENT}An error has occurred.
\tat io.fabric8.kubernetes.client.KubernetesClientException.launderThrowable(KubernetesClientException.java:129)
Caused by: java.io.IOException: closed
Caused by: java.net.ConnectException: Connection refused
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("\n \n", ""),
        ("pods already exists", "pods already exists"),
        (JAVA, "java.net.ConnectException: Connection refused: /127.0.0.1:6443"),
        (TEXT_END + JAVA, "worker ends: the API server does not answer"),
        (JSON_END + JAVA, "worker ends: the API server does not answer"),
        ("error: Spark needs Java 17\n" + JAVA, "error: Spark needs Java 17"),
        (PYTHON, "ValueError: no such field"),
        (PYTHON.partition("Traceback")[0], "spark is up"),
        ('{"message": "job started", "job": "a"}\n', "job started"),
        ("{broken json\n", "{broken json"),
        ("[" * 5000, "[" * (LONGEST - 1) + "…"),
        ("line 98\nline 99\n", "line 99"),
        (SUBMISSION, QUOTA),
        ("x" * 100_000 + "\n" + SUBMISSION, QUOTA),
        (NO_ANSWER, f"{CLIENT}An error has occurred.; caused by java.net.ConnectException: Connection refused"),
        (SUBMISSION.replace(QUOTA, "no s3://lake:hunter2@minio"), "no s3://***@minio"),
        ("\tat a.b.C(C.java:1)\n\tat a.b.D(D.java:2)\n", "at a.b.D(D.java:2)"),
        ("x-" * 2500, ("x-" * LONGEST)[: LONGEST - 1] + "…"),
        ("open postgresql://lake:hunter2@db/blocks: refused", "open postgresql://***@db/blocks: refused"),
        (JSON_END.replace("the API server does not answer", "password=hunter2"), "worker ends: password=***"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n", "***"),
        ("error: no key\n-----BEGIN PRIVATE KEY-----\nhunter2\n", "error: no key"),
        ("password=" + "a" * 100 + "hunter2" * 2000 + "\nthe end", "the end"),
        ("\x1b[2Jbye", "\\x1b[2Jbye"),
    ],
)
def test_the_last_line_that_means_something(log: str, words: str) -> None:
    assert last_words(log) == words


@pytest.mark.parametrize("code", [code for code in WorkerExit if code is not WorkerExit.IDLE])
def test_an_exit_code_of_ours_says_more_than_any_log(code: WorkerExit) -> None:
    said = ending_of(int(code), JAVA)
    assert said.startswith(f"exit code {int(code)}: ")
    assert "java" not in said


def test_other_exit_codes_have_the_last_words_beside_them() -> None:
    assert ending_of(1, TEXT_END.replace("info ", "error") + PYTHON).endswith("the API server does not answer")
    assert ending_of(1, PYTHON) == "exit code 1: ValueError: no such field"
    assert ending_of(3, "") == "exit code 3"
    assert ending_of(-9, PYTHON) == "killed by SIGKILL"
    assert ending_of(None, PYTHON) == "its process is gone; its log ends with: ValueError: no such field"
    assert ending_of(None, "") == ""


def test_a_driver_that_lost_the_api_server_shows_no_stack_trace() -> None:
    seen = observe_pod(pod_object(terminated(66, message=JSON_END + JAVA)), Sighting(NOW, 30))
    assert seen.message == "exit code 66: the API server does not answer"


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": "DeadlineExceeded", "message": JAVA},
        {"reason": "Evicted"} | terminated(143, message=JAVA),
    ],
)
def test_a_pod_without_an_exit_code_and_one_that_was_evicted_show_none_either(status: dict[str, str]) -> None:
    seen = observe_pod(pod_object(status), Sighting(NOW, 30))
    assert "\n" not in seen.message
    assert "ConnectException" in seen.message


# What an executor's container does before it is stopped: the JVM is told by the signal Spark listens for.

IMAGES = Path(__file__).resolve().parents[3] / "spark-images"
SCRIPT = IMAGES / "decommission.sh"
ENTRYPOINT = IMAGES / "entrypoint.sh"
EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
LISTENS = """
import signal, sys, time
signal.signal(signal.SIGPWR, lambda *_: (time.sleep(0.5), sys.exit(42)))
print("up", flush=True)
time.sleep(600)
"""


def test_the_executor_is_told_and_waited_for_and_nobody_else(tmp_path: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", LISTENS, EXECUTOR], stdout=subprocess.PIPE, text=True) as executor,
        subprocess.Popen([sys.executable, "-c", LISTENS, "another"], stdout=subprocess.PIPE, text=True) as other,
    ):
        try:
            for process in (executor, other):
                assert process.stdout is not None
                assert process.stdout.readline() == "up\n"
                # The container sees its own processes only; here that is played, or others' would be told as well.
                (tmp_path / str(process.pid)).symlink_to(f"/proc/{process.pid}")
            subprocess.run(["sh", str(SCRIPT), str(tmp_path)], check=True, timeout=60)
            assert executor.poll() == 42, "it has ended when the script ends"
            assert other.poll() is None
        finally:
            executor.kill()
            other.send_signal(signal.SIGKILL)


def test_without_an_executor_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert subprocess.run(["sh", str(SCRIPT), str(tmp_path)], check=False, timeout=60).returncode == 0


JAVA_PROGRAM = f"""#!{sys.executable}
import os, signal, sys, time
signal.signal(signal.SIGPWR, lambda *_: (time.sleep(0.5), sys.exit(42)))
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(7)))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@contextmanager
def container(place: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """What an executor's container runs, and the process of its JVM."""
    java = place / "bin" / "java"
    java.parent.mkdir()
    java.write_text(JAVA_PROGRAM)
    java.chmod(0o755)
    names = "DRIVER_URL EXECUTOR_ID EXECUTOR_CORES APPLICATION_ID EXECUTOR_POD_IP RESOURCE_PROFILE_ID EXECUTOR_POD_NAME"
    variables = {f"SPARK_{name}": "x" for name in names.split()} | {"SPARK_HOME": "/x", "SPARK_EXECUTOR_MEMORY": "512m"}
    environment = {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(place)} | variables
    command = ["sh", str(ENTRYPOINT), "executor"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as first:
        try:
            assert first.stdout is not None
            yield first, int(first.stdout.readline())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)


def test_the_hook_outlives_the_jvm_and_the_container_outlives_the_hook(tmp_path: Path) -> None:
    """A hook that is still there when its container's first process ends is killed: a warning at each normal end."""
    with container(tmp_path) as (first, jvm):
        processes = tmp_path / "proc"
        processes.mkdir()
        (processes / str(jvm)).symlink_to(f"/proc/{jvm}")
        hook = subprocess.run(["sh", str(SCRIPT), str(processes)], check=False, timeout=60)
        assert first.poll() is None, "the container goes on until the hook has ended"
        assert hook.returncode == 0
        assert first.wait(timeout=PATIENCE_SECONDS) == 42, "the JVM's exit code is the container's"


def test_a_container_that_is_stopped_hands_the_signal_on_and_waits(tmp_path: Path) -> None:
    with container(tmp_path) as (first, _):
        first.terminate()
        assert first.wait(timeout=PATIENCE_SECONDS) == 7
