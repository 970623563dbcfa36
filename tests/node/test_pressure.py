"""Workers and the operator beside others that take what the node has: memory, processors, the worker's own place."""

from __future__ import annotations

import json
import re
import time

from node.on_node import NAMESPACE, Installation
from node.others import container_state, other_pod
from node.test_compaction import at_work, await_done
from node.test_launchers import of, without_executors
from support.depth import at_depth
from support.time.waiting import eventually

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
