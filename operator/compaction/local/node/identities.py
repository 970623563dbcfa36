"""Who is who in the node's cluster: an authority, a server certificate, and a kubeconfig for every component.

Each component has its own name and no more rights than in a real cluster: the kubelet is a node (authorised for its own
pods), the scheduler and the controller manager have their built-in roles, and the kubelet asks the API server about
everybody who calls it.
"""

from __future__ import annotations

from compaction.local.cluster.certs import LOOPBACK, Authority, ensure_authority, write_private
from compaction.local.cluster.kubeconfig import write_kubeconfig
from compaction.local.node.layout import API_ADDRESS, API_PORT, NODE_ADDRESS, NODE_NAME, NodeLayout

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
