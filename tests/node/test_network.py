"""The network policies of the component, enforced: who reaches what, of the operator, workers, endpoints and strangers,
and that a job needs no more.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from node.network_policies import TABLE, enforced
from node.on_node import NAMESPACE, OPERATOR, Installation, plane_of
from node.test_compaction import await_done
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.by_kubectl import Object
from tools.node.places import API_ADDRESS, API_PORT, NODE_ADDRESS

ELSEWHERE, MONITORING = "elsewhere", "monitoring"
DRIVER, EXECUTOR = {"compaction.dev/component": "worker"}, {"compaction.dev/component": "executor"}
ENDPOINT = {"app.kubernetes.io/name": "compaction-block-ingest", "app.kubernetes.io/component": "block-ingest"}
PODS = {
    "driver": (NAMESPACE, DRIVER),
    "executor": (NAMESPACE, EXECUTOR),
    "endpoint": (NAMESPACE, ENDPOINT),
    "stranger": (NAMESPACE, {}),
    "impostor": (ELSEWHERE, DRIVER),
    "prometheus": (MONITORING, {}),
}
"""Pods that only wait, with the labels of those of the component: name -> namespace, labels."""
OUR_PORTS = {"endpoint": [{"name": "http", "containerPort": 8090}]}
WORKERS, STRANGERS = {"driver", "executor"}, {"stranger", "impostor", "prometheus"}
OURS = {"operator", "endpoint"} | WORKERS
EVERYBODY = OURS | STRANGERS
MAY_REACH = {
    "API server": EVERYBODY,
    "API server of kubeadm": EVERYBODY - {"executor"},
    "DNS over UDP": EVERYBODY,
    "DNS over TCP": EVERYBODY,
    "another port of the node": STRANGERS,
    "another port of the node over UDP": STRANGERS,
    "metrics of the operator": {"prometheus"},
    "probes of the operator": STRANGERS,
    "another port of the operator": set(),
    "driver": WORKERS,
    "driver over UDP": WORKERS,
    "executor": WORKERS,
    "executor over UDP": WORKERS,
    "endpoint": STRANGERS,
    "another port of the endpoint": set(),
    "stranger": STRANGERS,
}
"""Target -> the pods that reach it. What a policy does not select may do as before."""
PROBE = r"""
import json, socket, struct, sys
from concurrent.futures import ThreadPoolExecutor
NAME = b"".join(bytes([len(part)]) + part for part in b"kubernetes.default.svc.cluster.local".split(b"."))
QUESTION = struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + NAME + struct.pack("!B2H", 0, 1, 1)

def reached(target):
    protocol, host, port = target
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as made:
        made.settimeout(4)
        try:
            made.connect((host, port))
            if protocol == "UDP":
                made.send(QUESTION)
                made.recv(512)
        except ConnectionRefusedError:
            return True  # by the host itself: nothing stood between
        except TimeoutError:
            return False
        return True

targets = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(targets)) as pool:
    print(json.dumps(dict(zip(targets, pool.map(reached, targets.values())))))
