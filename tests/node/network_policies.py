"""NetworkPolicies, enforced on the node of the tests: rules of nftables in the node's own network, nowhere else.

`ruleset` turns objects into the text that `nft -f` loads in one transaction; `enforced` keeps it up to date. The rules
are those of networking.k8s.io/v1: a pod is isolated in a direction once a policy selects it, what any policy allows is
allowed, both ends have to allow a connection, answers pass, and the node reaches its own pods.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_network
from itertools import product
from typing import Any, Final

from tools.node.places import PODS
from tools.node.prepare import Report, ensure_packages
from tools.node.running import RunningNode

Object = Mapping[str, Any]

TABLE: Final = "network-policies"
GATEWAY: Final = str(ip_network(PODS)[1])
"""The node, as its pods see it."""
POLL_SECONDS: Final = 0.3
ENDED: Final = ("Succeeded", "Failed")
BRIDGED: Final = "net.bridge.bridge-nf-call-iptables"
"""Whether packets between two ports of one bridge pass the hooks of IPv4. A setting of the network namespace."""
KINDS: Final = {
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
}


class Direction(Enum):
    """A direction, from the pod that a policy selects: where its rules name peers, and which address is whose."""

    INGRESS = ("Ingress", "ingress", "from", "daddr", "saddr")
    EGRESS = ("Egress", "egress", "to", "saddr", "daddr")

    def __init__(self, policy_type: str, rules: str, peers: str, own: str, other: str) -> None:
        self.policy_type, self.rules, self.peers, self.own, self.other = policy_type, rules, peers, own, other


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod with an address of the pod network; `named`: (name, protocol) of its ports -> number."""

    namespace: str
    name: str
    address: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]
    named: Mapping[tuple[str, str], int]


def ruleset(*, policies: Iterable[Object], pods: Iterable[Object], namespaces: Iterable[Object]) -> str:
    """What `nft -f` loads: replaces every rule of an earlier one at once."""
    known = _known_pods(pods, namespaces)
    jumps: list[str] = []
    chains: dict[str, list[str]] = {}
    ordered = sorted(policies, key=lambda policy: (policy["metadata"]["namespace"], policy["metadata"]["name"]))
    for pod, direction in product(known, (Direction.EGRESS, Direction.INGRESS)):
        isolating = [policy for policy in ordered if _isolates(policy, pod, direction)]
        if isolating:
            chain = f"{direction.rules}/{pod.namespace}/{pod.name}"
            jumps.append(f"ip {direction.own} {pod.address} jump {chain}")
            allowed = [line for policy in isolating for line in _allowed(policy, pod, direction, known)]
            chains[chain] = [*(f"{line} return".lstrip() for line in dict.fromkeys(allowed)), "drop"]
    # A pod that is not known yet is isolated: Kubernetes applies what isolates a pod before its containers start.
    addresses = _set(GATEWAY, *(pod.address for pod in known))
    unknown = [f"ip {end} {PODS} ip {end} != {addresses} drop" for end in ("saddr", "daddr")]
    chains = {
        "forward": ["type filter hook forward priority filter; policy accept;", "jump pods"],
        "input": ["type filter hook input priority filter; policy accept;", "jump pods"],
        **chains,
        "pods": ["ct state established,related accept", *unknown, *jumps],
    }
    lines = [f"add table ip {TABLE}", f"delete table ip {TABLE}", f"table ip {TABLE} {{"]
    for name, body in chains.items():
        lines += [f"  chain {name} {{", *(f"    {line}" for line in body), "  }"]
    return "\n".join([*lines, "}", ""])


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects these labels; an empty one selects all."""
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _satisfies(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def _satisfies(expression: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case unknown:
            raise ValueError(f"a label selector has no operator {unknown!r}")


def _known_pods(pods: Iterable[Object], namespaces: Iterable[Object]) -> list[KnownPod]:
    """Those that may have traffic. The address of a pod that has ended may be another's by now."""
    labels = {namespace["metadata"]["name"]: namespace["metadata"].get("labels") or {} for namespace in namespaces}
    found = []
    for pod in pods:
        metadata, status, spec = pod["metadata"], pod.get("status") or {}, pod["spec"]
        if "podIP" in status and status.get("phase") not in ENDED and not spec.get("hostNetwork"):
            named = {
                (port["name"], port.get("protocol", "TCP")): int(port["containerPort"])
                for container in spec["containers"]
                for port in container.get("ports") or ()
                if "name" in port
            }
            space = metadata["namespace"]
            found.append(
                KnownPod(
                    space, metadata["name"], status["podIP"], metadata.get("labels") or {}, labels.get(space, {}), named
                )
            )
    return sorted(found, key=lambda pod: (pod.namespace, pod.name))


