"""One operator, one limit of workers, several policies with queues of different lengths: all of them progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos.aftermath import Logs
from support.cluster.by_kubectl import Cluster
from support.processes.operators import OperatorFleet
from support.time.waiting import eventually

LIMIT = 2
QUEUES = {"large": 6, "small": 2, "tiny": 1}
WORKERS = {"max": 3, "slots": 1, "idleSeconds": 60}
OPTIONS = ("--max-workers", str(LIMIT), "--max-bytes-per-second", "500M")


def done(cluster: Cluster, policy: str) -> int:
    return int(cluster.policy(policy).get("status", {}).get("succeeded", 0))


def waits_of(cluster: Cluster, policy: str) -> set[str]:
    return {row["reason"] for row in cluster.policy(policy).get("status", {}).get("waits", ())}


def test_short_queues_end_while_a_long_one_goes_on_and_the_limit_holds(
    make_fleet: Any, cluster: Cluster, tmp_path: Path
) -> None:
    """The long queue is fed until the short ones are done, so it cannot end first, however slowly workers start."""
    fleet: OperatorFleet = make_fleet(light=("--task-seconds", "0.2"))
    roots = {name: Logs(tmp_path / name) for name in QUEUES}

    def add(name: str) -> None:
        roots[name].add(f"{name}-{len(roots[name].before)}")

    for name, logs in roots.items():
        logs.path.mkdir()
        for _ in range(QUEUES[name]):
            add(name)
    most: list[int] = []

    def seen(what: bool) -> bool:
        most.append(len(fleet.running_workers()))
        return what

    def done_beside_the_long_queue(name: str) -> bool:
        if len(roots["large"].before) - done(cluster, "large") < QUEUES["large"]:
            add("large")
        return seen(done(cluster, name) == QUEUES[name])

    first = fleet.start(lease_seconds=3, more=OPTIONS)
    cluster.apply_policy(roots["large"].path, name="large", workers=WORKERS)
    eventually(lambda: seen(len(fleet.running_workers()) == LIMIT), "the long queue to have all workers")
    for name in ("small", "tiny"):
        cluster.apply_policy(roots[name].path, name=name, workers=WORKERS)
    eventually(lambda: seen("OperatorWorkerLimit" in waits_of(cluster, "tiny")), "the last in line to say so")
    first.kill()  # whoever follows counts the workers that run on
    fleet.start(lease_seconds=3, more=OPTIONS)
    for name in ("small", "tiny"):
        eventually(lambda name=name: done_beside_the_long_queue(name), f"the jobs of {name}")
    of_large = len(roots["large"].before)
    assert done(cluster, "large") < of_large
    eventually(lambda: seen(done(cluster, "large") == of_large), "the jobs of the long queue")
    assert max(most) == LIMIT
    for logs in roots.values():
        logs.assert_compacted_once()
