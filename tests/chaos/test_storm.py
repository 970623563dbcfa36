"""One fault after the other, in an order made from a seed, while logs keep coming: in the end all of it holds."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from chaos.aftermath import Logs, assert_all_done
from chaos.outages import Servers
from support.cluster.by_kubectl import Cluster
from support.faults.tcp_proxy import Network, TcpProxy
from support.processes.operators import OperatorFleet, OperatorProcess

LEASE = 3
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
        time.sleep(self.rng.uniform(0.3, 2.0) * LEASE)


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
            own_fleet.start(lease_seconds=LEASE)
        spec = {"lease": {"durationSeconds": LEASE}, "limits": {"maxAttempts": 20}, "workers": workers}
        own_cluster.apply_policy(logs.path, **spec)
        own_cluster.await_job_state("InProgress")
        with own_fleet.supervised(lease_seconds=LEASE):
            storm.blow()
            print(f"seed {SEED}: {', then '.join(storm.done)}")
            assert len(storm.done) == len(storm.faults)
            assert_all_done(own_cluster, own_fleet, logs)
