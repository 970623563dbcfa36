"""Finding the API server: order, credentials that rotate, errors that name the file."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import kube_config

from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection, TokenProvider, from_kubeconfig, in_cluster, load_connection
from compaction.kube.client.tokens import KEPT_SECONDS, AccountName, OwnTokens, TokenReviewer
from compaction.kube.errors import ConnectionConfigError
from compaction.local.cluster.certs import ensure_authority
from compaction.serving.access import AllowedAccounts, CachedReviews, Gate
from compaction.serving.errors import OwnTokenError, TokenReviewUnavailableError
from support.blocks.block_stores import upload
from support.clocks import eventually
from support.cluster.control_plane import ControlPlane
from support.endpoints import Endpoint, serving


def write_kubeconfig(path: Path, *, server: str = "http://127.0.0.1:1", user: dict[str, object] | None = None) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}},
            {"name": "two", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_the_explicit_file_wins_over_the_variable(tmp_path: Path) -> None:
    explicit = write_kubeconfig(tmp_path / "explicit", server="http://127.0.0.1:11/")
    variable = write_kubeconfig(tmp_path / "variable", server="http://127.0.0.1:12")
    assert load_connection(explicit, env={"KUBECONFIG": str(variable)}).server == "http://127.0.0.1:11"
    assert load_connection(env={"KUBECONFIG": str(variable)}).server == "http://127.0.0.1:12"


def test_the_namespace_comes_from_the_context_unless_given(tmp_path: Path) -> None:
    path = str(write_kubeconfig(tmp_path / "k"))
    assert from_kubeconfig(path).namespace == "team-a"
    assert from_kubeconfig(path, context="two").namespace == "default"
    assert from_kubeconfig(path, namespace="mine").namespace == "mine"


def test_a_token_becomes_a_header_and_never_shows_in_the_repr(tmp_path: Path) -> None:
    connection = from_kubeconfig(str(write_kubeconfig(tmp_path / "k", user={"token": "s3cret"})))
    assert connection.token.header() == "Bearer s3cret"
    assert "s3cret" not in repr(connection)


def test_basic_credentials(tmp_path: Path) -> None:
    connection = from_kubeconfig(str(write_kubeconfig(tmp_path / "k", user={"username": "u", "password": "p"})))
    assert connection.token.header() == "Basic " + base64.b64encode(b"u:p").decode()


def test_no_credentials_no_header(tmp_path: Path) -> None:
    assert from_kubeconfig(str(write_kubeconfig(tmp_path / "k"))).token.header() is None


@pytest.mark.parametrize("content", ["", "{not yaml", "apiVersion: v1\nkind: Config\ncurrent-context: nowhere\n"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(ConnectionConfigError, match="broken"):
        from_kubeconfig(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectionConfigError, match="absent"):
        load_connection(tmp_path / "absent", env={})


def test_an_unusable_certificate_is_named(tmp_path: Path) -> None:
    user: dict[str, object] = {"client-certificate": str(tmp_path / "c"), "client-key": str(tmp_path / "c")}
    (tmp_path / "c").write_text("no certificate")
    with pytest.raises(ConnectionConfigError, match="certificate"):
        from_kubeconfig(str(write_kubeconfig(tmp_path / "k", server="https://127.0.0.1:1", user=user)))


def test_threads_that_read_one_file_at_once_never_see_half_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = ensure_authority(tmp_path / "pki")
    pair = authority.issue_client("someone")
    user: dict[str, object] = {
        f"client-{name}-data": base64.b64encode(content).decode()
        for name, content in (("certificate", pair.certificate), ("key", pair.key))
    }
    path = str(write_kubeconfig(tmp_path / "k", server="https://127.0.0.1:1", user=user))

    def slow_open(name: Any, mode: str = "r") -> Any:
        time.sleep(0.05 if "w" in mode else 0)
        return open(name, mode)

    monkeypatch.setattr(kube_config, "open", slow_open, raising=False)
    with ThreadPoolExecutor(4) as threads:
        connections = list(threads.map(lambda _: from_kubeconfig(path), range(4)))
    assert all(connection.ssl_context is not None for connection in connections)


def test_nothing_configured_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConnectionConfigError, match="set KUBECONFIG"):
        load_connection(env={})


def test_a_pod_reads_its_projected_token_again(tmp_path: Path) -> None:
    ensure_authority(tmp_path)  # makes a ca.crt
    (tmp_path / "namespace").write_text("team-b\n")
    (tmp_path / "token").write_text("old\n")
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    connection = in_cluster(env, directory=tmp_path)
    assert connection.server == "https://[fd00::1]:443"
    assert connection.namespace == "team-b"
    assert connection.token.header() == "Bearer old"
    (tmp_path / "token").write_text("new\n")
    assert connection.token.header() == "Bearer old"
    connection.token.expire()  # what the client does after a 401
    assert connection.token.header() == "Bearer new"


def test_an_incomplete_service_account_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionConfigError, match="incomplete"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, directory=tmp_path)


def test_tokens_are_read_again_after_their_lifetime() -> None:
    now = 0.0
    values = iter(["one", "two"])
    provider = TokenProvider(lambda: next(values), lifetime=60.0, clock=lambda: now)
    assert provider.header() == "one"
    now = 59.9
    assert provider.header() == "one"
    now = 60.0
    assert provider.header() == "two"


# Tokens of the operator's own account on a real API server: one audience each, kept a while, refused with advice.

RunWithClient = Callable[..., Any]
NAME = "compaction-operator"


def test_a_token_is_for_its_audience_alone_and_is_kept(
    with_client: RunWithClient, control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl("create", "serviceaccount", NAME, namespace=namespace)
    now = [100.0]

    async def work(client: ApiClient) -> None:
        tokens = OwnTokens(client, AccountName(namespace, NAME), monotonic=lambda: now[0])
        first, other = await tokens.token("one"), await tokens.token("another")
        assert first != other
        assert await TokenReviewer(client, ["one"])(first) == f"system:serviceaccount:{namespace}:{NAME}"
        for audience in ("another", "https://kubernetes.default.svc"):
            assert await TokenReviewer(client, [audience])(first) is None
        now[0] += KEPT_SECONDS - 1
        assert await tokens.token("one") == first
        now[0] += 1
        assert await tokens.token("one") != first

    with_client(work)


def test_what_is_missing_is_named(
    with_client: RunWithClient, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    powerless = load_connection(control_plane.running.kubeconfig_for("powerless", tmp_path / "powerless"))

    async def refusal(client: ApiClient, account: AccountName | None) -> str:
        with pytest.raises(OwnTokenError) as caught:
            await OwnTokens(client, account).token("one")
        return str(caught.value)

    async def as_another() -> str:
        async with ApiClient(powerless) as client:
            return await refusal(client, AccountName(namespace, NAME))

    assert "--service-account NAMESPACE/NAME" in with_client(lambda client: refusal(client, None))
    absent = with_client(lambda client: refusal(client, AccountName(namespace, "absent")))
    assert f"there is no service account {namespace}/absent" in absent
    assert "apply manifests/components/catalogs" in asyncio.run(as_another())


def test_an_account_is_a_namespace_and_a_name() -> None:
    assert AccountName.parse("ns/name") == AccountName("ns", "name")
    for wrong in ("", "name", "/name", "ns/", "a/b/c"):
        with pytest.raises(ValueError, match="NAMESPACE/NAME"):
            AccountName.parse(wrong)


# TokenReview on a real API server: tokens of service accounts come in, for our audience and while their account is.

AUDIENCE = "compaction-block-ingest"


@pytest.fixture
def token(control_plane: ControlPlane, namespace: str) -> Callable[..., str]:
    """`token("collector")`: one of a service account of the test's namespace, which is made first."""
    made: set[str] = set()

    def request(name: str, *, audience: str = AUDIENCE) -> str:
        if name not in made:
            control_plane.kubectl("create", "serviceaccount", name, namespace=namespace)
            made.add(name)
        return control_plane.kubectl("create", "token", name, f"--audience={audience}", namespace=namespace).stdout

    return request


