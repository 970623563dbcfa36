"""`compactor blocks serve` as a process: it starts, serves, is killed in the middle of registrations, and ends."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.serving.server import IngestServer
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.cli.main import main
from compaction.storage.secrets import write_secrets
from support.blocks.block_stores import check, content, upload
from support.endpoints import SECRET, Endpoint, serving_process


def process(secret: Path, log: Path, *place: str, **environment: str) -> AbstractContextManager[tuple[int, Endpoint]]:
    """The command, started; its process id, and a client."""
    return serving_process(["blocks", "serve", *place], IngestServer, secret=secret, log=log, environment=environment)


def variables(store: BlockStoreConnection, directory: Path) -> dict[str, str]:
    """How the command is told of a store by its environment."""
    file = directory / "options.json"
    file.write_text(json.dumps(dict(store.options)))
    known = {"COMPACTION_STORE_URL": store.url, "COMPACTION_INDEX_URL": store.index_url}
    return known | ({"COMPACTION_STORE_OPTIONS_FILE": str(file)} if store.options else {})


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    return file


def test_as_a_pod_it_serves_the_store_of_a_policy_and_ends_when_it_is_told_to(
    connection: BlockStoreConnection, block_store: BlockStore, secret: Path, tmp_path: Path
) -> None:
    """As manifests/components/block-ingest starts it: with a policy, and Secrets that are mounted."""
    store: dict[str, Any] = {"url": connection.url, "index": {"secretName": "lake-index"}}
    values: dict[str, dict[str, str]] = {"lake-index": {"url": connection.index_url}}
    if connection.options:
        store["credentialsSecretName"] = "lake-credentials"
        values["lake-credentials"] = dict(connection.options)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    write_secrets(mounted, values)
    policy, log = tmp_path / "policy.yaml", tmp_path / "log"
    kind = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CompactionPolicy", "metadata": {"name": "lake"}}
    policy.write_text(json.dumps(kind | {"spec": {"store": {"blockStore": store}}}))
    with process(secret, log, f"--file={policy}", f"--secrets-dir={mounted}") as (pid, endpoint):
        assert endpoint.call("GET", "/readyz").status == 200
        block = {"path": upload(block_store, 1), "tenant": "acme", "shard": 0}
        assert endpoint.register(block).outcomes() == [("Registered", None)]
        assert endpoint.list().body["blocks"][0]["path"] == block["path"]
        assert endpoint.list(token="wrong").status == 401
        os.kill(pid, signal.SIGTERM)
    assert len(block_store.live().blocks) == 1
    said = log.read_text()
    assert '"principal": "secret:writer"' in said
    assert "Traceback" not in said
    secrets = [SECRET, *connection.options.values()] if connection.options else [SECRET]
    assert [item for item in secrets if len(item) > 8 and item in said and "http" not in item] == []


def test_killed_in_the_middle_nothing_is_half_registered(
    connection: BlockStoreConnection, block_store: BlockStore, secret: Path, tmp_path: Path
) -> None:
    """Each request is all or nothing, whenever the server dies; after the same requests again every block is there
    once, and what was uploaded and never registered is an orphan. The environment names the store.
    """
    groups = [[upload(block_store, 10 * group + part) for part in range(3)] for group in range(8)]
    never = upload(block_store, 999)
    answered: list[int] = []
    with process(secret, tmp_path / "first", **variables(connection, tmp_path)) as (pid, endpoint):

        def write() -> None:
            for number, paths in enumerate(groups):
                blocks = [{"path": path, "tenant": "acme", "shard": 0} for path in paths]
                try:
                    assert endpoint.register(*blocks).status == 200
                except (OSError, EOFError):
                    return
                answered.append(number)
                if number == 3:
                    half.set()

        half = threading.Event()
        writer = threading.Thread(target=write)
        writer.start()
        half.wait()
        os.kill(pid, signal.SIGKILL)
        writer.join()
    live = {block.path for block in block_store.live().blocks}
    assert all(live.issuperset(groups[number]) for number in answered)
    assert all(live.isdisjoint(paths) or live.issuperset(paths) for paths in groups)
    with process(secret, tmp_path / "second", **variables(connection, tmp_path)) as (_, endpoint):
        for paths in groups:
            assert endpoint.register(*({"path": path, "tenant": "acme", "shard": 0} for path in paths)).status == 200
    assert len(content(block_store)) == 2400
    check(block_store.index)
    assert never not in {block.path for block in block_store.live().blocks}


GIVEN = ["--secret-file", "writer=SECRET"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give --secret-file or --allow-service-account"),
        (["--secret-file", "no-equals-sign"], "write NAME=FILE"),
        (["--secret-file", "writer=/no/such/file"], "No such file"),
        (["--allow-service-account", "nonsense"], "NAMESPACE/NAME"),
        ([*GIVEN, "--bind-address", "0.0.0.0"], "bearer tokens would travel readably"),
        ([*GIVEN, "--tls-cert", "x"], "go together"),
        ([*GIVEN, "--max-body", "1Ti"], "64Mi"),
        ([*GIVEN, "--tenants", "/no/such/file"], "cannot be read as YAML"),
    ],
)
def test_what_cannot_be_started_says_why(
    tmp_path: Path, secret: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    given = [option.replace("SECRET", str(secret)) for option in options]
    assert main(["blocks", "serve", f"--store={tmp_path}/store", *given]) in {1, 2}
    shown = capsys.readouterr().err
    assert said in shown
    assert "no-equals-sign" not in shown
    assert not (tmp_path / "store").exists()
