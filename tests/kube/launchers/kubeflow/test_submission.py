"""Our application through Kubeflow's own argument builder, the installed spark-submit and Spark's driver: the pods that
stand on the API server in the end have what their templates say.

Spark is ours (SPARK_VERSION), not the one in Kubeflow's image: the driver and its executors run ours anyway.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import javaproperties
import pytest

from compaction.api.enums import WorkerEnding
from compaction.kube.client.transport import Obj
from compaction.kube.launchers.applications import driver_of
from compaction.kube.launchers.kubeflow import observe_kubeflow
from compaction.kube.launchers.pod_status import Sighting
from compaction.kube.launchers.pods import DRIVER_CONTAINER
from conftest import delete_namespace
from kube.launchers.kubeflow.questions import BESIDE, NAME, NAMESPACE
from kube.launchers.kubeflow.questions import submitted as submitted_as
from kube.launchers.pods import NOW
from kube.launchers.spark_submission import Submitter, differences
from support.cluster.control_plane import ControlPlane
from support.time.waiting import eventually

DRIVER = {"spark-role": "driver", "compaction.dev/worker": NAME}
EXECUTOR = {"spark-role": "executor"}
PROGRAM = Path(__file__).with_name("executor_driver.py")
ENTRYPOINT = Path(__file__).parents[4] / "spark-images" / "entrypoint.sh"


@dataclass(frozen=True)
class Submitted:
    """`full` has executors and everything that a policy can say; `refused` is spark-submit's word on the other."""

    full: dict[str, Any]
    submitter: Submitter
    refused: str

    def properties(self) -> dict[str, str]:
        """The settings with which the driver starts."""
        (found,) = [item for item in self._of_driver("configmaps") if "spark.properties" in item["data"]]
        return javaproperties.loads(found["data"]["spark.properties"])

    def _of_driver(self, kind: str) -> list[Obj]:
        """What belongs to the driver of the full application."""
        owner = f"{NAME}-driver"
        found = self.submitter.objects(kind)
        return [
            item for item in found if any(by["name"] == owner for by in item["metadata"].get("ownerReferences", ()))
        ]

    def executors_template(self) -> str:
        """The template of executors as the driver sees it."""
        (found,) = [item for item in self._of_driver("configmaps") if "podspec" in item["metadata"]["name"]]
        (text,) = found["data"].values()
        return str(text)


@pytest.fixture(scope="module")
def submitted(control_plane: ControlPlane) -> Iterator[Submitted]:
    admin = control_plane.admin
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    assert admin.request("POST", "/api/v1/namespaces", body).ok
    submitter = Submitter(control_plane, NAMESPACE)
    full, beside, forbidden = (submitted_as(name, str(uuid.uuid4())) for name in (NAME, BESIDE, "refused"))
    try:
        with ThreadPoolExecutor(max_workers=2) as pool:
            words = pool.map(submitter.submit, [full, beside, forbidden])
        accepted, accepted_beside, refused = words
        assert (accepted, accepted_beside) == ("", "")
        yield Submitted(full, submitter, refused)
    finally:
        for kind in ("pods", "configmaps", "services"):
            admin.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/{kind}?gracePeriodSeconds=0")
        delete_namespace(admin, NAMESPACE)


def test_the_driver_pod_has_what_its_template_says(submitted: Submitted) -> None:
    (pod,) = submitted.submitter.objects("pods", **DRIVER)
    driver = submitted.full["spec"]["driver"]
    assert differences(driver["template"], pod) == []
    (container,) = pod["spec"]["containers"]
    assert container["image"] == submitted.full["spec"]["image"]
    amounts = {"cpu": "250m", "memory": "2Gi"}
    assert container["resources"] == {"requests": amounts, "limits": amounts | {"cpu": "2"}}
    assert not any(label.startswith("kueue.") for label in pod["metadata"]["labels"]), (
        "the queue admits the application"
    )


def test_the_driver_belongs_to_its_application_and_spark_runs_in_the_container_of_its_name(
    submitted: Submitted,
) -> None:
    """Spark puts its container behind those of the template: it is not the first, as in pods of ours."""
    (pod,) = submitted.submitter.objects("pods", **{"compaction.dev/worker": BESIDE})
    proxy, spark = [item["name"] for item in pod["spec"]["containers"]]
    assert (proxy, spark) == ("a-proxy", DRIVER_CONTAINER)
    assert [item["kind"] for item in pod["metadata"]["ownerReferences"]] == ["SparkApplication"]
    said = {proxy: "hunter2", spark: "error: no Java"}
    statuses = [
        {"name": name, "state": {"terminated": {"exitCode": 1, "message": said[name]}}} for name in (proxy, spark)
    ]
    seen = driver_of(pod, pod | {"status": {"phase": "Failed", "containerStatuses": statuses}}, Sighting(NOW, 30))
    assert seen is not None
    assert seen.message == "exit code 1: error: no Java"


