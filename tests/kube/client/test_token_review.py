"""TokenReview on a real API server: tokens of service accounts come in, for our audience and while their account is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection, load_connection
from compaction.kube.client.tokens import TokenReviewer
from compaction.serving.access import AllowedAccounts, CachedReviews, Gate
from compaction.serving.errors import TokenReviewUnavailableError
from support.cluster.control_plane import ControlPlane
from support.stores.block_stores import upload
from support.stores.ingest import Endpoint, serving
from support.time.waiting import eventually

AUDIENCE = "compaction-block-ingest"
RunWithClient = Callable[..., Any]


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
