"""Tokens of the operator's own account on a real API server: one audience each, kept a while, refused with advice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import load_connection
from compaction.kube.client.tokens import KEPT_SECONDS, AccountName, OwnTokens, TokenReviewer
from compaction.serving.errors import OwnTokenError
from support.cluster.control_plane import ControlPlane

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
