"""The files that the programs of a node read: containerd, the pod network, kubelet, names, and what /proc/sys shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from compaction.local.cluster.certs import write_private
from compaction.local.node.images import TOOLS_IMAGE
from compaction.local.node.layout import API_ADDRESS, CLUSTER_DOMAIN, NODE_ADDRESS, PODS, NodeLayout

PLUGINS = "/usr/lib/cni"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""What a kubelet sets in the kernel unless it reads these values there already: here it reads them from files."""


def write_settings(layout: NodeLayout) -> None:
    """Write all of them below `layout.settings`."""
    place = layout.settings
    for directory in (place / "sysctls", place / "network"):
        directory.mkdir(parents=True, exist_ok=True)
    for name, value in SYSCTLS.items():
        (place / "sysctls" / name.replace("/", ".")).write_text(f"{value}\n")
    (place / "containerd.toml").write_text(_containerd(layout))
    (place / "network" / "10-pods.conflist").write_text(json.dumps(_network(), indent=2))
    write_private(place / "kubelet.yaml", yaml.safe_dump(_kubelet(layout)).encode())
    (place / "names.conf").write_text(_names())


def _containerd(layout: NodeLayout) -> str:
    return f"""\
version = 2
root = "{layout.store / "containerd"}"
state = "/run/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{TOOLS_IMAGE}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{PLUGINS}"
  conf_dir = "{layout.settings / "network"}"
"""


def _network() -> dict[str, Any]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipMasq": False}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge | {"ipam": addresses}]}


def _kubelet(layout: NodeLayout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.certificates / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": CLUSTER_DOMAIN,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        # Disk and images belong to the machine, not to the node: nothing is evicted or collected for their sake,
        # because an image that was imported cannot be pulled again.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "volumePluginDir": str(layout.fresh / "volume-plugins"),
    }


def _names() -> str:
    """dnsmasq: the API server's name inside the cluster; other Services have none here, and nothing is forwarded."""
    zones = ("kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}")
    lines = ["no-resolv", "no-hosts", "no-daemon", "bind-interfaces", f"listen-address={NODE_ADDRESS}", "user=root"]
    lines += [f"host-record={zone},{API_ADDRESS}" for zone in zones]
    lines += ["local=/#/", "pid-file="]
    return "\n".join(lines) + "\n"


def sysctl_files(layout: NodeLayout) -> dict[str, Path]:
    """/proc/sys entry -> the file that is bound over it."""
    return {name: layout.settings / "sysctls" / name.replace("/", ".") for name in SYSCTLS}
