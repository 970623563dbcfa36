"""Who comes in: shared secrets, service accounts through a review, tenants per principal; and nothing secret leaks."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from compaction.blocks.serving.server import IngestServer
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.kube.logging import LogFormat, setup_logging
from compaction.serving.access import (
    KNOWN_SECONDS,
    REFUSED_SECONDS,
    AccessRules,
    AllowedAccounts,
    CachedReviews,
    Gate,
    SharedSecret,
)
from compaction.serving.errors import (
    IngestConfigError,
    NotAllowedError,
    NotAuthenticatedError,
    TokenReviewUnavailableError,
)
from compaction.serving.openapi import Api, EndpointOperation
from support.blocks.block_stores import block_id, fill, upload
from support.blocks.blocks import parquet, rows
from support.endpoints import SECRET, Endpoint, gate, serving

ACCOUNT = "system:serviceaccount:team:collector"


def token(number: int = 0, *, expiry: float | None = 1e10) -> str:
    """One with the form of a service account's."""
    claims = {"sub": ACCOUNT, "n": number} | ({} if expiry is None else {"exp": expiry})
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJSUzI1NiJ9.{payload}.c2ln"


class Reviewer:
    """Knows the users of tokens, counts what it is asked, and may be away."""

    def __init__(self, users: dict[str, str]) -> None:
        self.users, self.asked, self.away = users, 0, False

    async def __call__(self, token: str) -> str | None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise TokenReviewUnavailableError("away")
        return self.users.get(token)


@pytest.fixture
def folder_store(tmp_path: Path) -> Iterator[BlockStore]:
    store = BlockStore.open(BlockStoreConnection(f"{tmp_path}/objects", f"sqlite:///{tmp_path}/access.db"))
    yield store
    store.close()


@pytest.fixture
def serve(folder_store: BlockStore, tmp_path: Path) -> Iterator[Callable[..., Endpoint]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(serving(folder_store, lambda: gate(tmp_path, **options)))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {SECRET}",
        SECRET,
        f"Bearer {SECRET}x",
        f"Bearer {SECRET[:-1]}",
        "Bearer é",
    ],
)
def test_without_the_secret_nobody_comes_in(serve: Callable[..., Endpoint], header: str | None) -> None:
    endpoint = serve()
    given = {} if header is None else {"Authorization": header}
    for method, body in (("GET", None), ("POST", b"{}")):
        answer = endpoint.call(method, "/v1/blocks", body, token=None, headers=given)
        assert (answer.status, answer.code) == (401, "Unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_what_is_open_needs_no_secret(serve: Callable[..., Endpoint]) -> None:
    endpoint = serve()
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
        assert endpoint.call("GET", path, token=None).status == 200
    assert "compaction_ingest_requests_total" in endpoint.call("GET", "/metrics", token=None).body


def test_no_operation_of_an_endpoint_is_open_by_its_name(tmp_path: Path, folder_store: BlockStore) -> None:
    """A row that carries something out is never taken for the open one of that name."""

    class OwnOnly(Api):
        @property
        def operations(self) -> tuple[EndpointOperation, ...]:
            return tuple(replace(row, name="metrics", path="/v1/figures") for row in self.own[:1])

    class Named(IngestServer):
        def application(self) -> web.Application:
            found = self._api
            self._api = OwnOnly(found.title, found.description, found.own, found.problem)
            return super().application()

    async def main() -> None:
        server = Named(folder_store, gate(tmp_path))
        async with TestClient(TestServer(server.application())) as client:
            (row,) = server._api.operations
            answer = await client.request(row.method, row.path)
            assert answer.status == 401
            assert "Unauthenticated" in await answer.text()
        server.close()

    asyncio.run(main())


def test_a_file_of_two_secrets_lets_both_in_and_a_changed_one_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("an old secret of tests\na new secret of tests\n")
    secret = SharedSecret("writer", file)
    assert secret.matches("an old secret of tests")
    assert secret.matches("a new secret of tests")
    assert not secret.matches("an old secret of tests\na new secret of tests")
    new = tmp_path / "new"
    new.write_text("another secret of tests")
    os.replace(new, file)
    assert secret.matches("another secret of tests")
    assert not secret.matches("a new secret of tests")
    for spoiled in (b"", b"short", b"\xff" * 20):
        file.write_bytes(spoiled)
        assert not secret.matches("another secret of tests")
        assert not secret.matches(spoiled.decode("latin-1"))
    file.unlink()
    assert not secret.matches("another secret of tests")
    file.write_text("another secret of tests")
    assert secret.matches("another secret of tests")


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"too short", b"\xff\xfe" * 20])
def test_a_file_without_a_secret_is_an_error_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(IngestConfigError, match="secret: ") as caught:
        SharedSecret("writer", file)
    assert "too short" not in str(caught.value)


def test_nobody_to_let_in_is_an_error_at_the_start() -> None:
    with pytest.raises(IngestConfigError, match="give a shared secret, or allow service accounts"):
        Gate([], None)


