"""A CatalogCompaction, and specs that are refused, with the advice that each gets."""

from __future__ import annotations

from typing import Any

TOKEN = {"secretName": "participants"}
CATALOG: dict[str, Any] = {"endpoints": ["https://etcd-0:2379"], "secretName": "etcd"}
PARTICIPANTS: dict[str, Any] = {
    "selector": {"matchLabels": {"app": "orders"}, "port": 7800},
    "token": TOKEN,
}


def catalog_object(name: str = "orders", **spec: Any) -> dict[str, Any]:
    """As a user writes it; `spec` replaces members, None leaves one out."""
    members = {"catalog": CATALOG, "participants": PARTICIPANTS} | spec
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CatalogCompaction",
        "metadata": {"name": name},
        "spec": {key: value for key, value in members.items() if value is not None},
    }


REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("no-participants", {"participants": None}, "name the participants by selector or urls"),
    ("no-urls", {"participants": {"urls": []}}, "name the participants by selector or urls"),
    ("no-endpoints", {"catalog": {"endpoints": []}}, ""),
    ("no-scheme", {"catalog": {"endpoints": ["etcd-0:2379"]}}, "must be http://host:port or https://host:port"),
    (
        "a-password",
        {"catalog": {"endpoints": ["https://user:secret@etcd-0:2379"]}},
        "credentials belong in a Secret",
    ),
    ("prefix", {"catalog": {**CATALOG, "prefix": "orders/"}}, "must begin with /"),
    ("secret", {"catalog": {**CATALOG, "secretName": "../etcd"}}, "must be the name of a Secret"),
    (
        "no-labels",
        {"participants": {"selector": {"matchLabels": {}, "port": 1}, "token": TOKEN}},
        "name at least one label",
    ),
    (
        "no-token",
        {"participants": {"selector": {"matchLabels": {"a": "b"}, "port": 1}}},
        "name the Secret with the token",
    ),
    (
        "two-tokens",
        {"participants": {**PARTICIPANTS, "serviceAccountToken": {}}},
        "set either token or serviceAccountToken",
    ),
    ("port", {"participants": {"selector": {"matchLabels": {"a": "b"}, "port": 0}}}, ""),
    ("interval", {"interval": "0s"}, "must be longer than 0s"),
    ("duration", {"maxClockSkew": "soon"}, "write a duration such as 30s"),
    (
        "range",
        {"topology": {"assignments": [{"zone": "Z", "firstPartition": 3, "lastPartition": 2, "participants": ["a"]}]}},
        "lastPartition must not be below firstPartition",
    ),
    ("partition", {"topology": {"assignments": [{"zone": "Z", "lastPartition": 65000, "participants": ["a"]}]}}, ""),
    (
        "none",
        {"topology": {"minParticipants": 0}},
        "minParticipants 0 is for a catalog without participants",
    ),
    (
        "assigned",
        {"participants": None, "topology": {"minParticipants": 0, "participants": ["a"]}},
        "minParticipants 0 is for a catalog without participants",
    ),
    ("nowhere", {"topology": {"assignments": [{"zone": "Z", "participants": []}]}}, ""),
)

ACCEPTED: tuple[dict[str, Any], ...] = (
    {},
    {"participants": None, "topology": {"minParticipants": 0}},
    {"participants": {"urls": [{"name": "node-1", "url": "http://node-1:7800/catalog"}], "token": TOKEN}},
    {"participants": {"selector": {"matchLabels": {"a": "b"}, "port": 7800}, "serviceAccountToken": {}}},
    {"catalog": {"endpoints": ["http://127.0.0.1:2379", "https://[::1]:2379"], "prefix": "/"}},
    {"topology": {"assignments": [{"zone": "Z", "participants": ["a", "b"]}, {"zone": "Z", "participants": ["c"]}]}},
    {"maxClockSkew": "0s", "lowWatermark": {"dataAvailability": "0s", "updateInterval": "500ms"}, "dryRun": True},
)
