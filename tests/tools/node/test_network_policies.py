"""NetworkPolicies as rules: what tests/node enforces. That the kernel obeys them, the node's tests show."""

from __future__ import annotations

import re
from typing import Any

import pytest

from node.network_policies import ruleset, selects

Object = dict[str, Any]
SPACES: list[Object] = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b", "labels": {"team": "b"}}}]


def pod(name: str, address: str, *, namespace: str = "a", phase: str = "Running", **labels: str) -> Object:
    ports = [{"name": "web", "containerPort": 8080}, {"name": "web", "containerPort": 8053, "protocol": "UDP"}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "main", "ports": ports}]},
        "status": {"phase": phase, "podIP": address},
    }


def policy(*, namespace: str = "a", name: str = "policy", **spec: Any) -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"podSelector": {}} | spec}


PODS = [
    pod("one", "10.244.0.2", app="one"),
    pod("two", "10.244.0.3", app="two"),
    pod("far", "10.244.0.4", namespace="b", app="one"),
]
ONE: Object = {"matchLabels": {"app": "one"}}


def rules(*policies: Object, pods: list[Object] = PODS) -> dict[str, list[str]]:
    """Chain -> its lines."""
    text = ruleset(policies=policies, pods=pods, namespaces=SPACES)
    return {
        found[1]: [line.strip() for line in found[2].splitlines()]
        for found in re.finditer(r"^  chain (\S+) \{\n(.*?)^  \}", text, re.MULTILINE | re.DOTALL)
    }


def ingress(*given: Object) -> list[str]:
    """The lines for pod `one` under one policy that selects it."""
    return rules(policy(podSelector=ONE, ingress=list(given)))["ingress/a/one"]


def egress(*given: Object) -> list[str]:
    return rules(policy(podSelector=ONE, policyTypes=["Egress"], egress=list(given)))["egress/a/one"]


def test_without_policies_nothing_is_isolated() -> None:
    assert set(rules()) == {"forward", "input", "pods"}


def test_a_policy_isolates_the_pods_that_it_selects_in_its_namespace() -> None:
    found = rules(policy(podSelector=ONE))
    assert found["ingress/a/one"] == ["drop"]
    assert [line for line in found["pods"] if "jump" in line] == ["ip daddr 10.244.0.2 jump ingress/a/one"]


@pytest.mark.parametrize(
    ("spec", "chains"),
    [
        ({}, {"ingress"}),
        ({"egress": []}, {"ingress", "egress"}),
        ({"policyTypes": ["Egress"]}, {"egress"}),
        ({"policyTypes": ["Ingress"], "egress": [{}]}, {"ingress"}),
    ],
)
def test_the_directions_are_those_of_the_policy_or_kubernetes_default(spec: Object, chains: set[str]) -> None:
    found = rules(policy(podSelector=ONE, **spec))
    assert {name.partition("/")[0] for name in found if "/" in name} == chains


def test_a_rule_without_peers_and_ports_allows_everything() -> None:
    assert ingress({}) == egress({}) == ["return", "drop"]


def test_peers_are_pods_of_the_same_namespace_unless_namespaces_are_selected() -> None:
    assert ingress({"from": [{"podSelector": ONE}]}) == ["ip saddr { 10.244.0.2 } return", "drop"]
    assert ingress({"from": [{"podSelector": {}}]}) == ["ip saddr { 10.244.0.2, 10.244.0.3 } return", "drop"]
    team = {"namespaceSelector": {"matchLabels": {"team": "b"}}}
    assert egress({"to": [team]}) == ["ip daddr { 10.244.0.4 } return", "drop"]
    everywhere = {"namespaceSelector": {}, "podSelector": ONE}
    assert egress({"to": [everywhere]}) == ["ip daddr { 10.244.0.2, 10.244.0.4 } return", "drop"]


def test_a_peer_that_selects_no_pod_allows_nothing() -> None:
    assert ingress({"from": [{"podSelector": {"matchLabels": {"app": "none"}}}]}) == ["drop"]