@pytest.mark.parametrize("written", ["collector", "team/", "/collector", "*/x", "team/col*", "Team/x", "a/b/c"])
def test_a_service_account_that_cannot_be_is_an_error(written: str) -> None:
    with pytest.raises(IngestConfigError, match="NAMESPACE/NAME"):
        AllowedAccounts([written])


def test_allowed_accounts() -> None:
    allowed = AllowedAccounts(["team/collector", "storage/*"])
    assert allowed.has("system:serviceaccount:team:collector")
    assert allowed.has("system:serviceaccount:storage:any")
    others = ["team:other", "other:collector", "storage", ":collector", "team/collector:x", "storage/*:x"]
    assert not any(allowed.has(f"system:serviceaccount:{name}") for name in others)
    assert not any(allowed.has(name) for name in ("team:collector", "team/collector", "kubernetes-admin", ""))


def test_service_accounts_come_in_by_their_token(serve: Callable[..., Endpoint]) -> None:
    reviewer = Reviewer({token(1): ACCOUNT, token(2): "system:serviceaccount:other:x", token(3): "kubernetes-admin"})
    endpoint = serve(secrets={}, review=reviewer, allowed=("team/collector",))
    assert endpoint.list(token=token(1)).status == 200
    for stranger in (token(2), token(3)):
        answer = endpoint.list(token=stranger)
        assert (answer.status, answer.code) == (403, "Forbidden")
    assert "system:serviceaccount:other:x is not one of" in endpoint.list(token=token(2)).body["message"]
    assert endpoint.list(token=token(4)).status == 401
    reviewer.away = True
    away = endpoint.list(token=token(5))
    assert (away.status, away.code) == (503, "Unavailable")
    assert "Retry-After" in away.headers
    assert endpoint.list(token=token(1)).status == 200, "it is remembered"


def test_secret_and_service_account_side_by_side(serve: Callable[..., Endpoint]) -> None:
    reviewer = Reviewer({token(1): ACCOUNT})
    endpoint = serve(review=reviewer, allowed=("team/*",))
    assert endpoint.list(token=SECRET).status == 200
    assert reviewer.asked == 0, "a secret is nothing for the API server"
    assert endpoint.list(token=token(1)).status == 200


def reviews(reviewer: Reviewer, clock: Callable[[], float]) -> CachedReviews:
    return CachedReviews(reviewer, AllowedAccounts(["team/*"]), clock=clock)


def test_answers_are_remembered_for_a_while() -> None:
    async def story() -> None:
        now = [1000.0]
        lasting, ending, silent = token(1), token(2, expiry=1010), token(3, expiry=None)
        reviewer = Reviewer(dict.fromkeys((lasting, ending, silent), ACCOUNT))
        cached = reviews(reviewer, lambda: now[0])

        async def asked(which: str, *, known: bool = True) -> int:
            before = reviewer.asked
            if known:
                assert await cached.account_of(which) == ACCOUNT
            else:
                with pytest.raises(NotAuthenticatedError):
                    await cached.account_of(which)
            return reviewer.asked - before

        assert [await asked(lasting) for _ in range(3)] == [1, 0, 0]
        assert [await asked(token(9), known=False) for _ in range(2)] == [1, 0]
        assert [await asked(ending), await asked(ending)] == [1, 0]
        assert [await asked(silent), await asked(silent)] == [1, 1], "when it expires is unknown"
        now[0] += REFUSED_SECONDS + 1
        assert await asked(token(9), known=False) == 1
        assert await asked(ending) == 1, "its own expiry has passed: the API server decides"
        assert await asked(lasting) == 0
        now[0] += KNOWN_SECONDS
        del reviewer.users[lasting]
        assert await asked(lasting, known=False) == 1, "withdrawn"

    asyncio.run(story())


def test_many_requests_with_one_token_are_one_question() -> None:
    async def story() -> None:
        reviewer = Reviewer({token(1): ACCOUNT})
        cached = reviews(reviewer, lambda: 0.0)
        first = asyncio.create_task(cached.account_of(token(1)))
        others = [asyncio.create_task(cached.account_of(token(1))) for _ in range(20)]
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.gather(*others) == [ACCOUNT] * 20
        assert reviewer.asked == 1

    asyncio.run(story())


def test_an_outage_is_not_remembered() -> None:
    async def story() -> None:
        reviewer = Reviewer({token(1): ACCOUNT})
        reviewer.away = True
        cached = reviews(reviewer, lambda: 0.0)
        for _ in range(2):
            with pytest.raises(TokenReviewUnavailableError):
                await cached.account_of(token(1))
        reviewer.away = False
        assert await cached.account_of(token(1)) == ACCOUNT

    asyncio.run(story())


