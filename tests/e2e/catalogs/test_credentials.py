"""An etcd with TLS and users, whose password is in a Secret: missing, wrong, rotated, and never shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.catalogs.etcd_members import PASSWORD, USER, nameless, with_users
from support.cluster.by_kubectl import Cluster, files_below, objects_of, write_secret
from support.cluster.orders import LOG_SECRET, ROOT, TOKEN_SECRET, Orders, orders
from support.endpoints import SECRET
from support.processes.operators import ACCOUNT, OperatorFleet
from tools.servers.etcd import LocalEtcd

pytestmark = pytest.mark.apiserver

WRONG = "the-password-of-yesterday"


@pytest.fixture
def catalog(cluster: Cluster, secured: LocalEtcd, tmp_path: Path) -> Iterator[Orders]:
    """No Secret exists yet, and the operator may read none."""
    settings = with_users(nameless(secured), ROOT)
    with orders(cluster, settings, tmp_path / "participants", "a", "b") as found:
        found.create()
        yield found


def test_secrets_are_missing_wrong_and_rotated(operators: OperatorFleet, catalog: Orders) -> None:
    tls = catalog.settings.tls
    assert tls.ca is not None
    assert tls.certificate is not None
    assert tls.key is not None
    files = {
        "ca.crt": tls.ca.read_text(),
        "tls.crt": tls.certificate.read_text(),
        "tls.key": tls.key.read_text(),
    }
    replica = operators.start()
    catalog.apply(secret=LOG_SECRET)
    process = catalog.await_reason(
        "PermissionDenied", says=f"may not get secrets in namespace {catalog.cluster.namespace}"
    )
    assert "manifests/components/catalogs" in process["message"]
    catalog.allow_secrets(ACCOUNT)
    catalog.await_reason("SecretMissing", says=f"Secret {LOG_SECRET}")
    catalog.await_condition("False", "SecretMissing")
    write_secret(catalog.cluster, LOG_SECRET, files | {"username": USER})
    catalog.write_token()
    catalog.await_reason("SecretMissing", says=f"key password of Secret {LOG_SECRET}")
    write_secret(catalog.cluster, LOG_SECRET, files | {"username": USER, "password": WRONG})
    catalog.await_reason("PermissionDenied", says=f"user {USER}")
    assert catalog.history()[0] == 1

    write_secret(catalog.cluster, LOG_SECRET, files | {"username": USER, "password": PASSWORD})
    catalog.await_cut(7)
    catalog.await_condition("True", "NothingToCompact")

    write_secret(catalog.cluster, TOKEN_SECRET, {"token": WRONG})
    last = catalog.grow(2)
    catalog.await_reason("AnswerRefused", "a", says="401")
    assert catalog.history()[0] == 7
    catalog.write_token()
    catalog.await_cut(last - 1)

    said = objects_of(catalog.cluster) + replica.output
    assert all(value not in said for value in (PASSWORD, WRONG, SECRET, files["tls.key"].splitlines()[1]))
    assert PASSWORD.encode() not in files_below(operators.directory)
