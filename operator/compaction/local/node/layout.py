"""Where a node keeps what, and which addresses it uses inside its own network namespace.

    <directory>/state.json            the keeper's process, url, kubeconfig (as of a local control plane)
               run.lock               one node per directory
               kubeconfig             of its administrator, through the relay on loopback
               fresh/                 everything of one start: certificates, etcd, kubelet, settings; removed next time
               log/                   one file per server, and audit.log
               store/                 kept between starts: containerd's images
               images/                kept: base system, buildah's layers, archives (`images.py`)

The node sees `fresh/var-lib` and `fresh/var-log` as /var/lib and /var/log, and its /run is its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

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
