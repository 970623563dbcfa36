"""Secrets from a real API server: read by name, in threads; what is missing or forbidden is named, no value shows."""

from __future__ import annotations

import asyncio
import base64
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from compaction.api.enums import PolicyReason
from compaction.api.names import ANNOTATION_USED_BY
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection, load_connection
from compaction.kube.client.secrets import KEPT_SECONDS, NamespaceSecrets, may_not_read, secret_values
from compaction.kube.client.transport import ApiCall
from compaction.storage.errors import SecretError, SecretForbiddenError, SecretMissingError
from compaction.storage.secrets import reason_of, value_of
from support.faults.proxies import Network, TcpProxy

VALUE = "s3cr3t-value-that-nobody-may-see"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


USER = "CompactionPolicy/lake"
USED = {ANNOTATION_USED_BY: USER}


def secret_object(data: Mapping[str, str] | None, used_by: str = USER) -> dict[str, Any]:
    metadata = {"name": "store", "namespace": "ns", "annotations": {ANNOTATION_USED_BY: used_by}}
    return {"metadata": metadata, "data": data}


@pytest.mark.parametrize(
    ("said", "is_for"),
    [
        (USER, True),
        ("CatalogCompaction/a , CompactionPolicy/lake", True),
        ("CompactionPolicy/*", True),
        ("", False),
        ("*", False),
        ("CompactionPolicy/lak", False),
        ("CompactionPolicy/lake2", False),
        ("CatalogCompaction/lake", False),
        ("CatalogCompaction/*", False),
    ],
)
def test_a_secret_says_for_whom_it_is(said: str, is_for: bool) -> None:
    """Nothing of any other is told, not even its keys."""
    data = {"a": base64.b64encode(VALUE.encode()).decode()}
    if is_for:
        assert secret_values("store", secret_object(data, said), user=USER) == {"a": VALUE}
        return
    with pytest.raises(SecretForbiddenError) as caught:
        secret_values("store", secret_object(data, said), user=USER)
    wanted = f"{said},{USER}" if said else USER
    assert str(caught.value) == (
        "Secret store: it is not for CompactionPolicy/lake; a user who may write it can say that it is: kubectl "
        f"annotate --overwrite secret store -n ns compaction.dev/used-by='{wanted}'"
    )
    assert reason_of(caught.value) is PolicyReason.PERMISSION_DENIED
    nothing = {"metadata": {"name": "store", "namespace": "ns"}, "data": data}
    with pytest.raises(SecretForbiddenError):
        secret_values("store", nothing, user=USER)


@pytest.fixture
def make(control_plane: Any, namespace: str) -> Callable[..., None]:
    """`make("store", key="value")` creates or replaces a Secret."""

    def secret(name: str, values: Mapping[str, str]) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "annotations": USED}, "data": data}
        path = f"/api/v1/namespaces/{namespace}/secrets"
        control_plane.admin.request("DELETE", f"{path}/{name}")
        answer = control_plane.admin.request("POST", path, body)
        assert answer.ok, answer.text

    return secret


def in_thread(
    connection: ApiConnection, namespace: str, work: Callable[[NamespaceSecrets], Any], *, clock: Clock | None = None
) -> tuple[Any, list[ApiCall]]:
    """`work(secrets)` in a thread, beside the loop of the client; its result, and the calls that were made."""
    calls: list[ApiCall] = []

    async def main() -> Any:
        async with ApiClient(connection, deadline=3.0, observe=calls.append) as client:
            secrets = NamespaceSecrets(client, namespace, USER, monotonic=clock or Clock())
            return await asyncio.to_thread(work, secrets)

    return asyncio.run(main()), calls


