"""Workers and the operator beside others that take what the node has: memory, processors, the worker's own place."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from compaction.local.cluster.certs import write_private
from node.on_node import NAMESPACE, Installation, container_state, other_pod, priority_class
from node.test_compaction import at_work, await_done
from node.test_launchers import in_bytes, of, without_executors
from support.clocks import eventually
from support.cluster.by_kubectl import Object
from support.timing import at_depth
from tools.node.places import NODE_NAME
from tools.node.servers import KUBELET

SPARE, ROOM, HOLDS = 1 << 30, 400 << 20, 600 << 20
"""Bytes: what the kubelet keeps free for pods, what they have left, and what a hog among them takes of it."""
LITTLE = {"cpu": "10m", "memory": "16Mi"}
RENEW_DEADLINE = 10.0
"""A renewal that is sent later than this has cost the coordinator its Lease (docs/control-plane.md)."""
SCRAPE = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/metrics', timeout=60).read().decode())"


def test_an_evicted_worker_costs_its_job_no_attempt(installation: Installation) -> None:
    """Beside a hog that runs out of its own memory, which costs nobody else anything."""
    logs = at_work(installation, "pressed", pods=without_executors())
    [driver] = installation.drivers("pressed")
    with other_pod(installation, "hog", "x=x; while :; do x=$x$x; done", requests=LITTLE, limits={"memory": "64Mi"}):
        killed = "the hog to be killed for its memory"
        eventually(
            lambda: container_state(installation, "hog").get("terminated", {}).get("reason") == "OOMKilled", killed
        )
    [undisturbed] = installation.drivers("pressed")
    assert of(undisturbed) == of(driver)
    name = driver["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    installation.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    taken = installation.await_attempt("pressed", "WorkerDisrupted", "WorkerStopped")
    assert taken["worker"] == name
    [job] = await_done(installation, "pressed", logs)
    assert job["status"].get("failures", 0) == 0
    assert job["status"]["fencingToken"] >= 2


def used(installation: Installation) -> int:
    """Bytes of memory of all pods, as the kubelet counts them."""
    said = json.loads(installation.kubectl("get", "--raw", f"/api/v1/nodes/{NODE_NAME}/proxy/stats/summary"))
    [pods] = [item for item in said["node"]["systemContainers"] if item["name"] == "pods"]
    return int(pods["memory"]["workingSetBytes"])


@contextmanager
def pods_have(installation: Installation, size: int) -> Iterator[None]:
    """The kubelet evicts when all pods together use more than `size` bytes, however much the machine has. The kernel
    keeps them below that and `SPARE`.
    """
    path = installation.node.layout.settings / "kubelet.yaml"
    before = path.read_bytes()
    settings = yaml.safe_load(before)
    [node] = json.loads(installation.kubectl("get", "nodes", "-o", "json"))["items"]
    capacity = in_bytes(node["status"]["capacity"]["memory"])
    settings["systemReserved"] = {"memory": str(capacity - size - SPARE)}
    settings["evictionHard"] |= {"memory.available": str(SPARE)}
    settings["evictionPressureTransitionPeriod"] = "10s"
    _restart_kubelet(installation, yaml.safe_dump(settings).encode())
    try:
        yield
    finally:
        _restart_kubelet(installation, before)


def _restart_kubelet(installation: Installation, settings: bytes) -> None:
    log = installation.node.layout.log / "node.log"
    ended = log.read_text().count("kubelet ended")
    installation.node.hold(KUBELET)
    eventually(lambda: log.read_text().count("kubelet ended") > ended, "the kubelet to end")
    write_private(installation.node.layout.settings / "kubelet.yaml", settings)
    installation.node.release(KUBELET)


@pytest.mark.deep
def test_a_worker_that_the_kubelet_evicts_says_what_the_node_lacked(installation: Installation) -> None:
    """Its template asks for less than it uses, and its class is the lowest: so it goes first."""
    less = {"name": "worker", "resources": {"requests": {"memory": "64Mi"}}}
    with priority_class(installation, "bulk", -10):
        template = {"spec": {"containers": [less]}}
        logs = at_work(installation, "evicted", pods=without_executors(priorityClassName="bulk", podTemplate=template))
        [driver] = installation.drivers("evicted")
        image = driver["spec"]["containers"][0]["image"]
        with pods_have(installation, used(installation) + ROOM):
            hold = f"exec python3 -c 'import time; x = b\"x\" * {HOLDS}; time.sleep(100000)'"
            limits = {"memory": str(HOLDS + ROOM)}
            with other_pod(installation, "hog", hold, image=image, requests=LITTLE, limits=limits):
                eventually(lambda: evicted(installation, driver), "the worker to be evicted")
                # Whether the worker can say that it was told to end, in the second that it has, or is lost.
                installation.await_attempt("evicted", "WorkerDisrupted", "WorkerStopped")
        [job] = await_done(installation, "evicted", logs)
    assert job["status"].get("failures", 0) == 0


def evicted(installation: Installation, pod: Object) -> bool:
    """Whether the kubelet says that it took the pod for the node's sake."""
    found = installation.cluster.list("pod", fields=f"metadata.name={pod['metadata']['name']}")
    status = found[0]["status"] if found else {}
    return status.get("reason") == "Evicted" and "low on resource: memory" in status["message"]


def renewals(installation: Installation) -> dict[str, float]:
    """How many renewals of the coordinator's Lease were sent, by how late at most (`+Inf`: all)."""
    said = installation.kubectl("exec", installation.leader(), "--", "python3", "-c", SCRAPE)
    found = re.findall(r'^compaction_lease_renew_delay_seconds_bucket\{le="([^"]+)"\} (\S+)$', said, re.MULTILINE)
    return {bound: float(count) for bound, count in found}


def test_the_leader_sends_its_renewals_in_time_beside_a_load(installation: Installation) -> None:
    leader = installation.leader()
    before = renewals(installation)
    busy = "n=0; while [ $n -lt 6 ]; do (while :; do :; done) & n=$((n+1)); done; wait"
    with other_pod(installation, "busy", busy, requests=LITTLE):
        eventually(lambda: "running" in container_state(installation, "busy"), "the load to begin")
        time.sleep(at_depth(short=15, deep=60))
        after = renewals(installation)
    assert installation.leader() == leader
    sent = after["+Inf"] - before["+Inf"]
    assert sent >= 3
    # What is left out is later than the longest bound, which is that of the renew deadline.
    bounds = [float(bound) for bound in after if bound != "+Inf" and float(bound) <= RENEW_DEADLINE]
    latest = next(bound for bound in after if bound != "+Inf" and float(bound) == max(bounds))
    assert after[latest] - before[latest] == sent, f"renewals that were sent too late: {after}"
