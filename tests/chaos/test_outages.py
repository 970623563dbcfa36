"""The control plane itself goes away, for longer than every lease: the API server, then its storage.

A whole minute without the API server is spent at full depth, and on a real node (node/test_compaction.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from chaos.outages import Logs, Servers, assert_all_done, lease_of_the_coordinator
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import Cluster
from support.faults.proxies import Network, TcpProxy
from support.processes.operators import READY, OperatorFleet, OperatorProcess
from support.timing import at_depth

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


# One fault after the other, in an order made from a seed, while logs keep coming: in the end all of it holds.

STORM_LEASE = 3
SEED = int(os.environ.get("CHAOS_SEED", "4"))


@dataclass
class Storm:
    """Everything that can go wrong, each fault healed before the next one comes. `done` says what was done."""

    rng: random.Random
    fleet: OperatorFleet
    servers: Servers
    proxy: TcpProxy
    done: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, Callable[[], None]]:
        return {
            "a worker is killed": self.kill_worker,
            "a worker sleeps": self.stop_worker,
            "an operator is killed": self.kill_operator,
            "an operator sleeps": self.stop_operator,
            "workers are cut off": lambda: self.cut(Network.REFUSING),
            "workers talk to a black hole": lambda: self.cut(Network.BLACK_HOLE),
            "the API server hangs": lambda: self.hang("kube-apiserver"),
            "etcd hangs": lambda: self.hang("etcd"),
            "the API server is killed": self.restart_api_server,
        }

    def blow(self) -> None:
        """Every fault once, in the seed's order."""
        order = sorted(self.faults)
        self.rng.shuffle(order)
        for name in order:
            self.done.append(name)
            self.faults[name]()
            time.sleep(self.rng.uniform(0.2, 1.0))

    def kill_worker(self) -> None:
        if workers := self.fleet.running_workers():
            self.fleet.signal_worker(self.rng.choice(workers).name, signal.SIGKILL)

    def stop_worker(self) -> None:
        workers = self.fleet.running_workers()
        if not workers:
            return
        pid = self.fleet.worker_pid(self.rng.choice(workers).name)
        # It may end meanwhile: a coordinator ends workers that are silent for too long.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGSTOP)
            self.pause()
            os.killpg(pid, signal.SIGCONT)

    def kill_operator(self) -> None:
        self.operator().kill()

    def stop_operator(self) -> None:
        operator = self.operator()
        operator.process.send_signal(signal.SIGSTOP)
        self.pause()
        operator.process.send_signal(signal.SIGCONT)

    def operator(self) -> OperatorProcess:
        return self.rng.choice([replica for replica in self.fleet.replicas if replica.process.poll() is None])

    def cut(self, how: Network) -> None:
        self.proxy.set(how)
        self.pause()
        self.proxy.set(Network.UP)

    def hang(self, server: str) -> None:
        self.servers.hang(server)
        self.pause()
        self.servers.wake(server)
        self.servers.until_ready()

    def restart_api_server(self) -> None:
        self.servers.kill("kube-apiserver")
        self.pause()
        self.servers.restart("kube-apiserver")
        self.servers.until_ready()

    def pause(self) -> None:
        """From a third of a lease to two of them."""
        time.sleep(self.rng.uniform(0.3, 2.0) * STORM_LEASE)


def test_a_storm_of_faults_loses_nothing(
    own_fleet: OperatorFleet, own_cluster: Cluster, servers: Servers, logs: Logs, tmp_path: Path
) -> None:
    address = urlsplit(servers.running.url)
    workers = {"max": 2, "slots": 2, "idleSeconds": 3, "sparkMaster": "local[1]"}
    with TcpProxy((str(address.hostname), int(address.port or 0))) as proxy:
        own_fleet.worker_kubeconfig = proxy.kubeconfig(own_fleet.kubeconfig, servers.running.url, tmp_path / "proxied")
        storm = Storm(random.Random(SEED), own_fleet, servers, proxy)
        for number in range(8):
            logs.add(f"log-{number}")
        for _ in range(2):
            own_fleet.start(lease_seconds=STORM_LEASE)
        lease, limits = {"durationSeconds": STORM_LEASE}, {"maxAttempts": 20}
        own_cluster.apply_policy(logs.path, lease=lease, limits=limits, workers=workers)
        own_cluster.await_job_state("InProgress")
        with own_fleet.supervised(lease_seconds=STORM_LEASE):
            storm.blow()
            print(f"seed {SEED}: {', then '.join(storm.done)}")
            assert len(storm.done) == len(storm.faults)
            assert_all_done(own_cluster, own_fleet, logs)