def test_what_spark_submit_says_of_a_refusal_reaches_people(submitted: Submitted) -> None:
    status = {"applicationState": {"state": "FAILED", "errorMessage": submitted.refused}, "driverInfo": {}}
    body = submitted_as("refused", str(uuid.uuid4())) | {"status": status}
    seen = observe_kubeflow(body, None, Sighting(NOW, 30))
    assert seen.ending is WorkerEnding.FAILED
    assert seen.message.startswith('pods "refused-driver" is forbidden: violates PodSecurity "restricted:latest": ')
    assert "unrestricted capabilities" in seen.message


@dataclass
class Driver:
    """Spark's driver with the settings that spark-submit left on the API server, but on this machine's loopback."""

    submitted: Submitted
    place: Path
    process: subprocess.Popen[bytes]
    busy: Path

    def said(self) -> str:
        return (self.place / "said").read_text()

    def executors(self) -> list[Obj]:
        return self.submitted.submitter.objects("pods", **EXECUTOR)

    def until(self, what: str, look: Callable[[], Any]) -> Any:
        """Wait for something while the driver lives."""
        found = eventually(lambda: look() or self.process.poll() is not None, what)
        assert self.process.poll() is None, (self.place / "log").read_text()
        return found

    def write_status(self, pod: Obj, status: dict[str, Any]) -> None:
        """What a kubelet says of a pod."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        admin = self.submitted.submitter.plane.admin
        body = admin.request("GET", path).json()
        answer = admin.request("PUT", f"{path}/status", body | {"status": status})
        assert answer.ok, answer.text


@pytest.fixture
def driver(submitted: Submitted, tmp_path: Path) -> Iterator[Driver]:
    (tmp_path / "template.yaml").write_text(submitted.executors_template())
    plane, busy = submitted.submitter.plane, tmp_path / "busy"
    conf = submitted.properties() | {
        "spark.kubernetes.driver.master": plane.url,
        "spark.submit.deployMode": "client",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.port": "0",
        "spark.driver.blockManager.port": "0",
        "spark.blockManager.port": "0",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "false",
        "spark.local.dir": str(tmp_path),
        "spark.kubernetes.executor.podTemplateFile": str(tmp_path / "template.yaml"),
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        "spark.task.maxFailures": "1",
    }
    command = [sys.executable, str(PROGRAM), f"k8s://{plane.url}", json.dumps(conf), str(busy)]
    environment = dict(os.environ) | submitted.submitter.environment
    with (tmp_path / "log").open("wb") as log, (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=said, stderr=log)
    try:
        yield Driver(submitted, tmp_path, process, busy)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def executor_of(pod: Obj, driver: Driver) -> Iterator[subprocess.Popen[bytes]]:
    """The pod's container without a container: the image's own entry point with the pod's variables."""
    (container,) = pod["spec"]["containers"]
    variables = {item["name"]: item.get("value", "127.0.0.1") for item in container["env"]}
    environment = dict(os.environ) | driver.submitted.submitter.environment | variables
    environment |= {"SPARK_EXECUTOR_POD_NAME": pod["metadata"]["name"], "SPARK_LOCAL_DIRS": str(driver.place)}
    with (driver.place / "executor.log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", str(ENTRYPOINT), *container["args"]], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_executor_pods_have_what_their_template_says_and_their_death_reaches_the_job(
    submitted: Submitted, driver: Driver
) -> None:
    template = submitted.full["spec"]["executor"]["template"]
    driver.until("two executors", lambda: len(driver.executors()) == 2)
    (driver_pod,) = submitted.submitter.objects("pods", **DRIVER)
    for pod in driver.executors():
        assert differences(template, pod) == []
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
        assert container["resources"]["limits"] == {"cpu": "1500m", "memory": "1Gi"}
        owners = [item["uid"] for item in pod["metadata"]["ownerReferences"]]
        assert driver_pod["metadata"]["uid"] in owners, "when the driver goes, they go"
    first = driver.executors()[0]
    with executor_of(first, driver) as executor:
        driver.write_status(first, {"phase": "Running", "podIP": "127.0.0.1"})
        driver.until("a task that runs", driver.busy.exists)
        os.killpg(executor.pid, signal.SIGKILL)
        state = {"exitCode": 137, "reason": "OOMKilled"}
        dead = {"name": first["spec"]["containers"][0]["name"], "ready": False, "restartCount": 0, "imageID": ""}
        dead |= {"image": "w:1", "state": {"terminated": state}}
        driver.write_status(first, {"phase": "Failed", "containerStatuses": [dead]})
        driver.until("what the job is told", lambda: "Error: job: " in driver.said())
    assert "ExecutorsOutOfMemoryError: job: executors that ran a task of it were killed" in driver.said()