def test_blocks_of_addresses_leave_out_what_they_except() -> None:
    block = {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.0.0/16"]}
    assert egress({"to": [{"ipBlock": block}, {"ipBlock": {"cidr": "192.0.2.0/24"}}]}) == [
        "ip daddr 10.0.0.0/8 ip daddr != { 10.1.0.0/16, 10.2.0.0/16 } return",
        "ip daddr 192.0.2.0/24 return",
        "drop",
    ]
    assert egress({"to": [{"ipBlock": {"cidr": "2001:db8::/32"}}]}) == ["drop"]


def test_ports_are_numbers_ranges_protocols_or_names() -> None:
    ports = [
        {"port": 443},
        {"port": 32000, "endPort": 32768, "protocol": "UDP"},
        {"protocol": "SCTP"},
        {"port": "web"},
        {"port": "unknown"},
    ]
    assert ingress({"ports": ports}) == [
        "tcp dport 443 return",
        "udp dport 32000-32768 return",
        "meta l4proto sctp return",
        "ip daddr 10.244.0.2 tcp dport 8080 return",
        "drop",
    ]


def test_the_name_of_a_port_out_is_that_of_the_pod_that_is_connected_to() -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "two"}}}]
    found = egress({"to": peers, "ports": [{"port": "web", "protocol": "UDP"}]})
    assert "ip daddr { 10.244.0.3 } ip daddr 10.244.0.3 udp dport 8053 return" in found


def test_every_peer_is_allowed_every_port_of_its_rule_and_no_port_of_another() -> None:
    both = [{"podSelector": ONE}, {"ipBlock": {"cidr": "192.0.2.0/24"}}]
    assert ingress({"from": both, "ports": [{"port": 1}, {"port": 2}]}, {"ports": [{"port": 3}]}) == [
        "ip saddr { 10.244.0.2 } tcp dport 1 return",
        "ip saddr { 10.244.0.2 } tcp dport 2 return",
        "ip saddr 192.0.2.0/24 tcp dport 1 return",
        "ip saddr 192.0.2.0/24 tcp dport 2 return",
        "tcp dport 3 return",
        "drop",
    ]


def test_what_any_policy_allows_is_allowed() -> None:
    first = policy(name="first", podSelector=ONE, ingress=[{"ports": [{"port": 1}]}])
    second = policy(name="second", ingress=[{"ports": [{"port": 2}]}])
    assert rules(second, first)["ingress/a/one"] == ["tcp dport 1 return", "tcp dport 2 return", "drop"]


def test_answers_pass_and_whoever_is_not_known_yet_has_to_wait() -> None:
    lines = rules(policy())["pods"]
    assert lines[0] == "ct state established,related accept"
    known = "{ 10.244.0.1, 10.244.0.2, 10.244.0.3, 10.244.0.4 }"
    assert lines[1:3] == [f"ip {end} 10.244.0.0/24 ip {end} != {known} drop" for end in ("saddr", "daddr")]


def test_pods_that_have_ended_and_pods_of_the_nodes_network_have_no_rules() -> None:
    ended = pod("ended", "10.244.0.9", phase="Succeeded")
    host = pod("host", "10.99.0.1")
    host["spec"]["hostNetwork"] = True
    pending = pod("pending", "")
    del pending["status"]["podIP"]
    assert {name for name in rules(policy(), pods=[ended, host, pending]) if "/" in name} == set()


def test_a_packet_between_pods_meets_the_rules_of_both() -> None:
    """`return` leaves a chain for the next one; only the last of them lets it pass."""
    found = rules(policy(policyTypes=["Ingress", "Egress"], ingress=[{}], egress=[{}]))
    assert [line.split()[1] for line in found["pods"] if "jump" in line].count("saddr") == 2
    assert not [line for name, lines in found.items() if "/" in name for line in lines if "accept" in line]
    assert found["forward"][-1] == found["input"][-1] == "jump pods"


def test_the_rules_replace_the_ones_before_in_one_transaction() -> None:
    lines = ruleset(policies=[policy()], pods=PODS, namespaces=SPACES).splitlines()
    assert lines[:2] == ["add table ip network-policies", "delete table ip network-policies"]


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [
        ("In", ["x", "y"], {"x"}),
        ("NotIn", ["x"], {"z", None}),
        ("Exists", None, {"x", "z"}),
        ("DoesNotExist", None, {None}),
    ],
)
def test_selectors_have_the_operators_of_kubernetes(
    operator: str, values: list[str] | None, selected: set[str | None]
) -> None:
    expression = {"key": "app", "operator": operator} | ({} if values is None else {"values": values})
    selector = {"matchExpressions": [expression]}
    candidates: list[str | None] = ["x", "z", None]
    assert {
        candidate for candidate in candidates if selects(selector, {} if candidate is None else {"app": candidate})
    } == selected
    assert selects({}, {})
    assert selects({}, {"app": "x"})
    assert not selects(selector | {"matchLabels": {"more": "y"}}, {"app": "x"})
