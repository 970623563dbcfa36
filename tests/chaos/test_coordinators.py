"""Leaders that are killed, and leaders that sleep through their lease: how soon the next one leads, and that the old
one does no harm.
"""

from __future__ import annotations

import json
import signal
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from chaos.outages import Logs, assert_all_done, leader, lease_of_the_coordinator
from compaction.kube.replica.operator import ExitCode
from compaction.leases.elector import HARD_EXIT_CODE
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import Cluster
from support.processes.operators import OperatorFleet, OperatorProcess, grant

LEASE = 5
# Of the jobs: so long that a busy machine costs no worker its job. What is lost here is lost with a leader.
JOB_LEASE = {"durationSeconds": 60}
WORKERS = {"max": 1, "slots": 2, "idleSeconds": 2, "sparkMaster": "local[1]"}
FAILOVER_SECONDS = LEASE + 5
WRITES = {"create", "update", "patch", "delete"}


def replicas_with_accounts(fleet: OperatorFleet, plane: Any, number: int) -> list[OperatorProcess]:
    """Each with an account of its own, so that the audit log tells who wrote what."""
    replicas = []
    for index in range(number):
        account = f"operator-{index}"
        kubeconfig = grant(plane, fleet.namespace, account, fleet.directory / account)
        replicas.append(fleet.start(lease_seconds=LEASE, kubeconfig=kubeconfig))
    return replicas


def led_since(cluster: Cluster) -> float:
    """When the present leader was elected, by its own word (one machine, one clock)."""
    return datetime.fromisoformat(lease_of_the_coordinator(cluster)["spec"]["acquireTime"]).timestamp()


def await_another(cluster: Cluster, before: str) -> str:
    return eventually(lambda: found if (found := leader(cluster)) not in {"", before} else "", "another leader")


def writes_of(audit_log: Path, account: str, *, since: float) -> list[str]:
    """What an operator has changed since then; its workers, which share its account, are not counted."""
    found = []
    for entry in (json.loads(line) for line in audit_log.read_text().splitlines() if account in line):
        by_operator = entry["user"]["username"] == account and entry["userAgent"].startswith("compactor-operator")
        accepted = entry.get("responseStatus", {}).get("code", 500) < 300
        at = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
        if entry["verb"] in WRITES and by_operator and accepted and at >= since:
            found.append(f"{entry['verb']} {entry['requestURI']}")
    return found


def test_leaders_die_and_sleep_and_the_next_one_leads_in_time(
    make_fleet: Any, control_plane: Any, cluster: Cluster, logs: Logs
) -> None:
    fleet = make_fleet(light=("--task-seconds", "1.5"))
    logs.add("a")
    logs.add("b")
    replicas = {replica.identity: replica for replica in replicas_with_accounts(fleet, control_plane, 3)}
    cluster.apply_policy(logs.path, workers=WORKERS, lease=JOB_LEASE)
    cluster.await_job_state("InProgress")

    # kill -9
    first = leader(cluster)
    killed_at = time.time()
    replicas[first].kill()
    second = await_another(cluster, first)
    assert led_since(cluster) - killed_at <= FAILOVER_SECONDS

    # SIGSTOP for longer than the lease, in the middle of its term
    stopped_at = time.time()
    replicas[second].process.send_signal(signal.SIGSTOP)
    third = await_another(cluster, second)
    assert led_since(cluster) - stopped_at <= FAILOVER_SECONDS

    # SIGCONT: it ends, and has changed nothing since it was stopped
    woken_at = time.time()
    replicas[second].process.send_signal(signal.SIGCONT)
    assert replicas[second].process.wait(PATIENCE_SECONDS) in {HARD_EXIT_CODE, ExitCode.LEADERSHIP_LOST}
    jobs = assert_all_done(cluster, fleet, logs)
    account = f"operator-{second.rpartition('-')[2]}"
    assert writes_of(control_plane.running.audit_log, account, since=0)
    assert writes_of(control_plane.running.audit_log, account, since=woken_at) == []
    assert leader(cluster) == third
    # Nobody's attempt was lost with a leader: workers outlive it, and the next one adopts what they do.
    assert [job["status"]["fencingToken"] for job in jobs] == [1, 1]


# One operator, one limit of workers, several policies with queues of different lengths: all of them progress.

LIMIT = 2
QUEUES = {"large": 6, "small": 2, "tiny": 1}
WORKERS_OF_ALL = {"max": 3, "slots": 1, "idleSeconds": 60}
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
    cluster.apply_policy(roots["large"].path, name="large", workers=WORKERS_OF_ALL)
    eventually(lambda: seen(len(fleet.running_workers()) == LIMIT), "the long queue to have all workers")
    for name in ("small", "tiny"):
        cluster.apply_policy(roots[name].path, name=name, workers=WORKERS_OF_ALL)
    eventually(lambda: seen("OperatorWorkerLimit" in waits_of(cluster, "tiny")), "the last in line to say so")
    first.kill()  # whoever follows counts the workers that run on
    fleet.start(lease_seconds=3, more=OPTIONS)
    for name in ("small", "tiny"):
        eventually(partial(done_beside_the_long_queue, name), f"the jobs of {name}")
    of_large = len(roots["large"].before)
    assert done(cluster, "large") < of_large
    eventually(lambda: seen(done(cluster, "large") == of_large), "the jobs of the long queue")
    assert max(most) == LIMIT
    for logs in roots.values():
        logs.assert_compacted_once()
