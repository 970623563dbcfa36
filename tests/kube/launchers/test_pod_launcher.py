"""Driver pods on a real API server that enforces PodSecurity `restricted`; the test plays scheduler and kubelet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import LauncherType, WorkerEnding, WorkerTrouble
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection, load_connection
from compaction.kube.client.transport import PODS, Resource
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.backends import BACKENDS, AutoLauncher
from compaction.kube.launchers.base import PolicyKey, WorkerObservation, WorkerPhase, WorkerRef
from compaction.kube.launchers.objects import KEPT_SECONDS, ObjectLauncher
from compaction.kube.launchers.process import ProcessLauncher
from kube.launchers.played_cluster import FULL, request_of, terminated, waiting

pytestmark = pytest.mark.apiserver

NAME = "logs-w-abcd-12345"


@dataclass
class Bench:
    """One launcher with a clock of the test's own, in a namespace that enforces `restricted`."""

    client: ApiClient
    namespace: str
    seconds: float = 0.0
    objects: ObjectLauncher = field(init=False)

    def __post_init__(self) -> None:
        self.successor()

    def successor(self) -> None:
        """Another coordinator, who knows nothing yet."""
        self.objects = ObjectLauncher(self.client, BACKENDS, namespace=self.namespace, monotonic=lambda: self.seconds)

    async def launch(self, workers: dict[str, Any], name: str = NAME) -> WorkerRef:
        return await self.objects.launch_as(LauncherType.POD, request_of(workers, name=name, namespace=self.namespace))

    async def look(self) -> list[WorkerObservation]:
        self.seconds += 60
        return await self.objects.observe()

    async def only(self) -> WorkerObservation:
        (seen,) = await self.look()
        return seen

    async def write(self, status: dict[str, Any], name: str = NAME) -> None:
        pod = await self.client.get(PODS, name, namespace=self.namespace)
        await self.client.replace_status(PODS, pod | {"status": status})

    async def pods(self) -> set[str]:
        listed = await self.client.list(PODS, namespace=self.namespace)
        return {pod["metadata"]["name"] for pod in listed.items}


@pytest.fixture
def bench(control_plane: Any, restricted: str) -> Callable[[Callable[[Bench], Awaitable[None]]], None]:
    """`bench(work)` runs `await work(Bench)`."""
    connection = load_connection(control_plane.kubeconfig)

    def run(work: Callable[[Bench], Awaitable[None]]) -> None:
        async def main() -> None:
            async with ApiClient(connection) as client:
                await work(Bench(client, restricted))

        asyncio.run(main())

    return run


Run = Callable[[Callable[[Bench], Awaitable[None]]], None]


@pytest.mark.parametrize("workers", [{}, FULL], ids=["plain", "full"])
def test_a_pod_is_admitted_runs_and_is_cleared_away(bench: Run, workers: dict[str, Any]) -> None:
    async def work(b: Bench) -> None:
        ref = await b.launch(workers)
        assert (await b.only()).phase is WorkerPhase.PENDING
        await b.write({"phase": "Running", "podIP": "10.1.2.3"})
        assert (await b.only()).phase is WorkerPhase.RUNNING
        await b.write(terminated(0, reason="Completed"))
        seen = await b.only()
        assert (seen.phase, seen.exit_code, seen.policy) == (WorkerPhase.SUCCEEDED, 0, PolicyKey(b.namespace, "logs"))
        await b.objects.forget(ref)
        assert await b.look() == []
        assert await b.pods() == set()

    bench(work)


def test_a_name_is_used_once(bench: Run) -> None:
    async def work(b: Bench) -> None:
        await b.launch({})
        with pytest.raises(LaunchError, match="names are used once"):
            await b.launch({})

    bench(work)


def test_admission_that_refuses_is_told_in_its_own_words(bench: Run) -> None:
    async def work(b: Bench) -> None:
        template = {"spec": {"containers": [{"name": "worker", "securityContext": {"capabilities": {"drop": []}}}]}}
        with pytest.raises(LaunchError, match=r"was refused: .*violates PodSecurity"):
            await b.launch({"podTemplate": template})
        assert await b.look() == []

    bench(work)


