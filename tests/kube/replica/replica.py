"""One replica of the operator as a real process, with a controller that only writes down what it was asked to do.

    python replica.py KUBECONFIG NAMESPACE IDENTITY JOURNAL

Each line of the journal is `<identity> <epoch> <what>`; appended with one write, so lines of two replicas never mix.
"""

import os
import sys
from pathlib import Path

from compaction.kube.client.transport import Resource
from compaction.kube.informer.cache import CacheKey, Delta
from compaction.kube.launchers.process import ProcessLauncher
from compaction.kube.replica.operator import OperatorConfig, run_operator
from compaction.kube.replica.runtime import Runtime
from compaction.leases.election import ElectionSettings

FAST = ElectionSettings(lease_duration=4, renew_deadline=2.5, retry_period=0.5)


class Scribe:
    """A controller (`kube.replica.runtime.Controller`) that keeps a journal."""

    watches_catalogs = False

    def __init__(self, journal: Path) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._prefix = ""
        self._stopped = False

    async def start(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._prefix = f"{runtime.identity} {runtime.epoch}"
        self.write(f"switches after {sys.getswitchinterval()} s")
        self.write("start")

    def observed(self, resource: Resource, delta: Delta) -> None:
        self.write(f"{delta.change} {resource.kind} {delta.key.name}")

    async def reconcile(self, key: CacheKey) -> float | None:
        self.write(f"reconcile {key.name} leader={self._runtime.is_leader()}")
        return 0.2

    async def stop(self) -> None:
        if not self._stopped:
            self.write("stop")
        self._stopped = True

    def write(self, text: str) -> None:
        os.write(self._journal, f"{self._prefix} {text}\n".encode())


def main(kubeconfig: str, namespace: str, identity: str, journal: str) -> int:
    config = OperatorConfig(
        namespace=namespace,
        state_dir=Path(journal).parent / "state",
        identity=identity,
        kubeconfig=Path(kubeconfig),
        election=FAST,
        metrics_port=0,
        health_port=0,
        resync_seconds=2.0,
        drain_seconds=5.0,
    )
    return run_operator(
        config,
        make_controller=lambda: Scribe(Path(journal)),
        make_launcher=lambda _client: ProcessLauncher(config.state_dir),
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