def test_a_token_for_our_audience_is_its_accounts(
    with_client: RunWithClient, token: Callable[..., str], namespace: str, control_plane: ControlPlane
) -> None:
    async def work(client: ApiClient) -> None:
        review = TokenReviewer(client, [AUDIENCE])
        good.append(token("collector"))
        assert await review(good[0]) == f"system:serviceaccount:{namespace}:collector"
        assert await review(token("collector", audience="another")) is None
        head, payload, signature = good[0].split(".")
        assert await review(f"{head}.{payload}.{signature[:-4]}AAAA") is None
        assert await review("eyJhbGciOiJub25lIn0.e30.x") is None
        control_plane.kubectl("delete", "serviceaccount", "collector", namespace=namespace)

    async def gone(client: ApiClient) -> bool:
        return await TokenReviewer(client, [AUDIENCE])(good[0]) is None

    good: list[str] = []
    with_client(work)
    eventually(lambda: with_client(gone), "the API server to forget the token, which it remembers for ten seconds")


def test_a_server_that_may_not_ask_lets_nobody_in_and_says_nothing_of_the_token(
    control_plane: ControlPlane, token: Callable[..., str], tmp_path: Path
) -> None:
    powerless = control_plane.running.kubeconfig_for("powerless", tmp_path / "powerless")
    mine = token("collector")

    async def work() -> None:
        async with ApiClient(load_connection(powerless)) as client:
            with pytest.raises(TokenReviewUnavailableError) as caught:
                await TokenReviewer(client, [AUDIENCE])(mine)
        assert mine not in str(caught.value)

    asyncio.run(work())


def test_an_api_server_that_is_away_is_neither_yes_nor_no(connection: ApiConnection) -> None:
    async def work() -> None:
        away = replace(connection, server="https://127.0.0.1:9")
        async with ApiClient(away) as client:
            with pytest.raises(TokenReviewUnavailableError):
                await TokenReviewer(client, [AUDIENCE])("a.b.c")

    asyncio.run(work())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    opened = BlockStore.open(BlockStoreConnection(f"{tmp_path}/objects", f"sqlite:///{tmp_path}/index.db"))
    yield opened
    opened.close()


@pytest.fixture
def endpoint(store: BlockStore, connection: ApiConnection, namespace: str) -> Iterator[Endpoint]:
    client = ApiClient(connection)

    def gate() -> Gate:
        reviewer = TokenReviewer(client, [AUDIENCE])
        return Gate([], CachedReviews(reviewer, AllowedAccounts([f"{namespace}/collector"])))

    with serving(store, gate, finish=client.close) as running:
        yield running


def test_writers_come_in_with_their_own_tokens(
    endpoint: Endpoint, store: BlockStore, token: Callable[..., str]
) -> None:
    block = {"path": upload(store, 1), "tenant": "acme", "shard": 0}
    assert endpoint.register(block, token=token("collector")).outcomes() == [("Registered", None)]
    stranger = endpoint.register(block, token=token("other"))
    assert (stranger.status, stranger.code) == (403, "Forbidden")
    assert ":other is not one of" in json.dumps(stranger.body)
    for wrong in (token("collector", audience="another"), "a.b.c", "x"):
        assert endpoint.register(block, token=wrong).status == 401
