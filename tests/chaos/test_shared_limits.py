"""One operator, one limit of workers, several policies with queues of different lengths: all of them progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos.aftermath import Logs
from support.cluster.by_kubectl import Cluster
from support.processes.operators import OperatorFleet
from support.time.waiting import eventually

LIMIT = 2
QUEUES = {"large": 12, "small": 2, "tiny": 1}
WORKERS = {"max": 3, "slots": 1, "idleSeconds": 60}
OPTIONS = ("--max-workers", str(LIMIT), "--max-bytes-per-second", "500M")


def done(cluster: Cluster, policy: str) -> int:
    return int(cluster.policy(policy).get("status", {}).get("succeeded", 0))


def waits_of(cluster: Cluster, policy: str) -> set[str]:
    return {row["reason"] for row in cluster.policy(policy).get("status", {}).get("waits", ())}


def test_short_queues_end_while_a_long_one_goes_on_and_the_limit_holds(
    make_fleet: Any, cluster: Cluster, tmp_path: Path
) -> None:
    fleet: OperatorFleet = make_fleet(light=("--task-seconds", "0.5"))
    roots = {name: Logs(tmp_path / name) for name in QUEUES}
    for name, logs in roots.items():
        logs.path.mkdir()
        for number in range(QUEUES[name]):
            logs.add(f"{name}-{number}")
    most: list[int] = []

    def seen(what: bool) -> bool:
        most.append(len(fleet.running_workers()))
        return what

    first = fleet.start(more=OPTIONS)
    cluster.apply_policy(roots["large"].path, name="large", workers=WORKERS)
    eventually(lambda: seen(len(fleet.running_workers()) == LIMIT), "the long queue to have all workers")
    for name in ("small", "tiny"):
        cluster.apply_policy(roots[name].path, name=name, workers=WORKERS)
    eventually(lambda: seen("OperatorWorkerLimit" in waits_of(cluster, "tiny")), "the last in line to say so")
    first.kill()  # whoever follows counts the workers that run on
    fleet.start(more=OPTIONS)
    for name in ("small", "tiny"):
        eventually(lambda name=name: seen(done(cluster, name) == QUEUES[name]), f"the jobs of {name}")
    assert done(cluster, "large") < QUEUES["large"], "the long queue ended first: nothing was shared"
    eventually(lambda: seen(done(cluster, "large") == QUEUES["large"]), "the jobs of the long queue")
    assert max(most) == LIMIT
    for logs in roots.values():
        logs.assert_compacted_once()
