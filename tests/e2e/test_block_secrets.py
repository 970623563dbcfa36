"""A block store on S3 and PostgreSQL, from a policy with Secrets to a receipt: what is in them is told to nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.store import BlockStore, BlockStoreConnection
from support.cluster.by_kubectl import Cluster
from support.cluster.manifests import block_policy_object
from support.cluster.told import files_below, objects_of, session_of, shown_by, write_secret
from support.processes.operators import ACCOUNT, OperatorFleet
from support.stores.block_index import empty_postgres
from support.stores.block_stores import content, fill
from support.stores.s3 import S3
from support.time.waiting import eventually
from tools.servers.postgres import PostgresServer

pytestmark = [pytest.mark.apiserver, pytest.mark.spark]


def test_secrets_reach_operator_and_worker_and_nothing_else(
    fleet: OperatorFleet,
    cluster: Cluster,
    s3: S3,
    postgres: PostgresServer,
    postgres_index: str,
    tmp_path: Path,
) -> None:
    values = [s3.gateway.secret_key.encode(), postgres.password.encode()]
    empty_postgres(postgres, postgres_index)
    connection = BlockStoreConnection(f"{s3.bucket()}/blocks", postgres.url(postgres_index), s3.gateway.options())
    store = BlockStore.open(connection)
    fill(store, [1, 2, 3])
    before = content(store)
    cluster.allow_secrets(ACCOUNT)
    write_secret(cluster, "credentials", connection.options)
    write_secret(cluster, "index", {"url": connection.index_url})
    cluster.apply(policy_of(connection.url, events=tmp_path / "events"))

    replica = fleet.start()
    seen: list[bytes] = []

    def done() -> bool:
        seen.extend(shown_by(session_of(fleet.worker_pid(worker.name))) for worker in fleet.running_workers())
        return any(job.get("status", {}).get("state") == "Succeeded" for job in cluster.jobs())

    eventually(done, "three blocks to become one", pause=0.2, timeout=240.0)
    assert content(store) == before
    assert [block.level for block in store.live().blocks] == [1]
    assert any(b"java" in item for item in seen), "Spark's processes were looked at"
    workers = fleet.state_dir / "workers"
    assert len(list(workers.glob("*.secrets"))) == 1, "the worker that waits for more still has its own"
    written = files_below(tmp_path / "events")
    assert b"SparkListenerEnvironmentUpdate" in written, "it has every setting of Spark"
    assert b"SparkListenerTaskEnd" in written
    records = b"".join(path.read_bytes() for path in workers.iterdir() if path.is_file())
    told = objects_of(cluster).encode() + replica.output.encode() + written + records + b"".join(seen)
    for value in values:
        assert value not in told

    cluster.kubectl("delete", "cpol", "--all")
    eventually(lambda: not fleet.running_workers(), "the worker to end")
    left = "its Secrets to go: the next look at the workers takes them away"
    eventually(lambda: not any(value in files_below(fleet.state_dir) for value in values), left)
    store.close()


def policy_of(url: str, *, events: Path) -> dict[str, Any]:
    """Three blocks are a batch; Spark writes down all that it knows of its applications."""
    events.mkdir()
    store = {"url": url, "credentialsSecretName": "credentials", "index": {"secretName": "index"}}
    levels = [{"maxBlocks": 3, "maxAge": "1h"}]
    conf = {"dir": f"file://{events}", "enabled": "true", "compress": "false"}
    return block_policy_object(
        store={"blockStore": store | {"levels": levels}},
        trigger={"interval": "2s"},
        workers={
            "max": 1,
            "slots": 1,
            "idleSeconds": 60,
            "launcher": "process",
            "sparkConf": {f"spark.eventLog.{key}": value for key, value in conf.items()},
        },
    )
