"""Finding the API server: order, credentials that rotate, errors that name the file."""

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import kube_config

from compaction.kube.client.config import TokenProvider, from_kubeconfig, in_cluster, load_connection
from compaction.kube.errors import ConnectionConfigError
from compaction.local.cluster.certs import ensure_authority


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
