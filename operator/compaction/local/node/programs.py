"""The programs of a node: those of the local control plane, and the three servers that make pods run.

kube-controller-manager, kube-scheduler and kubelet are in no published archive for tests, so they are always built,
from the same modules with the same flags as the API server (`gobuild.py`): on a machine that built that one, most is
compiled already. They are a set of their own in the cache, made once, complete or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from compaction.local.cache import cache_directory
from compaction.local.errors import BinaryError
from compaction.local.processes.locks import exclusive
from compaction.local.programs import gobuild
from compaction.local.programs.binaries import (
    Binaries,
    BuildTarget,
    cache_lock,
    ensure_binaries,
    install_set,
    remove_unfinished,
)
from compaction.local.programs.versions import KUBERNETES_VERSION

NODE_SERVERS = ("kube-controller-manager", "kube-scheduler", "kubelet")

Report = Callable[[str], None]
Build = Callable[[Path, tuple[str, ...], Path, Report], None]


@dataclass(frozen=True, slots=True)
class Programs:
    """Absolute paths of everything Kubernetes that a node runs."""

    control_plane: Binaries
    kube_controller_manager: Path
    kube_scheduler: Path
    kubelet: Path


def ensure_programs(
    *,
    report: Report = lambda _: None,
    environment: Mapping[str, str] | None = None,
    build: Build = gobuild.build,
) -> Programs:
    """All programs, made when they are not here yet (the first time: minutes). Safe to call from two processes at once.

    Raises:
        BinaryError: a program could not be downloaded or built; says why.
    """
    environment = os.environ if environment is None else environment
    control_plane = ensure_binaries(report=report, environment=environment)
    cache = cache_directory(environment)
    place = cache / "control-plane" / f"node-{KUBERNETES_VERSION}-{BuildTarget.here()}"
    if not _complete(place):
        with exclusive(cache_lock(cache), what="preparing the programs of the node", report=report):
            if not _complete(place):
                remove_unfinished(cache)
                install_set(place, lambda fresh: build(fresh, NODE_SERVERS, cache, report))
    if not _complete(place):
        raise BinaryError(f"the programs made in {place} are not executable; remove that directory and try again")
    controller_manager, scheduler, kubelet = (place / name for name in NODE_SERVERS)
    return Programs(control_plane, controller_manager, scheduler, kubelet)


def _complete(place: Path) -> bool:
    return all(shutil.which(name, path=str(place)) for name in NODE_SERVERS)
