"""The control plane itself goes away, for longer than every lease: the API server, then its storage.

A whole minute without the API server is spent at full depth, and on a real node (node/test_compaction.py).
"""

from __future__ import annotations

import time
from datetime import datetime

from chaos.aftermath import Logs, assert_all_done, lease_of_the_coordinator
from chaos.outages import Servers
from support.cluster.by_kubectl import Cluster
from support.depth import at_depth
from support.processes.operators import READY, OperatorFleet
from support.time.waiting import PATIENCE_SECONDS, eventually

LEASE = 5
AWAY = at_depth(short=4 * LEASE, deep=60)
REQUESTS = 5
WORKERS = {"max": 2, "slots": 2, "idleSeconds": 2, "sparkMaster": "local[1]"}


def at_work(fleet: OperatorFleet, cluster: Cluster, logs: Logs) -> None:
    """A leader, a standby, and two jobs with their first groups committed."""
    logs.add("a")
    logs.add("b")
    fleet.start(lease_seconds=LEASE)
    standby = fleet.start(lease_seconds=LEASE)
    eventually(lambda: READY in standby.output, "the second replica to stand by")
    cluster.apply_policy(logs.path, workers=WORKERS, lease={"durationSeconds": LEASE})
    eventually(lambda: logs.receipts("a") and logs.receipts("b"), "the first groups to be committed")


def await_leader(cluster: Cluster) -> None:
    """Somebody leads again. How soon depends on the machine at the short depth; a lease and a few seconds, plus what
    its requests take, is looked at where the machine is quiet.
    """
    back_at = time.time()
    slowest = 0.0

    def renewed_at() -> float:
        nonlocal slowest
        asked_at = time.monotonic()
        spec = lease_of_the_coordinator(cluster)["spec"]
        slowest = max(slowest, time.monotonic() - asked_at)
        renewed = datetime.fromisoformat(spec["renewTime"]).timestamp()
        return renewed if spec.get("holderIdentity") and renewed > back_at else 0.0

    took = eventually(renewed_at, "a leader", pause=0.1) - back_at
    assert took <= at_depth(short=PATIENCE_SECONDS, deep=LEASE + 5 + REQUESTS * slowest)


def test_the_api_server_is_away_for_longer_than_every_lease(
    own_fleet: OperatorFleet, own_cluster: Cluster, servers: Servers, logs: Logs
) -> None:
    at_work(own_fleet, own_cluster, logs)
    with own_fleet.supervised(lease_seconds=LEASE):
        servers.kill("kube-apiserver")
        gone_at = time.monotonic()
        eventually(lambda: not own_fleet.running_workers(), "workers that reach nobody to end")
        before = {name: logs.receipts(name) for name in logs.before}
        born_meanwhile = own_fleet.start(lease_seconds=LEASE)
        time.sleep(max(0.0, gone_at + AWAY - time.monotonic()))
        assert {name: logs.receipts(name) for name in logs.before} == before
        # Who starts without an API server waits for it: whoever restarts programs is slower every time.
        assert born_meanwhile.process.poll() is None
        servers.restart("kube-apiserver")
        servers.until_ready()
        await_leader(own_cluster)
        assert_all_done(own_cluster, own_fleet, logs)
        eventually(
            lambda: READY in born_meanwhile.output or born_meanwhile.process.poll() is not None,
            "the replica that was started meanwhile to be ready",
        )
        assert READY in born_meanwhile.output, born_meanwhile.output


def test_etcd_hangs_for_longer_than_every_lease_and_is_killed(
    own_fleet: OperatorFleet, own_cluster: Cluster, servers: Servers, logs: Logs
) -> None:
    at_work(own_fleet, own_cluster, logs)
    with own_fleet.supervised(lease_seconds=LEASE):
        servers.hang("etcd")
        time.sleep(2 * LEASE)
        servers.wake("etcd")
        servers.until_ready()
        servers.kill("etcd")
        time.sleep(2)
        servers.restart("etcd")
        servers.until_ready()
        await_leader(own_cluster)
        assert_all_done(own_cluster, own_fleet, logs)
