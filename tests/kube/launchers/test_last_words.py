"""What is said of a worker that ended: one sentence, whatever its log ends with."""

from __future__ import annotations

import pytest

from compaction.kube.launchers.pod_status import LONGEST, Sighting, ending_of, last_words, observe_pod
from compaction.worker.loop import WorkerExit
from kube.launchers.pods import NOW, pod_object, terminated

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
