"""SparkApplications of both operators on a real API server that holds their definitions, with strict validation.

The test writes their states to the status in their operators' place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import LauncherType, WorkerEnding, WorkerTrouble
from compaction.kube.client.api import ApiCall, ApiClient
from compaction.kube.client.config import load_connection
from compaction.kube.client.transport import PODS, Obj
from compaction.kube.errors import LaunchError, LaunchUncertainError
from compaction.kube.launchers.apache import apache_application
from compaction.kube.launchers.backends import BACKENDS, AutoLauncher
from compaction.kube.launchers.base import WorkerObservation, WorkerPhase, WorkerRef
from compaction.kube.launchers.driver_pod import driver_pod
from compaction.kube.launchers.kubeflow import WRITTEN_CONF, kubeflow_application
from compaction.kube.launchers.objects import KINDS, Availability, ObjectLauncher
from compaction.kube.launchers.pods import DRIVER_CONTAINER, SPARK_VERSION
from compaction.kube.launchers.process import ProcessLauncher
from kube.launchers.played_cluster import FULL, IMAGE, of_spark, request_of, terminated
from kube.launchers.spark_operators import define
from support.clocks import TIMEOUT_FLAG, eventually

NAME = "logs-w-abcd-12345"
BOTH = pytest.mark.parametrize("launcher", [LauncherType.KUBEFLOW, LauncherType.APACHE])
Work = Callable[["Bench"], Awaitable[None]]

STATES: Mapping[LauncherType, Mapping[str, Obj]] = {
    LauncherType.KUBEFLOW: {
        "running": {"applicationState": {"state": "RUNNING"}, "driverInfo": {}},
        "done": {"applicationState": {"state": "COMPLETED"}, "driverInfo": {}},
        "failed": {"applicationState": {"state": "FAILED", "errorMessage": "exit code 1"}, "driverInfo": {}},
    },
    LauncherType.APACHE: {
        "running": {"currentState": {"currentStateSummary": "RunningHealthy"}},
        "done": {
            "currentState": {"currentStateSummary": "ResourceReleased"},
            "stateTransitionHistory": {
                "0": {"currentStateSummary": "RunningHealthy"},
                "1": {"currentStateSummary": "Succeeded"},
                "2": {"currentStateSummary": "ResourceReleased"},
            },
        },
        "failed": {"currentState": {"currentStateSummary": "Failed", "message": "exit code 1"}},
    },
}


@dataclass
class Bench:
    client: ApiClient
    namespace: str
    launcher: LauncherType
    seconds: float = 0.0
    objects: ObjectLauncher = field(init=False)

    def __post_init__(self) -> None:
        self.objects = ObjectLauncher(self.client, BACKENDS, namespace=self.namespace, monotonic=lambda: self.seconds)

    async def launch(self, workers: dict[str, Any]) -> WorkerRef:
        return await self.objects.launch_as(self.launcher, request_of(workers, name=NAME, namespace=self.namespace))

    async def look(self) -> list[WorkerObservation]:
        self.seconds += 60
        return await self.objects.observe()

    async def only(self) -> WorkerObservation:
        (seen,) = await self.look()
        return seen

    async def write(self, what: str) -> None:
        """Their operator writes a state."""
        kind = KINDS[self.launcher]
        body = await self.client.get(kind, NAME, namespace=self.namespace)
        await self.client.replace_status(kind, body | {"status": STATES[self.launcher][what]})

    async def driver(
        self,
        status: dict[str, Any],
        *,
        name: str = f"{NAME}-driver",
        spark_role: str = "driver",
        owner: dict[str, Any] | None = None,
    ) -> None:
        """Their operator makes the driver's pod, from our template, and the kubelet writes its status."""
        body = driver_pod(request_of({}, name=NAME, namespace=self.namespace))
        if owner is not None:
            reference = {key: owner[key] for key in ("apiVersion", "kind")}
            reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
            body["metadata"]["ownerReferences"] = [reference]
        body["metadata"]["name"] = name
        body["metadata"]["labels"]["spark-role"] = spark_role
        made = await self.client.create(PODS, body)
        await self.client.replace_status(PODS, made | {"status": of_spark(status)})


@pytest.fixture
def bench(control_plane: Any, restricted: str, spark_operators: None) -> Callable[[LauncherType, Work], None]:
    def run(launcher: LauncherType, work: Work) -> None:
        async def main() -> None:
            async with ApiClient(load_connection(control_plane.kubeconfig)) as client:
                await work(Bench(client, restricted, launcher))

        asyncio.run(main())

    return run


