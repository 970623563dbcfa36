"""Participants that take the operator's own service account token, which the API server reviews."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from support.catalogs.etcd_members import Members
from support.catalogs.participants import ParticipantProcess
from support.clocks import PATIENCE_SECONDS
from support.cluster.by_kubectl import Cluster, objects_of
from support.cluster.control_plane import ControlPlane, account
from support.cluster.orders import COMPONENT, Orders, orders
from support.faults.proxies import Network, TcpProxy
from support.processes.operators import ACCOUNT, OperatorFleet

pytestmark = pytest.mark.apiserver

OPERATOR = "compaction-operator"
USERS = "orders"
"""The service account of the participants."""
TOKENS = COMPONENT.with_name("tokens.yaml")
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Accounts:
    """The operator's and the participants' account in one namespace, with what the component grants them."""

    cluster: Cluster
    kubeconfig: Path

    @property
    def audience(self) -> str:
        return f"compaction-participant/{self.cluster.namespace}"

    def access(self, *, user: str = OPERATOR, audience: str = "", kubeconfig: Path | None = None) -> tuple[str, ...]:
        """Options of a participant that takes tokens of one account, for one audience."""
        return (
            f"--allow-service-account={self.cluster.namespace}/{user}",
            f"--audience={audience or self.audience}",
            f"--kubeconfig={kubeconfig or self.kubeconfig}",
        )

    def allow_tokens(self) -> None:
        """The operator of the test, which is a user, may create tokens of the account that it stands for."""
        documents = list(yaml.safe_load_all(TOKENS.read_text()))
        documents[1]["subjects"] = [{"kind": "User", "name": ACCOUNT, "apiGroup": RBAC}]
        self.cluster.apply(*documents)

    def allow_reviews(self) -> None:
        """As docs/catalog-participants.md says."""
        binding = f"{USERS}-{self.cluster.namespace}"
        role = "--clusterrole=compaction-catalog-participant"
        self.cluster.kubectl(
            "create", "clusterrolebinding", binding, role, f"--serviceaccount={self.cluster.namespace}:{USERS}"
        )

    def token(self, user: str = OPERATOR, audience: str = "") -> str:
        return self.cluster.kubectl("create", "token", user, f"--audience={audience or self.audience}")


@pytest.fixture
def accounts(control_plane: ControlPlane, cluster: Cluster, tmp_path: Path) -> Iterator[Accounts]:
    for name in (OPERATOR, USERS, "stranger"):
        cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    user = account(cluster.namespace, USERS)
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{cluster.namespace}")
    path = control_plane.running.kubeconfig_for(user, tmp_path / "participant.kubeconfig", groups=groups)
    found = Accounts(cluster, path)
    yield found
    cluster.kubectl("delete", "clusterrolebinding", f"{USERS}-{cluster.namespace}", "--ignore-not-found")


@pytest.fixture
def catalog(accounts: Accounts, cluster: Cluster, etcd: Members, tmp_path: Path) -> Iterator[Orders]:
    """There is no Secret, and the operator may read none."""
    access = accounts.access()
    with orders(cluster, etcd.settings(), tmp_path / "participants", "a", "b", access=access) as found:
        found.create()
        yield found


def apply(catalog: Orders) -> None:
    urls = [{"name": name, "url": item.url} for name, item in catalog.participants.items()]
    catalog.apply(participants={"urls": urls, "serviceAccountToken": {}})


def restart(catalog: Orders, one: ParticipantProcess, access: tuple[str, ...]) -> None:
    one.close()
    one.access = access
    catalog.start(one.name)


def test_the_operators_token_is_reviewed_by_the_api_server(
    operators: OperatorFleet, accounts: Accounts, catalog: Orders, control_plane: ControlPlane, tmp_path: Path
) -> None:
    b = catalog.participants["b"]
    nameless = operators.start()
    apply(catalog)
    catalog.await_reason("PermissionDenied", says="--service-account")
    nameless.stop()

    replica = operators.start(more=("--service-account", f"{catalog.cluster.namespace}/{OPERATOR}"))
    catalog.await_reason("PermissionDenied", says="manifests/components/catalogs")
    accounts.allow_tokens()
    catalog.await_reason("AnswerRefused", "a", says="503")
    assert catalog.history()[0] == 1, "participants that may not ask whose token it is let no caller in"
    accounts.allow_reviews()
    catalog.await_cut(7)

    restart(catalog, b, accounts.access(audience="compaction-participant/elsewhere"))
    catalog.await_reason("AnswerRefused", "b", says="401")
    restart(catalog, b, accounts.access(user="stranger"))
    process = catalog.await_reason("AnswerRefused", "b", says="403")
    assert f"{account(catalog.cluster.namespace, OPERATOR)} is not one of" in process["message"]
    with TcpProxy(_address(control_plane.url)) as proxy:
        through = proxy.kubeconfig(accounts.kubeconfig, control_plane.url, tmp_path / "through.kubeconfig")
        proxy.set(Network.REFUSING)
        restart(catalog, b, accounts.access(kubeconfig=through))
        process = catalog.await_reason("AnswerRefused", "b", says="503")
        assert "the API server cannot be asked whose token it is" in process["message"]
        last = catalog.grow(2)
        assert catalog.history()[0] == 7
        proxy.set(Network.UP)
        catalog.await_cut(last - 1)

    shown = objects_of(catalog.cluster) + replica.output + b.log.read_text()
    assert "eyJ" not in shown, "which every such token begins with"


def test_tokens_of_others_come_in_nowhere(accounts: Accounts, catalog: Orders, control_plane: ControlPlane) -> None:
    a = catalog.participants["a"]
    accounts.allow_tokens()
    accounts.allow_reviews()
    good = accounts.token()
    assert ask(a, good) == 200
    head, payload, signature = good.split(".")
    expired = resigned(good, control_plane, lambda claims: claims | {"iat": 1, "nbf": 1, "exp": int(time.time()) - 60})
    assert ask(a, resigned(good, control_plane, lambda claims: claims)) == 200, "the signature is not what is wrong"
    for wrong in (
        accounts.token(audience="https://kubernetes.default.svc"),
        accounts.token(audience="compaction-participant/elsewhere"),
        f"{head}.{payload}.{signature[:-8]}AAAAAAAA",
        "eyJhbGciOiJub25lIn0.e30.x",
        "garbage",
        expired,
    ):
        assert ask(a, wrong) == 401
    assert ask(a, accounts.token("stranger")) == 403
    catalog.cluster.kubectl("delete", "serviceaccount", "stranger")


def ask(one: ParticipantProcess, token: str) -> int:
    """The status of its answer to a caller with this token."""
    connection = http.client.HTTPConnection(one.host, one.port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", "/v1/report", headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


def resigned(token: str, plane: ControlPlane, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """The same token with other claims, signed by the API server's key."""
    head, payload, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    text = f"{head}.{_encoded(json.dumps(change(claims)).encode())}"
    key = serialization.load_pem_private_key(plane.running.authority.service_accounts.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    numbers = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{_encoded(b''.join(number.to_bytes(32) for number in numbers))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("https://").partition(":")
    return host, int(port)
