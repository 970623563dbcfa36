"""One job of blocks on one and on two executors in pods, on a node of this machine (root; docs/benchmarks.md).

    PYTHONPATH=tests python -m node.scale MEGABYTES

The blocks are those of `make bench ARGS=block_scale`; seconds are those of the job's receipt. Every run has a driver
and executors of its own, with one core each.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.block_scale import FILES, MEMORY, registered
from bench.harness import Machine
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.local.processes.process import cache_directory
from node.on_node import CLAIM, MOUNT, Installation, give_to_pods, installed, small
from node.test_blocks import block_stores_allowed
from support.clocks import eventually
from support.cluster.by_kubectl import write_secret
from tools.node.start import start_node

PATIENCE = 1200.0
EXECUTORS = (1, 2)


@dataclass(frozen=True, slots=True)
class Run:
    """How long the job took by its receipt, and the rows of its outputs."""

    executors: int
    seconds: float
    rows: tuple[int, ...]

    def told(self, first: float) -> str:
        balance = max(self.rows) / statistics.mean(self.rows)
        parts = f"{len(self.rows)} parts, the largest {balance:.2f} of the mean"
        speed = f"{first / self.seconds:.2f} times as fast as one executor"
        return f"{self.executors} executors in pods: {self.seconds:.1f} s, {speed}; {parts}"


def policy_parts(executors: int) -> dict[str, Any]:
    store = {
        "url": f"file://{MOUNT}/scale/objects",
        "credentialsSecretName": "scale-credentials",
        "index": {"secretName": "scale-index", "key": f"url-{executors}"},
        "levels": [{"maxBlocks": FILES, "maxAge": "1h"}],
        "sortKey": ["ts"],
        "mergeMemory": f"{MEMORY >> 20}Mi",
    }
    volume = {"name": "scale", "persistentVolumeClaim": {"claimName": CLAIM}}
    container = {"name": "worker", "volumeMounts": [{"name": "scale", "mountPath": MOUNT}]}
    return {
        "store": {"blockStore": store},
        "limits": {"maxBytesPerJob": "16Gi"},
        "workers": {
            "max": 1,
            "slots": 1,
            "idleSeconds": 5,
            "launcher": "pod",
            "driver": small(),
            "executor": small() | {"instances": executors, "cores": 1},
            "podTemplate": {"spec": {"volumes": [volume], "containers": [container]}},
        },
    }


def measure(installation: Installation, megabytes: int) -> Iterator[Run]:
    """A run for each number of executors, over the same blocks."""
    place = installation.volume / "scale"
    registered(place, megabytes)
    write_secret(installation.cluster, "scale-credentials", {})
    # An index of its own for each run: what SQLite wrote ahead would be taken for that of a file in the same place.
    urls = {f"url-{executors}": f"sqlite:///{MOUNT}/scale/run-{executors}.db" for executors in EXECUTORS}
    write_secret(installation.cluster, "scale-index", urls)
    for executors in EXECUTORS:
        shutil.copyfile(place / "index.db", place / f"run-{executors}.db")
        give_to_pods(place)
        name = f"scale-{executors}"
        installation.apply_policy(name, **policy_parts(executors))
        seconds = eventually(partial(_seconds, installation, name), "the job to succeed", timeout=PATIENCE)
        installation.kubectl("delete", "cpol", name)
        installation.await_nothing_left(name)
        store = BlockStore.open(
            BlockStoreConnection(f"file://{place}/objects", f"sqlite:///{place}/run-{executors}.db")
        )
        outputs = [block for block in store.live().blocks if block.level == 1]
        store.close()
        for block in outputs:
            (place / "objects" / block.path).unlink()
        yield Run(executors, seconds, tuple(block.rows for block in outputs))


def _seconds(installation: Installation, policy: str) -> float | None:
    jobs = [job for job in installation.cluster.jobs() if job["spec"]["policyRef"]["name"] == policy]
    done = [job["status"] for job in jobs if job.get("status", {}).get("state") == "Succeeded"]
    return float(done[0]["receipt"]["seconds"]) if done else None


def main(megabytes: int) -> None:
    """Prints a line for each run."""
    print("\n".join(Machine().lines), flush=True)

    def report(line: str) -> None:
        print(f"[node] {line}", flush=True)

    first = 0.0
    with (
        start_node(cache_directory() / "node", report=report) as node,
        installed(node, report) as installation,
        tempfile.TemporaryDirectory(prefix="compactor-scale-") as directory,
        block_stores_allowed(installation, Path(directory) / "component"),
    ):
        for run in measure(installation, megabytes):
            first = first or run.seconds
            print(f"{megabytes:,} MB on {run.told(first)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