Run = Callable[[LauncherType, Work], None]

VARIANTS = {
    "plain": {},
    "full": FULL,
    "dynamic": FULL | {"dynamicAllocation": {"minExecutors": 0, "maxExecutors": 3}, "executor": {"instances": 0}},
}


@BOTH
@pytest.mark.parametrize("variant", VARIANTS)
def test_their_definitions_take_our_objects_and_lose_nothing(bench: Run, launcher: LauncherType, variant: str) -> None:
    async def work(b: Bench) -> None:
        sent = BACKENDS[launcher].build(request_of(VARIANTS[variant], name=NAME, namespace=b.namespace))
        await b.launch(VARIANTS[variant])
        kept = await b.client.get(KINDS[launcher], NAME, namespace=b.namespace)
        assert _within(sent["spec"], kept["spec"])

    bench(launcher, work)


def _within(sent: Any, kept: Any) -> bool:
    """True when everything that was sent is there; their definitions may add defaults."""
    if isinstance(sent, dict):
        return all(key in kept and _within(value, kept[key]) for key, value in sent.items())
    return bool(sent == kept)


@BOTH
def test_a_worker_lives_and_is_cleared_away(bench: Run, launcher: LauncherType) -> None:
    async def work(b: Bench) -> None:
        ref = await b.launch({})
        assert (await b.only()).phase is WorkerPhase.PENDING
        await b.write("running")
        assert (await b.only()).phase is WorkerPhase.RUNNING
        await b.write("done")
        assert (await b.only()).ending is WorkerEnding.COMPLETED
        await b.objects.forget(ref)
        assert await b.look() == []
        listed = await b.client.list(KINDS[launcher], namespace=b.namespace)
        assert listed.items == ()

    bench(launcher, work)


@BOTH
def test_its_driver_pod_is_no_worker_of_its_own_and_says_how_it_ended(bench: Run, launcher: LauncherType) -> None:
    async def work(b: Bench) -> None:
        await b.launch({})
        await b.driver(terminated(137, reason="OOMKilled"))
        await b.write("failed")
        seen = await b.only()
        assert (seen.name, seen.ending) == (NAME, WorkerEnding.OUT_OF_MEMORY)

    bench(launcher, work)


@BOTH
def test_an_executor_with_the_drivers_labels_is_never_its_driver(bench: Run, launcher: LauncherType) -> None:
    """Kubeflow's operator copies the application's labels to executors; ours of before had no others."""

    async def work(b: Bench) -> None:
        await b.launch({})
        await b.driver({"phase": "Running"}, spark_role="driver")
        oom = terminated(137, reason="OOMKilled")
        for number in (1, 2):
            await b.driver(oom, name=f"{NAME}-exec-{number}", spark_role="executor")
        await b.write("running")
        seen = await b.only()
        assert (seen.name, seen.phase, seen.ending) == (NAME, WorkerPhase.RUNNING, None)

    bench(launcher, work)


@pytest.mark.parametrize("owned", [True, False])
def test_the_driver_pod_of_a_failed_submission_is_deleted_once_its_end_was_acted_upon(bench: Run, owned: bool) -> None:
    """Unless it is somebody else's, with the labels of a driver: labels are anybody's to write."""

    async def work(b: Bench) -> None:
        ref = await b.launch({})
        body = await b.client.get(KINDS[b.launcher], NAME, namespace=b.namespace)
        await b.driver({"phase": "Pending"}, owner=body if owned else None)
        failed = {"applicationState": {"state": "FAILED", "errorMessage": "no quota"}, "driverInfo": {}}
        await b.client.replace_status(KINDS[b.launcher], body | {"status": failed})

        async def pods() -> list[str]:
            return [item["metadata"]["name"] for item in (await b.client.list(PODS, namespace=b.namespace)).items]

        assert (await b.only()).message == "no quota"
        assert await pods() == [f"{NAME}-driver"], "until its end was acted upon"
        await b.objects.forget(ref)
        await b.look()
        assert await pods() == ([] if owned else [f"{NAME}-driver"])
        assert (await b.client.get(KINDS[b.launcher], NAME, namespace=b.namespace))["status"] == failed, "to be read"

    bench(LauncherType.KUBEFLOW, work)


