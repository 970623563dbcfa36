"""The operator installed on a node as its users install it, a volume of segment logs, and what is done to pods."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compaction.local.programs.binaries import find_binaries
from compaction.segments.directory import lock
from support.clocks import eventually
from support.cluster.by_kubectl import Cluster, LogRoot, Object, condition
from support.cluster.control_plane import ControlPlane
from tools.images.build import ensure_images
from tools.node.places import NODE_NAME
from tools.node.running import CTR, TOOLS_IMAGE, RunningNode, import_archive

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "storage"
OPERATOR = "compaction-operator"
MOUNT = "/data"
"""Where operator and workers see the volume: the root of every policy."""
CLAIM = "segment-logs"
USER, GROUP = 185, 0
"""As whom operator and workers run."""
MADE_BY_KUBERNETES = ("configmap/kube-root-ca.crt", "serviceaccount/default")
SLOW, FAST = 50_000, 10**9
"""Bytes per second at which a job with 5 MB to copy takes a quarter of an hour, and as long as it needs."""


def plane_of(node: RunningNode) -> ControlPlane:
    """The node's API server, as other tests know theirs."""
    binaries = find_binaries()
    assert binaries is not None
    return ControlPlane(node.kubeconfig, node.plane.url, binaries, node.plane)


@dataclass(frozen=True, slots=True)
class Installation:
    """An operator in the namespace of the manifests; `volume` is the directory behind the claim."""

    node: RunningNode
    cluster: Cluster
    volume: Path

    def kubectl(self, *args: str, **options: Any) -> str:
        return self.cluster.kubectl(*args, **options)

    def apply_policy(
        self, name: str, *, executors: int = 1, slots: int = 2, pods: Mapping[str, Any] | None = None, **spec: Any
    ) -> None:
        """A policy for the logs whose names begin with its own, with workers in pods; `pods`: other members of its
        `workers`.
        """
        workers = {"max": 1, "slots": slots, "idleSeconds": 5, "launcher": "pod"}
        workers |= {"driver": small(), "executor": small() | {"instances": executors, "cores": 1}, **(pods or {})}
        logs = {"root": MOUNT, "include": [f"{name}-*"], "volume": {"claimName": CLAIM}}
        given: dict[str, Any] = {
            "store": {"segmentLogs": logs},
            "trigger": {"interval": "2s"},
            "lease": {"durationSeconds": 10},
            "workers": workers,
            "cleanup": {"delay": "1h"},
        }
        document = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CompactionPolicy", "metadata": {"name": name}}
        self.cluster.apply(document | {"spec": given | spec})

    def slow_policy(self, name: str, **more: Any) -> None:
        """One job at a time, which does not end before `let_go`: whatever happens to it meets it at work."""
        self.apply_policy(name, slots=1, limits={"bytesPerSecond": SLOW}, **more)

    def let_go(self, policy: str) -> None:
        """The running jobs of a slow policy go on as fast as they can: their shares follow its limit. Another policy
        stays as it is.
        """
        if self.cluster.policy(policy)["spec"].get("limits", {}).get("bytesPerSecond") != SLOW:
            return
        fast = json.dumps({"spec": {"limits": {"bytesPerSecond": FAST}}})
        self.kubectl("patch", "cpol", policy, "--type=merge", "--patch", fast)

    def why(self, policy: str) -> str:
        """What the command says of it."""
        return type_in(self.node, [f"kubectl compaction why {policy} -n {NAMESPACE}"])

    def condition(self, policy: str, type_: str = "Ready") -> Object:
        return condition(self.cluster.policy(policy), type_)

    def jobs(self, policy: str) -> list[Object]:
        return [job for job in self.cluster.jobs() if job["spec"]["policyRef"]["name"] == policy]

    def await_at_work(self, policy: str) -> None:
        eventually(lambda: "InProgress" in states(self.jobs(policy)), f"a job of {policy} to begin")

    def await_attempt(self, policy: str, *reasons: str) -> Object:
        """The first ended attempt of a job of the policy that has one of the reasons. None will when all have
        succeeded.
        """

        seen: list[Object] = []

        def ended() -> Object | None:
            jobs = self.jobs(policy)
            seen[:] = [item for job in jobs for item in job.get("status", {}).get("attempts", ())]
            found = next((attempt for attempt in seen if attempt.get("reason") in reasons), None)
            assert found or states(jobs) - {"Succeeded"} or not jobs, seen
            return found

        return eventually(ended, f"an attempt of {policy} to end by {' or '.join(reasons)}", instead=lambda: seen)

    def operators(self) -> list[Object]:
        return self.running(f"app.kubernetes.io/name={OPERATOR}")

    def drivers(self, policy: str) -> list[Object]:
        return self.running(f"compaction.dev/component=worker,compaction.dev/policy={policy}")

    def executors(self, policy: str) -> list[Object]:
        return self.running(f"compaction.dev/component=executor,compaction.dev/policy={policy}")

    def answers(self) -> bool:
        """Whether the API server does."""
        try:
            return self.node.plane.admin.request("GET", "/readyz", timeout=5).ok
        except (OSError, ssl.SSLError):
            return False

    def pods(self, selector: str) -> list[Object]:
        return self.cluster.list("pod", labels=selector)

    def running(self, selector: str) -> list[Object]:
        found = self.pods(selector)
        return [item for item in found if item["status"].get("phase") == "Running" and not deleted(item)]

    def leader(self) -> str:
        """The name of the pod that leads, or nothing."""
        found = self.cluster.list("lease", fields="metadata.name=compaction-coordinator")
        holder = str(found[0]["spec"].get("holderIdentity") or "") if found else ""
        return holder.partition("_")[0]

    def kill(self, pod: Object) -> None:
        """Kill the pod's container as the kernel does when memory runs out: nobody inside hears of it."""
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        self.node.run(*CTR, "tasks", "kill", "--signal", "SIGKILL", container)

    def await_nothing_left(self, policy: str) -> None:
        """No pods of its workers, no Leases of them or of its jobs."""
        mine = f"compaction.dev/policy={policy}"
        eventually(lambda: not self.pods(mine), "the workers' pods to go")
        eventually(lambda: not self.cluster.list("lease", labels=mine), "the Leases to go")

    def logs_for(self, policy: str) -> LogRoot:
        return VolumeLogs(self.volume, {}, policy)