def test_a_refusal_says_what_to_do_about_it(bench: Run) -> None:
    async def work(b: Bench) -> None:
        with pytest.raises(LaunchError, match=r"no PriorityClass with name bulk was found; create it, or correct spec"):
            await b.launch({"priorityClassName": "bulk"})
        assert await b.look() == []

    bench(work)


def test_what_a_quota_says_is_answered_by_what_helps(bench: Run) -> None:
    """It counts CPUs that a pod may use, which ours do not limit; with a default they are counted, and one too many is
    no room.
    """

    quotas, ranges = (Resource("", "v1", f"{kind.lower()}s", kind) for kind in ("ResourceQuota", "LimitRange"))

    async def work(b: Bench) -> None:
        async def make(resource: Resource, spec: dict[str, Any]) -> dict[str, Any]:
            return await b.client.create(
                resource, {"metadata": {"name": "sizes", "namespace": b.namespace}, "spec": spec}
            )

        hard = {"limits.cpu": "1500m"}
        quota = await make(quotas, {"hard": hard})
        # The part of the absent controller.
        await b.client.replace_status(quotas, quota | {"status": {"hard": hard, "used": {"limits.cpu": "0"}}})
        with pytest.raises(LaunchError, match=r"must specify limits\.cpu.*have a LimitRange give it a default"):
            await b.launch({})
        await make(ranges, {"limits": [{"type": "Container", "default": {"cpu": "1"}}]})
        for _ in range(600):
            # The API server takes a moment to see the LimitRange.
            with suppress(LaunchError):
                await b.launch({}, name="first")
                break
            await asyncio.sleep(0.1)
        assert await b.pods() == {"first"}
        with pytest.raises(LaunchError, match=r"exceeded quota.*lower what spec\.workers asks for, or raise it"):
            await b.launch({}, name="second")

    bench(work)


def test_a_misspelt_template_is_refused_and_not_dropped(bench: Run) -> None:
    async def work(b: Bench) -> None:
        with pytest.raises(LaunchError, match=r'unknown field "spec.nodeSelektor"'):
            await b.launch({"podTemplate": {"spec": {"nodeSelektor": {"a": "b"}}}})

    bench(work)


def test_trouble_is_seen(bench: Run) -> None:
    async def work(b: Bench) -> None:
        await b.launch({})
        await b.write(waiting("ImagePullBackOff", "manifest unknown"))
        seen = await b.only()
        assert (seen.trouble, seen.message) == (WorkerTrouble.IMAGE_PULL, "manifest unknown")

    bench(work)


def test_a_pod_deleted_by_hand_is_told_as_such_until_it_is_forgotten(bench: Run) -> None:
    async def work(b: Bench) -> None:
        ref = await b.launch({})
        await b.write({"phase": "Running"})
        await b.only()
        await b.client.delete(PODS, NAME, namespace=b.namespace, grace_seconds=0)
        for _ in range(2):
            seen = await b.only()
            assert (seen.phase, seen.ending) == (WorkerPhase.LOST, WorkerEnding.DELETED)
        await b.objects.forget(ref)
        assert await b.look() == []

    bench(work)


def test_a_namesake_made_after_a_deletion_is_not_the_worker(bench: Run) -> None:
    async def work(b: Bench) -> None:
        ref = await b.launch({})
        await b.only()
        await b.client.delete(PODS, NAME, namespace=b.namespace, grace_seconds=0)
        other = {
            "metadata": {"name": NAME, "namespace": b.namespace},
            "spec": {
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "x",
                        "image": "x",
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ],
            },
        }
        await b.client.create(PODS, other)
        assert (await b.only()).phase is WorkerPhase.LOST
        await b.objects.forget(ref)
        assert await b.pods() == {NAME}, "what is not ours stays"

    bench(work)