def test_a_live_driver_beside_a_failed_submission(bench: Run) -> None:
    async def work(b: Bench) -> None:
        await b.launch({})
        await b.driver({"phase": "Running"})
        failed = {"applicationState": {"state": "SUBMISSION_FAILED", "errorMessage": "exists"}, "driverInfo": {}}
        kind = KINDS[b.launcher]
        body = await b.client.get(kind, NAME, namespace=b.namespace)
        await b.client.replace_status(kind, body | {"status": failed})
        assert (await b.only()).phase is WorkerPhase.RUNNING

    bench(LauncherType.KUBEFLOW, work)


@BOTH
def test_an_operator_of_theirs_that_does_not_run(bench: Run, launcher: LauncherType) -> None:
    async def work(b: Bench) -> None:
        await b.launch({})
        for _ in range(3 if launcher is LauncherType.KUBEFLOW else 1):
            assert (await b.only()).trouble is None
        assert (await b.only()).trouble is WorkerTrouble.OPERATOR_SILENT

    bench(launcher, work)


@BOTH
@pytest.mark.parametrize("before", ["running", "done"])
def test_an_application_that_goes_by_hand_or_by_its_ttl(bench: Run, launcher: LauncherType, before: str) -> None:
    async def work(b: Bench) -> None:
        await b.launch({})
        await b.write(before)
        last = await b.only()
        await b.client.delete(KINDS[launcher], NAME, namespace=b.namespace)
        seen = await b.only()
        if last.ended:
            assert seen == last, "it ended as it did, whoever cleared it away"
        else:
            assert (seen.phase, seen.ending) == (WorkerPhase.LOST, WorkerEnding.DELETED)

    bench(launcher, work)


def test_a_finalizer_that_nobody_takes_away_does_not_hold_us_up(bench: Run) -> None:
    """Apache's operator has one: while it is down, its applications stay."""

    async def work(b: Bench) -> None:
        kind = KINDS[b.launcher]
        ref = await b.launch({})
        finalizers = {"metadata": {"finalizers": ["spark.apache.org/finalizer"]}}
        await b.client.patch(kind, NAME, finalizers, namespace=b.namespace)
        await b.write("done")
        await b.only()
        await b.objects.forget(ref)
        assert await b.look() == []
        assert await b.look() == []
        await b.client.patch(kind, NAME, {"metadata": {"finalizers": None}}, namespace=b.namespace)

    bench(LauncherType.APACHE, work)


def test_auto_finds_an_operator_that_is_installed_and_one_that_is_taken_away(
    control_plane: Any, restricted: str, tmp_path: Path, shared_fixtures: Path, spark_operators: None
) -> None:
    kubectl = control_plane.kubectl

    async def work() -> None:
        seconds = 0.0
        async with ApiClient(load_connection(control_plane.kubeconfig)) as client:
            objects = ObjectLauncher(client, BACKENDS, namespace=restricted, monotonic=lambda: seconds)
            launcher = AutoLauncher(ProcessLauncher(tmp_path), objects, in_pod=True)

            async def kind_of_next(name: str) -> str:
                ref = await launcher.launch(request_of({}, name=name, namespace=restricted))
                return ref.detail

            assert await kind_of_next("logs-w-1") == "SparkApplication, launcher kubeflow"
            kubectl("delete", "crd", "sparkapplications.sparkoperator.k8s.io", TIMEOUT_FLAG)
            seconds += 60
            assert await kind_of_next("logs-w-2") == "SparkApplication, launcher apache"
            with pytest.raises(LaunchError, match=r"does not serve sparkapplications.sparkoperator.k8s.io"):
                await launcher.launch(request_of({"launcher": "kubeflow"}, name="logs-w-3", namespace=restricted))
            kubectl("delete", "crd", "sparkapplications.spark.apache.org", TIMEOUT_FLAG)
            seconds += 60
            assert await kind_of_next("logs-w-4") == "Pod, launcher pod"
            define(kubectl, shared_fixtures)
            seconds += 60
            assert await kind_of_next("logs-w-5") == "SparkApplication, launcher kubeflow"

    asyncio.run(work())


def test_auto_takes_the_next_kind_when_the_offered_one_has_just_gone(
    control_plane: Any, restricted: str, tmp_path: Path, spark_operators: None
) -> None:
    """No time passes for the launcher, so its offer is the one from before the deletion."""

    async def work() -> None:
        async with ApiClient(load_connection(control_plane.kubeconfig), deadline=5) as client:
            objects = ObjectLauncher(client, BACKENDS, namespace=restricted, monotonic=lambda: 0.0)
            launcher = AutoLauncher(ProcessLauncher(tmp_path), objects, in_pod=True)
            assert await objects.offer() == dict.fromkeys(KINDS, Availability.USABLE)
            control_plane.kubectl("delete", "crd", "sparkapplications.sparkoperator.k8s.io", TIMEOUT_FLAG)
            ref = await launcher.launch(request_of({}, name="logs-w-1", namespace=restricted))
            assert ref.detail == "SparkApplication, launcher apache"
            with pytest.raises(LaunchError, match=r"does not serve sparkapplications.sparkoperator.k8s.io"):
                await launcher.launch(request_of({"launcher": "kubeflow"}, name="logs-w-2", namespace=restricted))

    asyncio.run(work())


