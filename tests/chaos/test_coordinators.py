"""Leaders that are killed, and leaders that sleep through their lease: how soon the next one leads, and that the old
one does no harm.
"""

from __future__ import annotations

import json
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from chaos.aftermath import Logs, assert_all_done, leader, lease_of_the_coordinator
from compaction.kube.replica.operator import ExitCode
from compaction.leases.elector import HARD_EXIT_CODE
from support.cluster.by_kubectl import Cluster
from support.processes.operators import OperatorFleet, OperatorProcess, grant
from support.time.waiting import eventually

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
    assert replicas[second].process.wait(60) in {HARD_EXIT_CODE, ExitCode.LEADERSHIP_LOST}
    jobs = assert_all_done(cluster, fleet, logs)
    account = f"operator-{second.rpartition('-')[2]}"
    assert writes_of(control_plane.running.audit_log, account, since=0)
    assert writes_of(control_plane.running.audit_log, account, since=woken_at) == []
    assert leader(cluster) == third
    # Nobody's attempt was lost with a leader: workers outlive it, and the next one adopts what they do.
    assert [job["status"]["fencingToken"] for job in jobs] == [1, 1]