def test_a_successor_finds_what_runs_and_may_stop_it(bench: Run) -> None:
    async def work(b: Bench) -> None:
        ref = await b.launch({})
        await b.write({"phase": "Running"})
        b.successor()
        assert (await b.only()).phase is WorkerPhase.RUNNING
        assert b.objects.knows(ref)
        await b.objects.stop(ref, grace=5)
        await b.objects.stop(ref, grace=5)
        assert await b.pods() == set()

    bench(work)


def test_a_worker_that_failed_stays_a_while_for_its_log(bench: Run) -> None:
    async def work(b: Bench) -> None:
        ref = await b.launch({})
        await b.write(terminated(1, message="error: no Java"))
        assert (await b.only()).message == "exit code 1: error: no Java"
        await b.objects.forget(ref)
        assert await b.look() == []
        assert await b.pods() == {NAME}
        b.seconds += KEPT_SECONDS
        await b.look()
        assert await b.pods() == set()

    bench(work)


def test_what_only_looks_like_a_worker_is_left_alone(bench: Run) -> None:
    async def work(b: Bench) -> None:
        ref = await b.launch({})
        body = await b.client.get(PODS, NAME, namespace=b.namespace)
        await b.objects.stop(ref, grace=0)
        await b.look()
        await b.objects.forget(ref)
        kept = {key: body["metadata"][key] for key in ("name", "namespace", "labels")}
        await b.client.create(PODS, {"metadata": kept, "spec": body["spec"]})
        assert await b.look() == [], "labels are anybody's to write; no policy owns it"
        assert await b.pods() == {NAME}

    bench(work)


def test_workers_that_are_launched_during_a_look_are_not_lost(bench: Run) -> None:
    async def work(b: Bench) -> None:
        names = [f"logs-w-abcd-{number:05d}" for number in range(8)]
        for number, name in enumerate(names):
            await asyncio.gather(b.look(), b.launch({}, name=name))
            assert {seen.name for seen in await b.look()} == set(names[: number + 1])

    bench(work)


def test_an_answer_that_does_not_come_changes_nothing(control_plane: Any, restricted: str) -> None:
    async def work() -> None:
        connection = load_connection(control_plane.kubeconfig)
        async with ApiClient(connection) as client:
            b = Bench(client, restricted)
            await b.launch({})
            before = await b.look()
            nowhere = ApiConnection("https://127.0.0.1:1", connection.ssl_context, connection.token)
            async with ApiClient(nowhere, deadline=0.2) as cut_off:
                b.objects._client = cut_off
                assert await b.look() == before

    asyncio.run(work())


def test_an_account_without_permission_for_pods_uses_what_it_may(
    control_plane: Any, restricted: str, tmp_path: Path
) -> None:
    kubeconfig = control_plane.running.kubeconfig_for("nobody-special", tmp_path / "kubeconfig", namespace=restricted)

    async def work() -> None:
        async with ApiClient(load_connection(kubeconfig)) as client:
            objects = ObjectLauncher(client, BACKENDS, namespace=restricted)
            processes = ProcessLauncher(tmp_path, command=lambda _request: ["true"])
            launcher = AutoLauncher(processes, objects, in_pod=False)
            ref = await launcher.launch(request_of({}, namespace=restricted))
            await asyncio.to_thread(processes._children[NAME].wait)
            (seen,) = await launcher.observe()
            assert (seen.name, seen.phase) == (NAME, WorkerPhase.SUCCEEDED)
            await launcher.forget(ref)
            with pytest.raises(LaunchError, match=r"may not list pods. Grant it get, list, create and delete on pods"):
                await launcher.launch(request_of({"launcher": "pod"}, name="logs-w-2", namespace=restricted))

    asyncio.run(work())


def test_what_is_sent_says_nothing_secret(bench: Run) -> None:
    """Secrets are named, never read: the operator has no permission to, and the pod holds no value of any."""

    async def work(b: Bench) -> None:
        await b.launch(FULL)
        pod = await b.client.get(PODS, NAME, namespace=b.namespace)
        assert json.dumps(pod["spec"]["containers"][0]["envFrom"]) == '[{"secretRef": {"name": "credentials"}}]'

    bench(work)