def test_auto_takes_the_next_kind_while_the_definition_of_the_offered_one_is_being_deleted(
    control_plane: Any, restricted: str, tmp_path: Path, spark_operators: None
) -> None:
    """An application that somebody holds keeps its definition: listed and served, but nothing new is taken."""
    kubectl, definition = control_plane.kubectl, "sparkapplications.sparkoperator.k8s.io"
    held = BACKENDS[LauncherType.KUBEFLOW].build(request_of({}, name="held", namespace=restricted))
    held["metadata"]["finalizers"] = ["example.com/held"]
    kubectl("create", "-f", "-", input=json.dumps(held))

    async def work() -> None:
        async with ApiClient(load_connection(control_plane.kubeconfig), deadline=5) as client:
            objects = ObjectLauncher(client, BACKENDS, namespace=restricted)
            launcher = AutoLauncher(ProcessLauncher(tmp_path), objects, in_pod=True)
            assert await objects.offer() == dict.fromkeys(KINDS, Availability.USABLE)
            ref = await launcher.launch(request_of({}, name="logs-w-1", namespace=restricted))
            assert ref.detail == "SparkApplication, launcher apache"
            with pytest.raises(LaunchError, match=rf"does not serve {definition}"):
                await launcher.launch(request_of({"launcher": "kubeflow"}, name="logs-w-2", namespace=restricted))

    kubectl("delete", "crd", definition, "--wait=false")
    try:
        kubectl("wait", "crd", definition, "--for=condition=Terminating", TIMEOUT_FLAG)
        eventually(lambda: "is terminating" in _refusal(control_plane, held), "the server takes no more of them")
        asyncio.run(work())
    finally:
        kubectl(
            "patch", definition, "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}', namespace=restricted
        )
        kubectl("wait", "crd", definition, "--for=delete", TIMEOUT_FLAG)


def _refusal(control_plane: Any, body: Obj) -> str:
    """What the API server says to one more object like this, which it would not keep."""
    another = body | {"metadata": body["metadata"] | {"name": "another", "finalizers": []}}
    return str(
        control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(another), check=False).stderr
    )


def test_a_definition_that_is_not_served_yet_is_waited_for_and_one_that_never_is_is_named(
    control_plane: Any, restricted: str, shared_fixtures: Path
) -> None:
    """Discovery lists a new definition before the server answers on its path."""
    kubectl = control_plane.kubectl
    kubectl(
        "delete",
        "crd",
        "--ignore-not-found",
        "sparkapplications.sparkoperator.k8s.io",
        TIMEOUT_FLAG,
    )

    async def work() -> None:
        calls: list[ApiCall] = []
        refused = asyncio.Event()

        def observe(call: ApiCall) -> None:
            calls.append(call)
            if (call.verb, call.code) == ("create", "404"):
                refused.set()

        async def launch(name: str, deadline: float) -> WorkerRef:
            connection = load_connection(control_plane.kubeconfig)
            async with ApiClient(connection, observe=observe, deadline=deadline) as client:
                objects = ObjectLauncher(client, BACKENDS, namespace=restricted)
                request = request_of({}, name=name, namespace=restricted)
                return await objects.launch_as(LauncherType.KUBEFLOW, request)

        with pytest.raises(LaunchError, match=r"logs-w-1 could not be made.*404 page not found") as never:
            await launch("logs-w-1", deadline=1)
        assert not isinstance(never.value, LaunchUncertainError), (
            "nothing was processed: the next try may have its name"
        )
        assert [call.code for call in calls].count("404") > 1
        refused.clear()
        waiting = asyncio.create_task(launch("logs-w-2", deadline=120))
        await refused.wait()
        await asyncio.to_thread(define, kubectl, shared_fixtures)
        assert (await waiting).detail == "SparkApplication, launcher kubeflow"

    asyncio.run(work())


