"""A repository on S3 and PostgreSQL, from a policy with Secrets to a receipt: writers go on, and no Secret is shown."""

from __future__ import annotations

from contextlib import closing

import pytest

from compaction.staging.flows.reading import Reader
from compaction.staging.flows.writing import Writer
from compaction.staging.store import StagingConnection, StagingStore
from support.cluster.by_kubectl import Cluster
from support.cluster.staging_manifests import staging_area, staging_policy_object
from support.cluster.told import objects_of, write_secret
from support.processes.operators import ACCOUNT, OperatorFleet
from support.stores.s3 import S3
from support.stores.staging_repos import framed, text_of
from support.time.waiting import eventually
from tools.servers.postgres import PostgresServer

pytestmark = [pytest.mark.apiserver, pytest.mark.spark]

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

        eventually(done, "the branch to be compacted", pause=0.2, timeout=240.0)
        (job,) = [job for job in cluster.jobs() if job.get("status", {}).get("state") == "Succeeded"]
        receipt = job["status"]["receipt"]
        assert receipt["fingerprintBefore"] == receipt["fingerprintAfter"]
        assert receipt["records"] >= len(shown) - written
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
