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
from compaction.kube.launchers.kubeflow import WRITTEN_CONF, observe_kubeflow
from compaction.kube.launchers.pod_status import Sighting
from compaction.kube.launchers.pods import DRIVER_CONTAINER
from conftest import delete_namespace
from kube.launchers.kubeflow import questions, released_operator
from kube.launchers.kubeflow.questions import BESIDE, NAME, NAMESPACE
from kube.launchers.kubeflow.questions import submitted as submitted_as
from kube.launchers.kubeflow.recorded import (
    UID,
    WORDS,
    Answer,
    NotRecordedError,
    Question,
    Recording,
    Submission,
    in_order,
)
from kube.launchers.played_cluster import NOW
from kube.launchers.spark_operators import Submitter, differences
from support.clocks import eventually
from support.cluster.control_plane import ControlPlane
from support.timing import at_depth

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


# What the webhook of Kubeflow's published release says about our applications, by its own code; and that the recorded
# answers are those of this release, to what the tests ask and nothing else.

OTHERS = Submission(str(uuid.uuid4()), "10.1.2.3:8443")


@pytest.mark.parametrize("variant", questions.VARIANTS)
def test_its_webhook_takes_our_applications(variant: str) -> None:
    assert released_operator.validate(questions.variant(variant)) == ""


def test_we_know_every_key_that_it_refuses() -> None:
    assert set(WRITTEN_CONF) == set(released_operator.rules())


@pytest.mark.parametrize("key", sorted(WRITTEN_CONF))
def test_it_refuses_the_key_whatever_its_value(key: str) -> None:
    assert f'sparkConf key "{key}" is not allowed' in released_operator.validate(questions.with_setting(key))


def test_it_refuses_another_namespace_and_takes_the_same() -> None:
    assert "must equal the application namespace" in released_operator.validate(questions.in_another_namespace())


@pytest.mark.parametrize("policy", questions.POLICIES)
def test_names_of_workers_satisfy_it(policy: str) -> None:
    """Services are named after applications: their names are stricter than those of other objects."""
    assert released_operator.validate(questions.of_policy(policy)) == ""


def test_the_file_has_what_the_tests_ask_and_a_deep_run_hears_the_same_from_the_program() -> None:
    """Of a submission with a uid and an API server that are not those of the file."""
    asked, recorded = questions.asked(), released_operator.recording()
    assert {question.key for question in asked.values()} == set(recorded.answers)
    for name, question in at_depth(short={}, deep=asked).items():
        assert released_operator.ask(question, OTHERS) == recorded.answer(question), name


def test_answers_of_another_release_or_program_are_none() -> None:
    release, program = released_operator.MODULE.version, released_operator.digest()
    assert Recording.read(release=release, program=program).answers
    for other in (("v0.0.1", program), (release, "00000000")):
        with pytest.raises(NotRecordedError, match="make kubeflow-answers"):
            Recording.read(release=other[0], program=other[1])


def test_what_was_never_asked_fails_and_says_how_to_record_it() -> None:
    application = questions.variant("plain")
    application["spec"]["image"] = "another:1"
    with pytest.raises(
        NotRecordedError, match=r"no answer .* to `validate [0-9a-f]{16}`: .*another:1.*`make kubeflow-answers`"
    ):
        released_operator.validate(application)


def test_what_is_recorded_is_read_as_it_was_written(tmp_path: Path) -> None:
    answer = Answer(arguments=("--name", "a"), files={"/tmp/spark/a.yaml": "a: 1\nb: 2\n"}, failed="failed")
    written = Recording("v1", "ab", {"submit 1": answer, "validate 2": Answer(), "validate 3": Answer(refused="no")})
    written.write(tmp_path / "answers.json")
    assert Recording.read(release="v1", program="ab", path=tmp_path / "answers.json") == written


def test_a_question_does_not_depend_on_the_uid_and_the_order_of_fields() -> None:
    first, second = (questions.submitted("refused", uid) for uid in (OTHERS.uid, UID))
    turned = dict(reversed(first.items()))
    about = Question.about("submit", turned, OTHERS)
    assert about == Question.about("submit", second, Submission())
    assert about.key != Question.about("validate", second).key


def test_settings_are_sorted_but_the_last_of_one_name_still_counts() -> None:
    given = "--master m --conf b=2 --conf a=2 --name n --conf a=1 local:///x --conf 0"
    wanted = "--master m --conf a=2 --conf a=1 --name n --conf b=2 local:///x --conf 0"
    assert in_order(given.split()) == tuple(wanted.split())


def test_a_recorded_submission_runs_spark_submit_with_the_values_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    seen = tmp_path / "bin" / "spark-submit"
    seen.write_text(
        '#!/bin/sh\necho "$@" >"$SEEN"\ncat "$3" >>"$SEEN"\ntest -z "$FAILS" || { echo "no: $FAILS" >&2; exit 1; }\n'
    )
    seen.chmod(0o755)
    inside = Submission().directory / "driver.yaml"
    answer = Answer(
        arguments=("--master", f"k8s://https://{Submission().address}", str(inside)),
        files={str(inside): f"uid: {UID}\n"},
        failed=f"failed to run: {WORDS}",
    )
    environment = {"SPARK_HOME": str(tmp_path), "SEEN": str(tmp_path / "seen"), "FAILS": ""}
    own = OTHERS.directory / "driver.yaml"
    try:
        assert released_operator.replay(answer, OTHERS, environment) == ""
        wanted = f"--master k8s://https://10.1.2.3:8443 {own}\nuid: {OTHERS.uid}\n"
        assert (tmp_path / "seen").read_text() == wanted
        said = released_operator.replay(answer, OTHERS, environment | {"FAILS": "forbidden"})
        assert said == "failed to run: no: forbidden"
        with pytest.raises(AssertionError, match="not recorded: no: code=409"):
            released_operator.replay(answer, OTHERS, environment | {"FAILS": "code=409"})
    finally:
        own.unlink()
        own.parent.rmdir()