class TestBuilders:
    """What is in the objects, without a server."""

    def test_spark_is_the_version_that_is_installed(self) -> None:
        assert version("pyspark") == SPARK_VERSION

    def test_kubeflow_gets_what_it_has_fields_for(self) -> None:
        spec = kubeflow_application(request_of(FULL))["spec"]
        assert (spec["image"], spec["imagePullPolicy"], spec["imagePullSecrets"]) == (
            IMAGE,
            "IfNotPresent",
            ["registry"],
        )
        assert spec["restartPolicy"] == {"type": "Never"}
        driver, executor = spec["driver"], spec["executor"]
        assert (driver["memory"], driver["memoryOverhead"]) == ("512m", "1536m"), "together what the policy says"
        assert (driver["coreRequest"], driver["coreLimit"], driver["serviceAccount"]) == (
            "250m",
            "2",
            "compaction-worker",
        )
        assert (executor["instances"], executor["cores"], executor["serviceAccount"]) == (2, 2, "compaction-executor")

    def test_kubeflow_is_not_told_twice(self) -> None:
        for variant in VARIANTS.values():
            application = kubeflow_application(request_of(variant))
            assert not WRITTEN_CONF & set(application["spec"]["sparkConf"])

    def test_kubeflow_labels_each_pod_as_its_template_does(self) -> None:
        """It copies the application's labels over those of both templates."""
        spec = kubeflow_application(request_of(FULL))["spec"]
        for role in ("driver", "executor"):
            assert spec[role]["labels"] == spec[role]["template"]["metadata"]["labels"]
        assert spec["executor"]["labels"]["compaction.dev/component"] == "executor"

    def test_a_driver_alone_says_so_itself(self) -> None:
        spec = kubeflow_application(request_of({}))["spec"]
        assert spec["executor"] == {}
        assert spec["arguments"][spec["arguments"].index("--master") + 1] == "local[2]"
        distributed = kubeflow_application(request_of(FULL))["spec"]
        assert "--master" not in distributed["arguments"]

    def test_the_queue_is_on_the_application_or_on_the_driver_never_on_both(self) -> None:
        label = "kueue.x-k8s.io/queue-name"
        application = kubeflow_application(request_of(FULL))
        assert application["metadata"]["labels"][label] == "compaction"
        assert label not in application["spec"]["driver"]["template"]["metadata"]["labels"]
        application = apache_application(request_of(FULL))
        assert label not in application["metadata"]["labels"]
        templates = [application["spec"][role]["podTemplateSpec"] for role in ("driverSpec", "executorSpec")]
        assert [template["metadata"]["labels"].get(label) for template in templates] == ["compaction", None]

    def test_apache_gets_everything_else_as_settings_of_spark(self) -> None:
        conf = apache_application(request_of(FULL))["spec"]["sparkConf"]
        assert conf["spark.kubernetes.container.image"] == IMAGE
        assert conf["spark.kubernetes.container.image.pullSecrets"] == "registry"
        assert conf["spark.kubernetes.authenticate.driver.serviceAccountName"] == "compaction-worker"
        assert (conf["spark.driver.memory"], conf["spark.driver.memoryOverhead"]) == ("512m", "1536m")
        assert conf["spark.kubernetes.driver.limit.cores"] == "2"

    @pytest.mark.parametrize("build", [kubeflow_application, apache_application])
    def test_pods_are_as_ours(self, build: Callable[..., dict[str, Any]]) -> None:
        spec = build(request_of(FULL))["spec"]
        template = spec["driver"]["template"] if "driver" in spec else spec["driverSpec"]["podTemplateSpec"]
        (container,) = template["spec"]["containers"]
        assert container["name"] == DRIVER_CONTAINER
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert "args" not in container
        assert {"name": "TZ", "value": "UTC"} in container["env"]
        assert "/data/ra" in {item["mountPath"] for item in container["volumeMounts"]}

    @pytest.mark.parametrize("build", [kubeflow_application, apache_application, driver_pod])
    def test_a_driver_gets_the_memory_it_is_given_this_time(self, build: Callable[..., dict[str, Any]]) -> None:
        text = str(build(request_of({}, memory=4 << 30)))
        assert "3584m" in text or str(4 << 30) in text

    @pytest.mark.parametrize("build", [kubeflow_application, apache_application, driver_pod])
    def test_executors_get_the_memory_they_are_given_this_time(self, build: Callable[..., dict[str, Any]]) -> None:
        workers = {"executor": {"instances": 1, "memory": "1Gi"}}
        body = build(request_of(workers, executor_memory=4 << 30))
        assert body["metadata"]["annotations"]["compaction.dev/executor-memory"] == str(4 << 30)
        assert "spark.executor.memoryOverhead" in str(body)
        assert "3584m" in str(body)
