"""Where a password must not be: objects of the API server, logs, arguments and variables of operator and workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from compaction.local.demo.cluster import DemoCluster
from compaction.local.processes.process import ProcessId

KINDS: Final = "cpol,cjob,ccat,lease,events"


def find_leaks(
    secrets: Iterable[str], cluster: DemoCluster, directory: Path, processes: Iterable[ProcessId]
) -> list[str]:
    """The places where one of the secrets was found; `directory`: of the operator's and its workers' logs."""
    wanted = [secret.encode() for secret in secrets]
    return [place for place, text in _places(cluster, directory, processes) if any(one in text for one in wanted)]


def _places(cluster: DemoCluster, directory: Path, processes: Iterable[ProcessId]) -> Iterator[tuple[str, bytes]]:
    yield f"kubectl get {KINDS}", cluster.run("get", KINDS, "-o", "json").encode()
    for path in sorted(directory.rglob("*.log")):
        yield str(path), path.read_bytes()
    for process in processes:
        for name in ("cmdline", "environ"):
            file = Path("/proc", str(process.pid), name)
            if process.alive() and file.exists():
                yield f"{name} of {process.name}", file.read_bytes()