def test_what_is_no_token_is_never_asked_about() -> None:
    async def story() -> None:
        reviewer = Reviewer({})
        cached = reviews(reviewer, lambda: 0.0)
        for nonsense in ("x", "a.b", "a.b.c.d", "a.b.c\n", "ä.b.c", "a.b." + "c" * 20_000):
            with pytest.raises(NotAuthenticatedError):
                await cached.account_of(nonsense)
        assert reviewer.asked == 0

    asyncio.run(story())


def test_memory_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction.serving.access.MOST_REMEMBERED", 10)

    async def story() -> None:
        cached = reviews(Reviewer({}), lambda: 0.0)
        for number in range(50):
            with pytest.raises(NotAuthenticatedError):
                await cached.account_of(token(number))
        assert len(cached._known) == 10

    asyncio.run(story())


RULES = {"secret:writer": ["acme", "beta"], "secret:boss": ["*"]}
SECRETS = {"writer": SECRET, "boss": "the secret of the boss", "stranger": "the secret of a stranger"}


def test_a_principal_uses_its_own_tenants_only(serve: Callable[..., Endpoint], folder_store: BlockStore) -> None:
    endpoint = serve(secrets=SECRETS, tenants=RULES)
    fill(folder_store, [1], tenant="acme")
    fill(folder_store, [2], tenant="gamma")
    mine, others = upload(folder_store, 3, tenant="beta"), upload(folder_store, 4, tenant="gamma")
    assert endpoint.register({"path": mine, "tenant": "beta", "shard": 0}).status == 200
    mixed = [{"path": mine, "tenant": "beta", "shard": 0}, {"path": others, "tenant": "gamma", "shard": 0}]
    refused = endpoint.register(*mixed)
    assert (refused.status, refused.code) == (403, "Forbidden")
    assert refused.body["message"] == "secret:writer may not use the tenant 'gamma'"
    assert endpoint.list(tenant="gamma").status == 403
    assert endpoint.list().status == 403
    assert [item["id"] for item in endpoint.list(tenant="acme").body["blocks"]] == [block_id(1)]
    boss = SECRETS["boss"]
    assert len(endpoint.list(token=boss).body["blocks"]) == 3
    assert endpoint.register(*mixed, token=boss).status == 200
    assert endpoint.list(token=SECRETS["stranger"], tenant="acme").status == 403


def test_another_tenants_object_cannot_be_made_ones_own(
    serve: Callable[..., Endpoint], folder_store: BlockStore
) -> None:
    """By a wrong tenant, by a path of another layout, by a path that leads elsewhere."""
    endpoint = serve(secrets=SECRETS, tenants=RULES)
    others = upload(folder_store, 4, tenant="gamma")
    lake = f"lake/{block_id(5)}.parquet"
    folder_store.objects.put(lake, parquet(rows(10)))
    for path in (
        others,
        lake,
        f"acme/../{others}",
        f"./{others}",
        f"acme/0/../../{others}",
        others.upper(),
        f"/{others}",
    ):
        answer = endpoint.register({"path": path, "tenant": "acme", "shard": 0})
        assert answer.status == 422, path
        assert answer.outcomes()[0][1] in {"Invalid", "Unsuitable"}, path
    assert folder_store.live().blocks == ()


@pytest.mark.parametrize(
    "text", ["", "[]", "a: b", "a: [1]", 'a: [""]', "1: [x]", "a: [x", "a: [b]\na: [c]", "\xff", "a: {b: c}"]
)
def test_a_file_of_tenants_that_is_none_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(IngestConfigError, match=r"tenants\.yaml"):
        AccessRules.read(file)


def test_a_file_of_tenants(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(f'{ACCOUNT}: [acme]\nsecret:boss: ["*"]\n')
    rules = AccessRules.read(file)
    assert rules.of("secret:boss").allowed is None
    rules.of(ACCOUNT).check("acme")
    with pytest.raises(NotAllowedError, match="may not use the tenant 'other'"):
        rules.of(ACCOUNT).check("other")
    with pytest.raises(NotAllowedError, match="in no rule"):
        rules.of("secret:other")


def test_no_secret_and_no_token_is_in_the_log_or_an_answer(
    serve: Callable[..., Endpoint], folder_store: BlockStore
) -> None:
    stream = io.StringIO()
    setup_logging(LogFormat.JSON, level=logging.DEBUG, stream=stream)
    reviewer = Reviewer({token(1): ACCOUNT, token(2): "system:serviceaccount:other:x"})
    endpoint = serve(review=reviewer, allowed=("team/*",))
    path = upload(folder_store, 1)
    answers = [
        endpoint.call("POST", "/v1/blocks", body, token=item)
        for item in (SECRET, token(1), token(2), token(3), f"wrong{SECRET}")
        for body in (b"{", json.dumps({"blocks": [{"path": path, "tenant": "acme", "shard": 0}]}).encode())
    ]
    said = stream.getvalue() + "".join(json.dumps(answer.body) + str(answer.headers) for answer in answers)
    assert "secret:writer" in said
    for secret in (SECRET, *(part for number in (1, 2, 3) for part in token(number).split(".")[1:])):
        assert secret not in said
