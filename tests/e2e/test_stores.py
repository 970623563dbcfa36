"""A block store on S3 and PostgreSQL, from a policy with Secrets to a receipt: what is in them is told to nobody."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.staging.flows.reading import Reader
from compaction.staging.flows.writing import Writer
from compaction.staging.store import StagingConnection, StagingStore
from support.blocks.block_stores import content, empty_postgres, fill
from support.clocks import eventually
from support.cluster.by_kubectl import Cluster, files_below, objects_of, session_of, shown_by, write_secret
from support.cluster.manifests import block_policy_object, staging_area, staging_policy_object
from support.object_stores import S3
from support.processes.operators import ACCOUNT, OperatorFleet
from support.staging.staging_repos import framed, text_of
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

    eventually(done, "three blocks to become one")
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


# A repository on S3 and PostgreSQL, from a policy with Secrets to a receipt: writers go on, and no Secret is shown.

DELETED = 40


def test_a_branch_is_compacted_while_it_is_written(
    fleet: OperatorFleet, cluster: Cluster, s3: S3, postgres: PostgresServer, postgres_kv: str
) -> None:
    connection = StagingConnection(postgres.url(postgres_kv), options=s3.gateway.options())
    with closing(StagingStore.open(connection)) as store:
        area = store.create("lake", f"{s3.bucket()}/lake", committer="tester")
        writer, reader = Writer(area), Reader(area)
        shown = {f"a/{number:03}": f"{number}" for number in range(60)}
        for key, text in shown.items():
            writer.set("main", key.encode(), framed(text))
        for number in range(DELETED):
            writer.delete("main", f"a/{number:03}".encode())
            del shown[f"a/{number:03}"]
        store.counters.flush()
        cluster.allow_secrets(ACCOUNT)
        write_secret(cluster, "kv", {"url": connection.kv_url})
        write_secret(cluster, "credentials", connection.options)
        spec = staging_area(credentialsSecretName="credentials", thresholds={"tombstones": DELETED})
        workers = {"max": 1, "slots": 1, "idleSeconds": 60, "launcher": "process"}
        policy = staging_policy_object(store={"stagingArea": spec}, trigger={"interval": "2s"}, workers=workers)
        cluster.apply(policy)

        replica = fleet.start()
        written = 0

        def done() -> bool:
            nonlocal written
            key, text = f"b/{written:05}", f"{written}"
            writer.set("main", key.encode(), framed(text))
            shown[key], written = text, written + 1
            page = reader.list("main", amount=100_000)
            assert {entry.key.decode(): text_of(entry.value) for entry in page.entries} == shown
            return any(job.get("status", {}).get("state") == "Succeeded" for job in cluster.jobs())

        eventually(done, "the branch to be compacted")
        (job,) = [job for job in cluster.jobs() if job.get("status", {}).get("state") == "Succeeded"]
        receipt = job["status"]["receipt"]
        assert receipt["fingerprintBefore"] == receipt["fingerprintAfter"]
        assert receipt["records"] >= len(shown) - written
        used = receipt["usage"]
        assert min(used[name] for name in ("executorCpuSeconds", "bytesRead", "bytesWritten")) > 0
        record = area.branches.get("main").record
        assert (record.compacted_job, record.compacted_token) == (job["metadata"]["name"], receipt["token"])
        page = reader.list("main", amount=100_000)
        assert {entry.key.decode(): text_of(entry.value) for entry in page.entries} == shown

        def measured() -> bool:
            status = cluster.policy("staging").get("status", {})
            measures = {item["name"]: item["value"] for item in status.get("debt", {}).get("measures", ())}
            return bool(measures) and measures["tombstones"] == 0

        eventually(measured, "the policy to show that no tombstone is left", timeout=60.0)
        told = objects_of(cluster).encode() + replica.output.encode()
        for secret in (s3.gateway.secret_key.encode(), postgres.password.encode()):
            assert secret not in told