"""
SCRAPE = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=30).read().decode())"
Target = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """A pod that something is run in."""

    installation: Installation
    namespace: str
    name: str
    address: str

    def python(self, source: str, *arguments: str) -> str:
        command = ["exec", self.name, "--", "python3", "-c", source, *arguments]
        return plane_of(self.installation.node).kubectl(*command, namespace=self.namespace).stdout

    def reached(self, targets: Mapping[str, Target]) -> set[str]:
        """The names of those from which an answer comes."""
        # Nobody is kept from its own address.
        others = {name: target for name, target in targets.items() if target[1] != self.address}
        found: dict[str, bool] = json.loads(self.python(PROBE, json.dumps(others)))
        return {name for name, answered in found.items() if answered}


def place_of(installation: Installation, pod: Object) -> Place:
    return Place(installation, pod["metadata"]["namespace"], pod["metadata"]["name"], pod["status"]["podIP"])


def waiting_pod(name: str, namespace: str, labels: Mapping[str, str], *, image: str) -> Object:
    """As `restricted` wants it."""
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "ports": OUR_PORTS.get(name, []),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 185, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


@contextmanager
def neighbourhood(installation: Installation) -> Iterator[dict[str, Place]]:
    """Waiting pods and one of the operators, by their names in `MAY_REACH`."""
    image = installation.kubectl("get", "deployment", OPERATOR, "-o", "jsonpath={..image}")
    spaces: list[Object] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}},
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": MONITORING, "labels": {"compaction.dev/scrapes": "true"}},
        },
    ]
    pods = [waiting_pod(name, namespace, labels, image=image) for name, (namespace, labels) in PODS.items()]
    plane = plane_of(installation.node)
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(spaces))
    # The account that a pod runs as is made behind its namespace.
    eventually(
        lambda: plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(pods), check=False).returncode == 0,
        "the pods to be created",
    )
    found = {}
    for name, (namespace, _) in PODS.items():
        plane.kubectl("wait", "--for=condition=Ready", f"pod/{name}", TIMEOUT_FLAG, namespace=namespace)
        pod = json.loads(plane.kubectl("get", "pod", name, "-o", "json", namespace=namespace).stdout)
        found[name] = place_of(installation, pod)
    try:
        yield found | {"operator": place_of(installation, installation.operators()[0])}
    finally:
        plane.kubectl("delete", "-f", "-", input=yaml.safe_dump_all([*pods, *spaces]))


def targets_of(places: Mapping[str, Place], operator: str) -> dict[str, Target]:
    """`operator`: the address of one. Where nobody listens the refusal is the answer."""
    driver, executor = places["driver"].address, places["executor"].address
    return {
        "API server": ("TCP", API_ADDRESS, API_PORT),
        "API server of kubeadm": ("TCP", NODE_ADDRESS, 6443),
        "DNS over UDP": ("UDP", NODE_ADDRESS, 53),
        "DNS over TCP": ("TCP", NODE_ADDRESS, 53),
        "another port of the node": ("TCP", NODE_ADDRESS, 5000),
        "another port of the node over UDP": ("UDP", NODE_ADDRESS, 5000),
        "metrics of the operator": ("TCP", operator, 8080),
        "probes of the operator": ("TCP", operator, 8081),
        "another port of the operator": ("TCP", operator, 9999),
        "driver": ("TCP", driver, 41001),
        "driver over UDP": ("UDP", driver, 41001),
        "executor": ("TCP", executor, 41002),
        "executor over UDP": ("UDP", executor, 41002),
        "endpoint": ("TCP", places["endpoint"].address, 8090),
        "another port of the endpoint": ("TCP", places["endpoint"].address, 9999),
        "stranger": ("TCP", places["stranger"].address, 9999),
    }


def test_pods_reach_what_the_policies_say_and_nothing_else(
    installation: Installation, report: Callable[[str], None]
) -> None:
    with neighbourhood(installation) as places:
        other = place_of(installation, installation.operators()[1])
        targets = targets_of(places, other.address)
        assert set(targets) == set(MAY_REACH)
        assert set(places) == EVERYBODY

        def differences(may_reach: Mapping[str, set[str]]) -> dict[str, list[str]]:
            """Pod -> what it reaches and should not (`+`), and what it should and does not (`-`)."""
            with ThreadPoolExecutor(len(places)) as pool:
                reached = dict(zip(places, pool.map(lambda item: item.reached(targets), places.values()), strict=True))
            found = {}
            for source, got in reached.items():
                wanted = {name for name, sources in may_reach.items() if source in sources}
                wanted -= {name for name in wanted if targets[name][1] == places[source].address}
                lines = [f"+ {name}" for name in sorted(got - wanted)] + [f"- {name}" for name in sorted(wanted - got)]
                if lines:
                    found[source] = lines
            return found

        def agrees(may_reach: Mapping[str, set[str]], what: str) -> None:
            last: dict[str, list[str]] = {}

            def settled() -> bool:
                nonlocal last
                last = differences(may_reach)
                return not last

            try:
                # On a busy machine an answer may come late: then it comes the next time.
                eventually(settled, what)
            except AssertionError as error:
                raise AssertionError(f"{what}: {last}") from error

        agrees(dict.fromkeys(MAY_REACH, EVERYBODY), "everybody to reach everything that nothing keeps from it")
        with enforced(installation.node, report):
            agrees(MAY_REACH, "every pod to reach what the policies say")
            scraped = places["prometheus"].python(SCRAPE, f"http://{other.address}:8080/metrics")
            assert "\n# TYPE compaction_" in scraped
            ours = ["nft", "list", "table", "ip", TABLE]
            assert TABLE in installation.node.run(*ours)
            assert subprocess.run(ours, capture_output=True).returncode != 0, "the machine's own network is as it was"


def test_a_job_runs_to_its_end_behind_the_policies(installation: Installation, report: Callable[[str], None]) -> None:
    """With two executors, whose tasks ask the driver over TCP how fast they may be, and tell it over UDP how far."""
    with enforced(installation.node, report) as enforcement, neighbourhood(installation) as places:
        logs = installation.logs_for("network")
        logs.add("a", segments=25, entries_per_segment=1024, payload_bytes=1024, live_fraction=0.2)
        installation.apply_policy("network", executors=2, slots=1, limits={"bytesPerSecond": 1_000_000})
        installation.cluster.await_job_state("InProgress")
        executors = eventually(
            lambda: found if len(found := installation.executors("network")) == 2 else None, "two executors"
        )
        [driver, one, two] = [place_of(installation, pod) for pod in [*installation.drivers("network"), *executors]]
        enforcement.apply()
        forbidden = {name for name, sources in MAY_REACH.items() if "executor" not in sources}
        targets = targets_of(places, places["operator"].address)
        targets = {name: targets[name] for name in forbidden} | {"peer": ("UDP", two.address, 41002)}
        eventually(lambda: one.reached(targets) == {"peer"}, "an executor to reach the other, and no one else")
        workers = {place.name: ("TCP", place.address, 7078) for place in (driver, one, two)}
        assert places["stranger"].reached(workers) == places["impostor"].reached(workers) == set()
        await_done(installation, "network", logs)
