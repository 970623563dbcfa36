"""Servers of a node: their command lines, the files they read, and the identities they have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from compaction.local.cluster.certs import LOOPBACK, Authority, ensure_authority, write_private
from compaction.local.cluster.control_plane import ETCD_CLIENT, etcd_command, write_kubeconfig
from tools.node.places import (
    API_ADDRESS,
    API_PORT,
    CLUSTER_DOMAIN,
    NODE_ADDRESS,
    NODE_NAME,
    PODS,
    SERVICES,
    NodeLayout,
)
from tools.node.prepare import Programs
from tools.node.running import TOOLS_IMAGE

# The files that the programs of a node read: containerd, the pod network, kubelet, names, and what /proc/sys shows.

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


# Identities in the node's cluster: an authority, a server certificate, and a kubeconfig for every component.
#
# Each component has its own name and no more rights than in a real cluster: the kubelet is a node (authorised for its
# own pods), the scheduler and the controller manager have their built-in roles, and the kubelet asks the API server
# about everybody who calls it.

INSIDE_URL = f"https://{NODE_ADDRESS}:{API_PORT}"
COMPONENTS = {
    "kubelet": (f"system:node:{NODE_NAME}", ("system:nodes",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
}
KUBELET_CLIENT = "kubelet-client"
"""As whom the API server calls the kubelet, for logs and exec."""


def write_identities(layout: NodeLayout) -> Authority:
    """A fresh authority in `layout.certificates`, and a kubeconfig per component beside it."""
    authority = ensure_authority(layout.certificates, addresses=(LOOPBACK, NODE_ADDRESS, API_ADDRESS))
    ca = authority.ca.read_bytes()
    for component, (user, groups) in COMPONENTS.items():
        client = authority.issue_client(user, groups=groups)
        write_kubeconfig(layout.certificates / f"{component}.kubeconfig", url=INSIDE_URL, ca=ca, client=client)
    caller = authority.issue_client("kube-apiserver-kubelet-client", groups=("system:masters",))
    write_private(layout.certificates / f"{KUBELET_CLIENT}.crt", caller.certificate)
    write_private(layout.certificates / f"{KUBELET_CLIENT}.key", caller.key)
    return authority


# The command line of every server of a node, in the order of their start.

API_SERVER = "kube-apiserver"
KUBELET = "kubelet"


@dataclass(frozen=True, slots=True)
class Server:
    """One server: its name (also of its log and its hold file) and its command; `needs_api`: start it when that
    answers.
    """

    name: str
    command: tuple[str, ...]
    needs_api: bool = False


def servers(layout: NodeLayout, programs: Programs, authority: Authority, *, audit_policy: Path) -> list[Server]:
    """All servers. Their working directory is `layout.fresh`."""
    kubeconfig = {name: str(layout.certificates / f"{name}.kubeconfig") for name in _CLIENTS}
    return [
        Server("containerd", ("containerd", "--config", str(layout.settings / "containerd.toml"))),
        Server("dnsmasq", ("dnsmasq", "--keep-in-foreground", f"--conf-file={layout.settings / 'names.conf'}")),
        Server("etcd", tuple(etcd_command(programs.control_plane))),
        Server(API_SERVER, _apiserver(layout, programs, authority, audit_policy=audit_policy)),
        Server(
            "kube-controller-manager",
            (
                str(programs.kube_controller_manager),
                f"--kubeconfig={kubeconfig['kube-controller-manager']}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={authority.service_accounts}",
                f"--root-ca-file={authority.ca}",
                # Without it the default directory below /usr is made, on the host's file system.
                f"--flex-volume-plugin-dir={layout.fresh / 'volume-plugins'}",
            ),
            needs_api=True,
        ),
        Server(
            "kube-scheduler",
            (
                str(programs.kube_scheduler),
                f"--kubeconfig={kubeconfig['kube-scheduler']}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
            ),
            needs_api=True,
        ),
        Server(
            KUBELET,
            (
                str(programs.kubelet),
                f"--config={layout.settings / 'kubelet.yaml'}",
                f"--kubeconfig={kubeconfig['kubelet']}",
                f"--hostname-override={NODE_NAME}",
                f"--node-ip={NODE_ADDRESS}",
            ),
            needs_api=True,
        ),
    ]


_CLIENTS = ("kubelet", "kube-controller-manager", "kube-scheduler")


def _apiserver(layout: NodeLayout, programs: Programs, authority: Authority, *, audit_policy: Path) -> tuple[str, ...]:
    certificate, key = authority.server
    caller = layout.certificates / KUBELET_CLIENT
    return (
        str(programs.control_plane.kube_apiserver),
        f"--etcd-servers={ETCD_CLIENT}",
        # All addresses of the node's own network namespace: nothing outside it can get there.
        "--bind-address=0.0.0.0",
        f"--advertise-address={NODE_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={authority.ca}",
        f"--kubelet-client-certificate={caller}.crt",
        f"--kubelet-client-key={caller}.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={SERVICES}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={authority.service_accounts}",
        f"--service-account-signing-key-file={authority.service_accounts}",
        f"--audit-policy-file={audit_policy}",
        f"--audit-log-path={layout.log / 'audit.log'}",
        "--profiling=false",
    )
