"""The command line of every server of a node, in the order of their start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compaction.local.cluster.certs import Authority
from compaction.local.cluster.control_plane import ETCD_CLIENT, etcd_command
from compaction.local.node.identities import KUBELET_CLIENT
from compaction.local.node.layout import API_PORT, NODE_ADDRESS, NODE_NAME, SERVICES, NodeLayout
from compaction.local.node.programs import Programs

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