class VolumeLogs(LogRoot):
    """Logs on the volume, owned by the user of the pods; their names begin with the policy's."""

    def __init__(self, path: Path, before: dict[str, str], policy: str) -> None:
        super().__init__(path, before)
        self._policy = policy

    def add(self, name: str, **more: Any) -> Path:
        directory = super().add(f"{self._policy}-{name}", **more)
        # Whoever opens the lock first makes it: a test that does must not shut the pods out.
        (directory / lock.LOCK_FILE).touch()
        give_to_pods(directory)
        return directory

    def leftovers(self) -> list[str]:
        return [path for path in super().leftovers() if f"/{self._policy}-" in path]


def give_to_pods(directory: Path) -> None:
    for place, _, names in os.walk(directory):
        os.chown(place, USER, GROUP)
        for name in names:
            os.chown(Path(place) / name, USER, GROUP, follow_symlinks=False)


def small() -> dict[str, str]:
    """What a pod asks for here, so that all of them find room on two processors."""
    return {"cpu": "100m", "memory": "1536Mi"}


def states(jobs: Iterable[Object]) -> set[str]:
    return {job.get("status", {}).get("state", "") for job in jobs}


def deleted(body: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in body["metadata"]


def volume_object(volume: Path, *, namespace: str = NAMESPACE) -> dict[str, Any]:
    """What a cluster's provisioner makes for a claim; several pods of the one node mount it."""
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": CLAIM if namespace == NAMESPACE else f"{CLAIM}-{namespace}"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteMany"],
            "local": {"path": str(volume)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
            "claimRef": {"namespace": namespace, "name": CLAIM},
        },
    }


