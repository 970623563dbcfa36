"""Users of an etcd for tests: root, and one who may read and write one prefix."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import EtcdSettings, Tls
from tools.servers.etcd import LocalEtcd

USER = "orders"
PASSWORD = "s3cret-of-the-orders"


def nameless(running: LocalEtcd) -> EtcdSettings:
    """A certificate without a common name: the gateway of an etcd with users takes no other."""
    pair = running.authority._issue(
        x509.Name([]), usage=ExtendedKeyUsageOID.CLIENT_AUTH, names=(x509.DNSName("catalog"),)
    )
    certificate, key = (running.authority.directory / f"nameless.{kind}" for kind in ("crt", "key"))
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return replace(running.settings, tls=Tls(running.authority.ca, certificate, key))


def with_users(settings: EtcdSettings, prefix: str) -> EtcdSettings:
    """Require users from now on; the settings of the one for the prefix."""
    client = GatewayClient(settings)
    start = f"{prefix}/"
    permission = {
        "permType": "READWRITE",
        "key": b64encode(start.encode()).decode(),
        "range_end": b64encode((start[:-1] + "0").encode()).decode(),
    }
    steps: list[tuple[str, dict[str, Any]]] = [
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/add", {"name": "root", "password": "root-of-the-test"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/role/add", {"name": USER}),
        ("/v3/auth/role/grant", {"name": USER, "perm": permission}),
        ("/v3/auth/user/add", {"name": USER, "password": PASSWORD}),
        ("/v3/auth/user/grant", {"user": USER, "role": USER}),
        ("/v3/auth/enable", {}),
    ]
    for path, what in steps:
        client._call(path, what)
    client.close()
    return replace(settings, user=USER, password=PASSWORD)