def _isolates(policy: Object, pod: KnownPod, direction: Direction) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or (["Ingress", "Egress"] if "egress" in spec else ["Ingress"])
    here = policy["metadata"]["namespace"] == pod.namespace
    return here and direction.policy_type in types and selects(spec.get("podSelector") or {}, pod.labels)


def _allowed(policy: Object, pod: KnownPod, direction: Direction, known: Sequence[KnownPod]) -> Iterator[str]:
    """Matches of what a policy allows a pod; an empty one matches all."""
    for rule in policy["spec"].get(direction.rules) or ():
        peers = [""]
        if rule.get(direction.peers):
            peers = [line for peer in rule[direction.peers] for line in _peer(peer, policy, direction, known)]
        ports = [""]
        if rule.get("ports"):
            ports = [line for port in rule["ports"] for line in _port(port, pod, direction, known)]
        for parts in product(peers, ports):
            yield " ".join(part for part in parts if part)


def _peer(peer: Object, policy: Object, direction: Direction, known: Sequence[KnownPod]) -> Iterator[str]:
    block = peer.get("ipBlock")
    if block is None:
        addresses = [pod.address for pod in known if _is_peer(pod, peer, policy["metadata"]["namespace"])]
        if addresses:
            yield f"ip {direction.other} {_set(*addresses)}"
    elif ip_network(block["cidr"]).version == 4:  # the node has no other addresses
        excluded = block.get("except") or ()
        but = f" ip {direction.other} != {_set(*excluded)}" if excluded else ""
        yield f"ip {direction.other} {block['cidr']}{but}"


def _is_peer(pod: KnownPod, peer: Object, namespace: str) -> bool:
    """Pods of the policy's own namespace, unless the peer selects namespaces."""
    spaces = peer.get("namespaceSelector")
    near = pod.namespace == namespace if spaces is None else selects(spaces, pod.namespace_labels)
    return near and selects(peer.get("podSelector") or {}, pod.labels)


def _port(port: Object, pod: KnownPod, direction: Direction, known: Sequence[KnownPod]) -> Iterator[str]:
    protocol, number = port.get("protocol", "TCP"), port.get("port")
    if number is None:
        yield f"meta l4proto {protocol.lower()}"
    elif isinstance(number, int):
        last = f"-{port['endPort']}" if "endPort" in port else ""
        yield f"{protocol.lower()} dport {number}{last}"
    else:
        # A name means what the pod that is connected to calls so.
        targets = [pod] if direction is Direction.INGRESS else known
        for target in targets:
            if (number, protocol) in target.named:
                yield f"ip daddr {target.address} {protocol.lower()} dport {target.named[number, protocol]}"


def _set(*elements: str) -> str:
    return f"{{ {', '.join(elements)} }}"


class Enforcement:
    """The rules of one node, loaded again whenever its objects change."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._loaded = ""
        self._ended = threading.Event()

    def apply(self) -> None:
        """Load what the API server says now. Raises OSError while it is away: then the rules stay as they are."""
        with self._lock:
            wanted = ruleset(**{what: self._items(path) for what, path in KINDS.items()})
            if wanted != self._loaded:
                _load(self._node, wanted)
                self._loaded = wanted

    def follow(self) -> None:
        """Until `end`."""
        while not self._ended.wait(POLL_SECONDS):
            with suppress(OSError):
                self.apply()

    def end(self) -> None:
        self._ended.set()

    def _items(self, path: str) -> list[Object]:
        answer = self._node.plane.admin.request("GET", path)
        if answer.status >= 429:
            raise ConnectionError(f"GET {path}: {answer.status}")
        assert answer.ok, f"GET {path}: {answer.status} {answer.text}"
        items: list[Object] = answer.json()["items"]
        return items


@contextmanager
def enforced(node: RunningNode, report: Report) -> Iterator[Enforcement]:
    """Every NetworkPolicy of the node counts until the block is left. Installs nftables where it is missing."""
    ensure_packages({"nft": "nftables"}, report=report)
    before = node.run("sysctl", "-n", BRIDGED).strip()
    enforcement = Enforcement(node)
    try:
        node.run("sysctl", "-qw", f"{BRIDGED}=1")
        enforcement.apply()
        with ThreadPoolExecutor(1, "network-policies") as pool:
            following = pool.submit(enforcement.follow)
            try:
                yield enforcement
            finally:
                enforcement.end()
        following.result()
    finally:
        node.run("nft", f"add table ip {TABLE}; delete table ip {TABLE}")
        node.run("sysctl", "-qw", f"{BRIDGED}={before}")


def _load(node: RunningNode, text: str) -> None:
    command = node.command("nft", "-f", "-")
    answer = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"nft refuses the rules: {answer.stderr}\n{text}"