def commands_of(section: str, *, path: Path = ROOT / "docs" / "install.md") -> list[str]:
    """The shell commands of a section of the page, as they stand there, in the order of its blocks."""
    found = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", path.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{path} has no section {section!r}"
    # Those with a language are no commands for this cluster.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)
    return [line for language, block in blocks if not language for line in block.splitlines() if line]


def type_in(node: RunningNode, commands: Iterable[str]) -> str:
    """Run commands in the checkout as a person does who has exported the node's KUBECONFIG; what they printed."""
    printed = ""
    for command in commands:
        binaries = find_binaries()
        assert binaries is not None
        path = os.pathsep.join([str(Path(sys.executable).parent), str(binaries.kubectl.parent), os.environ["PATH"]])
        environment = os.environ | {"KUBECONFIG": str(node.kubeconfig), "PATH": path}
        answer = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, f"`{command}` ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}"
        printed += answer.stdout
    return printed


@contextmanager
def installed(node: RunningNode, report: Callable[[str], None]) -> Iterator[Installation]:
    """The operator as docs/install.md says, word by word, with an empty volume; afterwards its removal."""
    for built in ensure_images(report=report):
        import_archive(node, built.archive, report=report)
    volume = node.layout.fresh / "volume"
    volume.mkdir()
    give_to_pods(volume)
    cluster = Cluster(plane_of(node), NAMESPACE)
    cluster.apply(volume_object(volume))
    type_in(
        node,
        [
            command
            for command in commands_of("2. The operator")
            if "install.yaml" not in command and "compaction-system" not in command
        ],
    )
    yield Installation(node, cluster, volume)
    type_in(node, commands_of("Removing it")[:2])

    def left() -> list[str]:
        names = cluster.kubectl("get", "all,lease,cm,sa,role,rolebinding,pdb,networkpolicy", "-o", "name").split()
        return [name for name in names if name not in MADE_BY_KUBERNETES]

    eventually(lambda: not left(), "everything of the installation to be gone")


# kubectl against the node of the tests, as its administrator.


def kubectl(
    node: RunningNode, *args: str, input: str | None = None, check: bool = True, namespace: str | None = None
) -> str:
    """What the real kubectl printed; with `check` a failure shows its own words."""
    return plane_of(node).kubectl(*args, input=input, check=check, namespace=namespace).stdout


# Pods of others in the namespace of the workers: they take memory, processors or a place.

FOREVER = "sleep 100000"


@contextmanager
def other_pod(
    installation: Installation,
    name: str,
    command: str = FOREVER,
    *,
    image: str = TOOLS_IMAGE,
    requests: Mapping[str, str],
    limits: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    priority: str = "",
) -> Iterator[None]:
    """A pod that runs a command of the shell, as PodSecurity `restricted` wants it; afterwards it is gone."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    main: Object = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", command]}
    main |= {"securityContext": security, "resources": {"requests": requests, "limits": limits or {}}}
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 185, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [main],
    } | ({"priorityClassName": priority} if priority else {})
    metadata = {"name": name, "labels": dict(labels or {})}
    installation.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        yield
    finally:
        installation.kubectl("delete", "pod", name, "--grace-period=0", "--force")


def container_state(installation: Installation, name: str) -> Object:
    """Of the pod's one container: waiting, running or terminated; {} before there is one."""
    [pod] = installation.cluster.list("pod", fields=f"metadata.name={name}")
    found: Object = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
    return found


@contextmanager
def priority_class(installation: Installation, name: str, value: int) -> Iterator[None]:
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    installation.cluster.apply(body | {"value": value, "globalDefault": False})
    yield
    installation.kubectl("delete", "priorityclass", name)
