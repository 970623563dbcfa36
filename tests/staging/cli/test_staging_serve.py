"""`compactor staging serve` as a process: it starts, serves, is killed in the middle of changes, and ends."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from compaction.cli.main import main
from compaction.staging.flows.reading import Reader
from compaction.staging.serving.server import StagingServer
from compaction.staging.store import StagingConnection, StagingStore
from compaction.storage.secrets import write_secrets
from support.endpoints import SECRET, Answer, Endpoint, serving_process

MAIN = "/v1/repositories/example/branches/main"


def process(secret: Path, log: Path, *place: str, **environment: str) -> AbstractContextManager[tuple[int, Endpoint]]:
    """The command, started; its process id, and a client."""
    return serving_process(["staging", "serve", *place], StagingServer, secret=secret, log=log, environment=environment)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kv.db"


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[StagingStore]:
    """With the repository `example`."""
    opened = StagingStore.open(StagingConnection(url))
    opened.create("example", f"{tmp_path}/objects", committer="tester")
    yield opened
    opened.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    return file


def change(endpoint: Endpoint, *lines: dict[str, Any]) -> Answer:
    body = b"\n".join(json.dumps(line).encode() for line in lines)
    return endpoint.call("POST", f"{MAIN}/changes", body, headers={"Content-Type": "application/x-ndjson"})


def shown(store: StagingStore) -> set[bytes]:
    return {entry.key for entry in Reader(store.area("example")).list("main").entries}


def test_it_serves_and_ends_when_it_is_told_to(store: StagingStore, url: str, secret: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with process(secret, log, COMPACTION_KV_URL=url) as (pid, endpoint):
        assert endpoint.call("GET", "/readyz").status == 200
        assert endpoint.call("PUT", f"{MAIN}/object?key=a", b'{"value": "1"}').status == 200
        assert endpoint.call("PUT", f"{MAIN}/object?key=b", b'{"value": "1"}', token="wrong").status == 401
        assert endpoint.call("POST", f"{MAIN}/commits", b'{"message": "first"}').status == 200
        os.kill(pid, signal.SIGTERM)
    said = log.read_text()
    assert '"principal": "secret:writer"' in said
    assert "Traceback" not in said
    assert SECRET not in said
    assert shown(store) == {b"a"}


def test_a_pod_is_told_of_the_store_by_a_policy_and_mounted_secrets(
    store: StagingStore, url: str, secret: Path, tmp_path: Path
) -> None:
    """As manifests/components/staging-ingest starts it."""
    area = {"repository": "example", "kv": {"secretName": "lake-kv"}, "credentialsSecretName": "lake-credentials"}
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    write_secrets(mounted, {"lake-kv": {"url": url}, "lake-credentials": {}})
    policy = tmp_path / "policy.yaml"
    kind = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CompactionPolicy", "metadata": {"name": "lake"}}
    policy.write_text(json.dumps(kind | {"spec": {"store": {"stagingArea": area}}}))
    with process(secret, tmp_path / "log", f"--file={policy}", f"--secrets-dir={mounted}") as (_, endpoint):
        assert change(endpoint, {"op": "put", "key": "a", "value": "1"}).status == 200
    assert shown(store) == {b"a"}


def test_killed_in_the_middle_what_was_acknowledged_is_there(
    store: StagingStore, url: str, secret: Path, tmp_path: Path
) -> None:
    acknowledged: list[str] = []
    with process(secret, tmp_path / "log", COMPACTION_KV_URL=url) as (pid, endpoint):
        half = threading.Event()

        def write() -> None:
            for number in range(60):
                keys = [f"{number:02}/{part}" for part in range(10)]
                try:
                    assert change(endpoint, *({"op": "put", "key": key, "value": "1"} for key in keys)).status == 200
                except OSError:
                    return
                acknowledged.extend(keys)
                if number == 10:
                    half.set()

        writer = threading.Thread(target=write)
        writer.start()
        half.wait()
        os.kill(pid, signal.SIGKILL)
        writer.join()
    assert len(acknowledged) >= 110
    assert shown(store) >= {key.encode() for key in acknowledged}


GIVEN = ["--secret-file", "writer=SECRET"]
POLICY = "apiVersion: compaction.dev/v1alpha1\nkind: CompactionPolicy\nmetadata: {name: one}\nspec: {store: STORE}\n"
LOGS = POLICY.replace("STORE", "{segmentLogs: {root: /logs}}")
AREA = POLICY.replace("STORE", "{stagingArea: {repository: example, kv: {secretName: kv}}}")


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        ("", ["--kv", "sqlite:///KV"], "give --secret-file or --allow-service-account"),
        ("", ["--kv", "sqlite:///KV", *GIVEN], "there is no key-value store here"),
        ("", GIVEN, "which key-value store?"),
        (AREA, ["--file", "POLICY", *GIVEN, "--kv", "sqlite:///KV"], "leave out --kv"),
        (AREA, ["--file", "POLICY", *GIVEN, "--option", "region=x"], "leave out --option"),
        (AREA, ["--file", "POLICY", *GIVEN], 'Secret "kv" not found'),
        (LOGS, ["--file", "POLICY", *GIVEN], "is not one of a staging area"),
    ],
)
def test_what_cannot_be_started_says_why(
    tmp_path: Path,
    secret: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.delenv("COMPACTION_KV_URL", raising=False)
    file = tmp_path / "policy.yaml"
    file.write_text(policy)
    names = {"SECRET": str(secret), "POLICY": str(file), "KV": str(tmp_path / "kv.db")}
    given = [option if option.startswith("--") else _named(option, names) for option in options]
    assert main(["staging", "serve", *given]) in {1, 2}
    assert said in capsys.readouterr().err
    assert not (tmp_path / "kv.db").exists()


def _named(option: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        option = option.replace(name, value)
    return option