def test_a_secret_is_read_by_name_with_one_get_and_nothing_else(
    connection: ApiConnection, namespace: str, make: Callable[..., None]
) -> None:
    make("store", {"access_key_id": "me", "secret_access_key": VALUE + "\n"})
    values, calls = in_thread(connection, namespace, lambda secrets: secrets.read("store"))
    assert values == {"access_key_id": "me", "secret_access_key": VALUE}
    assert [(call.verb, call.resource, call.code) for call in calls] == [("get", "secrets", "200")]


def test_it_is_kept_for_a_while_and_a_changed_one_is_picked_up(
    connection: ApiConnection, namespace: str, make: Callable[..., None]
) -> None:
    make("store", {"url": "1"})
    clock = Clock()

    def work(secrets: NamespaceSecrets) -> list[str]:
        seen = [value_of(secrets, "store", "url")]
        make("store", {"url": "2"})
        clock.now += KEPT_SECONDS - 0.1
        seen.append(value_of(secrets, "store", "url"))
        clock.now += 0.2
        return [*seen, value_of(secrets, "store", "url")]

    seen, calls = in_thread(connection, namespace, work, clock=clock)
    assert seen == ["1", "1", "2"]
    assert len(calls) == 2


def test_a_failure_is_not_kept(connection: ApiConnection, namespace: str, make: Callable[..., None]) -> None:
    def work(secrets: NamespaceSecrets) -> str:
        with pytest.raises(SecretMissingError):
            secrets.read("store")
        make("store", {"url": "1"})
        return value_of(secrets, "store", "url")

    assert in_thread(connection, namespace, work)[0] == "1"


def test_a_secret_that_was_read_before_and_is_gone_is_missing(
    control_plane: Any, connection: ApiConnection, namespace: str, make: Callable[..., None]
) -> None:
    make("store", {"url": "1"})
    clock = Clock()

    def work(secrets: NamespaceSecrets) -> None:
        secrets.read("store")
        control_plane.kubectl("delete", "secret", "store", namespace=namespace)
        clock.now += KEPT_SECONDS
        with pytest.raises(SecretMissingError):
            secrets.read("store")

    in_thread(connection, namespace, work, clock=clock)


def test_what_is_missing_is_named_with_what_to_do(
    connection: ApiConnection, namespace: str, make: Callable[..., None]
) -> None:
    make("store", {"access_key_id": VALUE})

    def work(secrets: NamespaceSecrets) -> tuple[SecretError, SecretError]:
        with pytest.raises(SecretError) as absent:
            secrets.read("index")
        with pytest.raises(SecretError) as keyless:
            value_of(secrets, "store", "url")
        return absent.value, keyless.value

    (absent, keyless), _ = in_thread(connection, namespace, work)
    assert str(absent) == f'Secret "index" not found in namespace {namespace}. Create it or correct the name.'
    assert str(keyless).startswith("key url of Secret store: there is no such key: add the key")
    assert {reason_of(absent), reason_of(keyless)} == {PolicyReason.SECRET_MISSING}
    assert VALUE not in repr(keyless)


def test_a_missing_permission_is_named_with_what_gives_it(control_plane: Any, namespace: str, tmp_path: Path) -> None:
    kubeconfig = control_plane.running.kubeconfig_for("nobody-in-particular", tmp_path / "kubeconfig")

    def work(secrets: NamespaceSecrets) -> SecretForbiddenError:
        with pytest.raises(SecretForbiddenError) as caught:
            secrets.read("store")
        return caught.value

    error, _ = in_thread(load_connection(kubeconfig), namespace, work)
    assert f"may not get secrets in namespace {namespace}" in str(error)
    assert "components/block-stores" in str(error)
    may_not = may_not_read("configmap_trust", namespace, "block-stores")
    assert f"may not get configmaps in namespace {namespace}" in may_not
    assert "and trust in resourceNames" in may_not
    assert reason_of(error) is PolicyReason.PERMISSION_DENIED


