"""Places of a node: directories, addresses and control groups."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.local.errors import NodeError

# The directory of a node, and the addresses that it uses inside its own network namespace.
#
#     <directory>/state.json            the keeper's process, url, kubeconfig (as of a local control plane)
#                run.lock               one node per directory
#                kubeconfig             of its administrator, through the relay on loopback
#                fresh/                 everything of one start: certificates, etcd, kubelet, settings; removed next
#                log/                   one file per server, and audit.log
#                store/                 kept between starts: containerd's images
#                images/                kept: base system, buildah's layers, archives (`running.py`)
#
# The node sees `fresh/var-lib` and `fresh/var-log` as /var/lib and /var/log, and its /run is its own.

NODE_NAME = "node1"
NODE_ADDRESS = "10.99.0.1"
GATEWAY = "10.99.0.254"
API_ADDRESS = "10.96.0.1"
"""First address of `SERVICES`: the Service `kubernetes`. It is an address of the node itself, so no kube-proxy runs."""
SERVICES = "10.96.0.0/16"
PODS = "10.244.0.0/24"
API_PORT = 443
CLUSTER_DOMAIN = "cluster.local"
CGROUPS = "compaction-node-"
"""How the parents of the control groups of all nodes begin."""
COVERED = ("/var/lib", "/var/log", "/run", "/proc", "/sys", "/dev")
"""Inside the node these are others than outside, so nothing that both must see may be kept below them."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The paths of the node in `directory` (absolute)."""

    directory: Path

    @property
    def fresh(self) -> Path:
        return self.directory / "fresh"

    @property
    def certificates(self) -> Path:
        return self.fresh / "certificates"

    @property
    def settings(self) -> Path:
        return self.fresh / "settings"

    @property
    def hold(self) -> Path:
        """A file of a server's name in here stops that server until the file is removed."""
        return self.fresh / "hold"

    @property
    def kept(self) -> Path:
        """What the keeper says when the namespaces are there."""
        return self.fresh / "kept.json"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def store(self) -> Path:
        return self.directory / "store"

    @property
    def images(self) -> Path:
        return self.directory / "images"

    @property
    def lock(self) -> Path:
        return self.directory / "run.lock"

    @property
    def cgroup(self) -> str:
        """The parent of all control groups of this node; another directory's node has another."""
        return f"{CGROUPS}{hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]}"


# Control groups of a node: one parent in every hierarchy, made before and removed after.
#
# Version 1 has a hierarchy per controller below `CGROUP_ROOT`, version 2 is `CGROUP_ROOT` itself. Where both are
# mounted, the kernel's controllers belong to version 1, and that is what container runtimes use as well.
#
# In version 2 a group has only the controllers that its parent hands down (`cgroup.subtree_control`), and a kubelet
# refuses a `cgroupRoot` that lacks one. So what the root does not hand down yet is switched on for the node, and off
# again after it. Standard library only: the keeper, which outlives everything else of the node, removes them.

CGROUP_ROOT = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 20.0
POLL_SECONDS = 0.1
NEEDED: Final = ("cpu", "cpuset", "memory", "pids")
"""Without these no kubelet starts."""
WANTED: Final = (*NEEDED, "hugetlb", "io")
SHARES_OF_ONE: Final = 1024
_SHARES: Final = "cpu.shares"
_AVAILABLE: Final = "cgroup.controllers"
_HANDED_DOWN: Final = "cgroup.subtree_control"


def hierarchies(root: Path | None = None) -> list[Path]:
    """The hierarchies of version 1, one per controller; empty where only version 2 is mounted, or nothing."""
    children = (path for path in (root or CGROUP_ROOT).iterdir() if path.is_dir())
    return sorted(path for path in children if (path / "cgroup.clone_children").exists())


def is_unified(root: Path | None = None) -> bool:
    """Whether `root` is the one hierarchy of version 2."""
    return ((root or CGROUP_ROOT) / _AVAILABLE).exists()


def missing_controllers(root: Path | None = None) -> tuple[str, ...]:
    """The controllers that a kubelet needs and this machine has in neither version; () when a node can run."""
    if hierarchies(root):
        return ()
    available = _words((root or CGROUP_ROOT) / _AVAILABLE) if is_unified(root) else frozenset()
    return tuple(controller for controller in NEEDED if controller not in available)


def create_cgroups(name: str) -> tuple[str, ...]:
    """The parent `name` in every hierarchy; the controllers of version 2 that were switched on for it.

    In version 1 a cpuset starts without processors; it gets those of its parent. And a group has the share of one
    process there: ours gets what a kubelet gives the pods below it, one for each processor.

    Raises:
        NodeError: the root group of version 2 has processes of its own, so it hands nothing down. Nothing was changed.
    """
    if is_unified():
        return _create_unified(name)
    for hierarchy in hierarchies():
        parent = hierarchy / name
        parent.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (parent / setting).exists():
                (parent / setting).write_text((hierarchy / setting).read_text())
        if (parent / _SHARES).exists():
            (parent / _SHARES).write_text(str(SHARES_OF_ONE * (os.cpu_count() or 1)))
    return ()


def _create_unified(name: str) -> tuple[str, ...]:
    available = _words(CGROUP_ROOT / _AVAILABLE)
    wanted = [controller for controller in WANTED if controller in available]
    switched_on = tuple(sorted(set(wanted) - _words(CGROUP_ROOT / _HANDED_DOWN)))
    try:
        _hand_down(CGROUP_ROOT, "+", switched_on)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise NodeError(
                f"{CGROUP_ROOT} is the control group of running processes, so the kernel hands no controller down from "
                "it: start the node on the machine itself, or in a container that shares the machine's control groups "
                "(--cgroupns=host)"
            ) from error
        raise
    parent = CGROUP_ROOT / name
    parent.mkdir(exist_ok=True)
    _hand_down(parent, "+", wanted)
    return switched_on


def _hand_down(group: Path, sign: str, controllers: Sequence[str]) -> None:
    """All or none, as the kernel takes them in one write."""
    if controllers:
        (group / _HANDED_DOWN).write_text(" ".join(f"{sign}{controller}" for controller in controllers))


def _words(path: Path) -> frozenset[str]:
    return frozenset(path.read_text().split())


def remaining_cgroups(name: str) -> list[Path]:
    """The parents that are still there; in version 1 also in the unified hierarchy, where the container runtime makes
    some too.
    """
    places = [CGROUP_ROOT] if is_unified() else [path for path in sorted(CGROUP_ROOT.iterdir()) if path.is_dir()]
    return [place / name for place in places if (place / name).is_dir()]


def remove_cgroups(name: str, *, switched_on: tuple[str, ...] = (), timeout: float = REMOVE_SECONDS) -> list[Path]:
    """Remove the groups of a node whose processes are gone; what is left after `timeout` seconds, deepest first.

    The kernel refuses to remove a group for a moment after its last process died. A controller that was `switched_on`
    stays on where another group hands it down by now.
    """
    deadline = time.monotonic() + timeout
    while parents := remaining_cgroups(name):
        for parent in parents:
            for directory, _, _ in os.walk(parent, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError:
                    continue
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    left = remaining_cgroups(name)
    if not left:
        for controller in switched_on:
            with contextlib.suppress(OSError):
                _hand_down(CGROUP_ROOT, "-", (controller,))
    return left
