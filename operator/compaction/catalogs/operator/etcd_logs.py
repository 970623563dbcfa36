"""Logs in etcd, opened with what the Secret of a catalog holds (docs/design/catalogs.md#client-of-etcd)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compaction.api.catalog.spec import CatalogCompactionSpec
from compaction.catalogs.log.etcd.client import GatewayClient
from compaction.catalogs.log.etcd.settings import Endpoint, EtcdSettings, Tls
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.port import UpdateLog
from compaction.catalogs.operator.ports import Credentials, Secret
from compaction.serving.running import is_loopback
from compaction.storage.errors import SecretError, SecretMissingError

_CALL: Final = 3
"""Requests that one call may take, of the time of one each: there are as many members, as a rule."""
AUTHORITY: Final = "ca.crt"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"


class EtcdLogs:
    """Implements `ports.Logs`."""

    def open(self, spec: CatalogCompactionSpec, credentials: Credentials) -> UpdateLog:
        """See `ports.Logs`. Raises SecretMissingError for half of a key pair, or of a user; SecretError for a password
        that would travel readably.
        """
        secret, name = credentials.log, spec.catalog.secret_name or ""
        for one, other in ((CERTIFICATE, KEY), (KEY, CERTIFICATE), ("username", "password"), ("password", "username")):
            if secret.get(one) and not secret.get(other):
                raise SecretMissingError(name, other, f"it is not there, and {one} is: write both or neither")
        endpoints = tuple(Endpoint.parse(url) for url in spec.catalog.endpoints)
        readable = next((one for one in endpoints if not one.secure and not is_loopback(one.host)), None)
        if readable is not None and secret.get("password"):
            raise SecretError(name, "password", f"it would travel readably to {readable}: use https")
        with _files(secret) as tls:
            settings = EtcdSettings(
                endpoints,
                tls,
                user=secret.get("username", ""),
                password=secret.get("password", ""),
                attempt_seconds=float(spec.timeouts.log),
                call_seconds=_CALL * float(spec.timeouts.log),
            )
            # The client reads the certificates while it is made: the files are not needed any longer.
            client = GatewayClient(settings)
        return EtcdUpdateLog(client, spec.catalog.prefix)


@contextmanager
def _files(secret: Secret) -> Iterator[Tls]:
    """Certificates and key as files, which is what the standard library loads; only this process's user reads them."""
    with tempfile.TemporaryDirectory(prefix="catalog-") as directory:
        found: dict[str, Path] = {}
        for name in (AUTHORITY, CERTIFICATE, KEY):
            if text := secret.get(name):
                found[name] = Path(directory, name)
                with open(os.open(found[name], os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                    file.write(text)
        yield Tls(found.get(AUTHORITY), found.get(CERTIFICATE), found.get(KEY))