def test_the_command_in_the_message_shares_a_secret(
    control_plane: Any, connection: ApiConnection, namespace: str
) -> None:
    """Also one that is shared with others already."""
    metadata = {"name": "store", "annotations": {ANNOTATION_USED_BY: "CatalogCompaction/orders"}}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"url": VALUE}}
    assert control_plane.admin.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body).ok

    def work(secrets: NamespaceSecrets) -> str:
        with pytest.raises(SecretForbiddenError) as caught:
            secrets.read("store")
        program, *command = shlex.split(str(caught.value).partition(" can say that it is: ")[2])
        assert program == "kubectl"
        control_plane.kubectl(*command)
        return value_of(secrets, "store", "url")

    assert in_thread(connection, namespace, work)[0] == VALUE
    shared = control_plane.kubectl("get", "secret", "store", "-o", "yaml", namespace=namespace).stdout
    assert f"{ANNOTATION_USED_BY}: CatalogCompaction/orders,{USER}" in shared


def test_config_maps_are_read_likewise(control_plane: Any, connection: ApiConnection, namespace: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "trust"}, "data": {"ca.crt": "PEM\n"}}
    assert control_plane.admin.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body).ok

    def work(secrets: NamespaceSecrets) -> tuple[Mapping[str, str], SecretError]:
        with pytest.raises(SecretError) as absent:
            secrets.read("configmap_index")
        return secrets.read("configmap_trust"), absent.value

    (values, absent), calls = in_thread(connection, namespace, work)
    assert values == {"ca.crt": "PEM"}
    assert str(absent) == f'ConfigMap "index" not found in namespace {namespace}. Create it or correct the name.'
    assert [(call.verb, call.resource, call.code) for call in calls] == [
        ("get", "configmaps", "404"),
        ("get", "configmaps", "200"),
    ]


@pytest.mark.parametrize("state", [Network.REFUSING, Network.BLACK_HOLE])
def test_no_answer_is_an_error_that_says_so(control_plane: Any, namespace: str, tmp_path: Path, state: Network) -> None:
    """And the thread comes back."""

    def work(secrets: NamespaceSecrets) -> SecretError:
        with pytest.raises(SecretError) as caught:
            secrets.read("store")
        return caught.value

    server = urlsplit(control_plane.url)
    with TcpProxy((str(server.hostname), int(server.port or 0)), state=state) as proxy:
        through = proxy.kubeconfig(control_plane.kubeconfig, control_plane.url, tmp_path / "through-proxy")
        error, _ = in_thread(load_connection(through), namespace, work)
    assert str(error).startswith("Secret store: the API server did not give it")
    assert reason_of(error) is PolicyReason.SENSE_FAILED


def test_no_value_shows_in_what_keeps_them(
    connection: ApiConnection, namespace: str, make: Callable[..., None]
) -> None:
    make("store", {"url": VALUE})

    def work(secrets: NamespaceSecrets) -> str:
        secrets.read("store")
        return repr(secrets) + repr(vars(secrets))

    assert VALUE not in in_thread(connection, namespace, work)[0]


def test_a_value_that_is_no_text_is_named() -> None:
    with pytest.raises(SecretError, match=r"^key a of Secret store: its value is not UTF-8 text"):
        secret_values("store", secret_object({"a": base64.b64encode(b"\xff\xfe").decode()}), user=USER)
    assert secret_values("empty", secret_object(None), user=USER) == {}


def test_a_look_that_outlives_its_term_gets_an_error_and_comes_back(connection: ApiConnection, namespace: str) -> None:
    """The client is closed first, then the loop; the thread is waited for by nobody but the end of the process."""

    async def term() -> NamespaceSecrets:
        async with ApiClient(connection) as client:
            await client.request("GET", "/version")
            secrets = NamespaceSecrets(client, namespace, USER)
        with pytest.raises(SecretError, match="the operator ends"):
            await asyncio.to_thread(secrets.read, "store")
        return secrets

    secrets = asyncio.run(term())
    with pytest.raises(SecretError, match="the operator ends"):
        secrets.read("store")
