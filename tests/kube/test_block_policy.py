"""A policy of a block store on a real API server, with its Secrets there, on both stacks: SQLite and a folder,
PostgreSQL and S3. Workers speak the lease protocol and merge without Spark.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from compaction.api.job.job import JobReceipt
from compaction.api.names import ANNOTATION_USED_BY
from compaction.blocks.kind import BLOCKS
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.kube.client.api import COMPACTION_JOBS
from compaction.kube.client.config import ApiConnection
from compaction.kube.client.transport import SECRETS
from kube.own_coordinator import Bench, bench
from support.blocks.block_stores import content, empty_postgres, fill, fill_units
from support.blocks.blocks import reference_of, secrets_of
from support.programs import needs

pytestmark = pytest.mark.apiserver

LEVELS = [{"maxBlocks": 3, "maxAge": "1h"}, {"maxBlocks": 2, "maxAge": "1h"}]
Test = Callable[[Bench, BlockStore], Awaitable[None]]


@pytest.fixture(params=["folder", pytest.param("s3", marks=needs("versitygw"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> BlockStoreConnection:
    """How to reach an empty store of the test's own."""
    if request.param == "folder":
        return BlockStoreConnection(f"file://{tmp_path}/objects", f"sqlite:///{tmp_path}/index.db")
    server, postgres = request.getfixturevalue("s3"), request.getfixturevalue("postgres")
    name = request.getfixturevalue("postgres_index")
    empty_postgres(postgres, name)
    return BlockStoreConnection(f"{server.bucket()}/blocks", postgres.url(name), server.gateway.options())


@pytest.fixture
def on_bench(
    connection: ApiConnection, namespace: str, tmp_path: Path, place: BlockStoreConnection
) -> Callable[[Test], None]:
    async def main(test: Test) -> None:
        store = await asyncio.to_thread(BlockStore.open, place)
        try:
            async with bench(connection, namespace, tmp_path) as made:
                made.launcher.secrets = secrets_of(place)
                await test(made, store)
            await asyncio.sleep(0.1)  # connections cut off in the middle of a request close themselves
        finally:
            store.close()

    return lambda test: asyncio.run(main(test))


async def put_secrets(b: Bench, place: BlockStoreConnection) -> None:
    values = {"index": {"url": place.index_url}, "credentials": dict(place.options)}
    for name, keys in values.items():
        data = {key: base64.b64encode(value.encode()).decode() for key, value in keys.items()}
        metadata = {"name": name, "namespace": b.namespace, "annotations": {ANNOTATION_USED_BY: "CompactionPolicy/*"}}
        await b.client.create(SECRETS, {"metadata": metadata, "data": data})


def store_of(place: BlockStoreConnection, **more: Any) -> dict[str, Any]:
    reference = reference_of(place).to_object()
    return {"store": {"blockStore": reference | {"levels": LEVELS, "span": "1000h"} | more}}


def test_from_blocks_to_receipts(on_bench: Callable[[Test], None], place: BlockStoreConnection) -> None:
    async def test(b: Bench, store: BlockStore) -> None:
        await put_secrets(b, place)
        await asyncio.to_thread(fill, store, range(1, 7))
        before = await asyncio.to_thread(content, store)
        await b.apply(**store_of(place))

        async def merged() -> Any:
            jobs = await b.jobs()
            done = [job for job in jobs if job["status"].get("state") == "Succeeded"]
            return jobs if len(done) == len(jobs) == 3 else None

        jobs = await b.until("two merges, and one of what they made", merged)
        status = await b.settled()
        assert await asyncio.to_thread(content, store) == before
        assert [block.level for block in (await asyncio.to_thread(store.live)).blocks] == [2]
        assert sorted(job["spec"]["level"] for job in jobs) == [0, 0, 1]
        receipts = [JobReceipt.from_object(job["status"]["receipt"]) for job in jobs]
        assert all(BLOCKS.proves_equal(receipt) and receipt.fingerprint_after for receipt in receipts)
        assert (status["debt"]["sources"], status["debt"]["bytes"]) == (0, 0)
        measures = {item["name"]: item["value"] for item in status["debt"]["measures"]}
        assert (measures["liveBlocks"], measures["readAmplification"]) == (1, 1.0)
        text = generate_latest(b.metrics.registry).decode()
        assert 'compaction_blocks{namespace="' in text
        assert "compaction_read_amplification{" in text
        told = json.dumps([await b.policy(), *jobs])
        assert place.index_url not in told, "names of Secrets only"
        assert not [value for key, value in place.options.items() if "secret" in key and value in told]
        writes = [c for c in b.calls if c.verb in ("create", "update", "patch", "delete") and c.resource != "events"]
        assert len([c for c in writes if c.resource in ("compactionjobs", "leases")]) <= 8 * len(jobs)

    on_bench(test)


def test_blocks_of_three_units_of_time_are_three_jobs(
    on_bench: Callable[[Test], None], place: BlockStoreConnection
) -> None:
    """They cannot be merged with one another: no job fails, none is of one block, and the status says what differs."""

    async def test(b: Bench, store: BlockStore) -> None:
        await put_secrets(b, place)
        await asyncio.to_thread(fill_units, store, range(18))
        await b.apply(**store_of(place, levels=[{"maxBlocks": 6, "maxAge": "1h"}, {"maxBlocks": 2, "maxAge": "1h"}]))

        async def merged() -> Any:
            jobs = await b.jobs()
            return jobs if [job["status"].get("state") for job in jobs] == ["Succeeded"] * 3 else None

        jobs = await b.until("a merge of each unit", merged)
        status = await b.settled()
        assert [len(job["spec"]["sources"]["blocks"]["blocks"]) for job in jobs] == [6] * 3
        assert [block.level for block in (await asyncio.to_thread(store.live)).blocks] == [1] * 3
        (conflict,) = status["conflicts"]
        kinds = " | ".join(f"timestamp[{unit}, tz=UTC]" for unit in ("ms", "ns", "us"))
        assert conflict["message"] == f"3 schemas of `acme` cannot be merged: column time {kinds}"
        assert (conflict["classes"], conflict["sources"]) == (3, 3)
        (row,) = status["plan"]["leftOut"]
        assert (row["reason"], row["count"], row["missing"]) == ("WaitingForMore", 3, 1)
        assert row["dueAt"]

    on_bench(test)


def test_a_commit_whose_report_was_lost_is_told_by_the_next_attempt(
    on_bench: Callable[[Test], None], place: BlockStoreConnection
) -> None:
    async def test(b: Bench, store: BlockStore) -> None:
        await put_secrets(b, place)
        await asyncio.to_thread(fill, store, range(1, 4))
        lost: list[str] = []

        async def die_once(worker: str, job: str) -> None:
            if not lost:
                lost.append(job)
                b.launcher.kill(worker, unnoticed=False)
                await asyncio.sleep(60)

        b.launcher.before_report = die_once
        await b.apply(**store_of(place))
        (job,) = await b.all_in("Succeeded")
        assert [job["metadata"]["name"]] == lost
        first, second = job["status"]["attempts"]
        assert (first["outcome"], second["outcome"]) == ("Lost", "Succeeded")
        assert job["status"]["receipt"]["token"] == first["token"], "it was committed then, and only then"
        assert [block.level for block in (await asyncio.to_thread(store.live)).blocks] == [1]

    on_bench(test)


def test_a_secret_that_is_missing_is_named_and_found_when_it_is_there(
    on_bench: Callable[[Test], None], place: BlockStoreConnection
) -> None:
    async def test(b: Bench, store: BlockStore) -> None:
        await asyncio.to_thread(fill, store, range(1, 4))
        await b.apply(**store_of(place))

        async def stalled() -> Any:
            condition = await b.condition("Stalled")
            return condition if condition is not None and condition["reason"] == "SecretMissing" else None

        condition = await b.until("a policy that says what is missing", stalled)
        assert "index" in condition["message"] or "credentials" in condition["message"]
        await put_secrets(b, place)
        await b.all_in("Succeeded")
        await b.settled()

    on_bench(test)


def test_a_job_for_another_store_is_refused(on_bench: Callable[[Test], None], place: BlockStoreConnection) -> None:
    async def test(b: Bench, store: BlockStore) -> None:
        await put_secrets(b, place)
        names = await asyncio.to_thread(fill, store, range(1, 3))
        await b.apply(**store_of(place))
        other = reference_of(place).to_object() | {"index": {"secretName": "somebody-elses"}}
        batch = {"tenant": "acme", "shard": 0, "batch": f"acme/0/L0/{names[0]}", "blocks": sorted(names)}
        spec = {"policyRef": {"name": "logs"}, "kind": "BlockRewrite", "sources": {"blocks": {"store": other} | batch}}
        metadata = {"name": "mine", "namespace": b.namespace, "labels": {"compaction.dev/policy": "logs"}}
        await b.client.create(COMPACTION_JOBS, {"metadata": metadata, "spec": spec})
        (job,) = await b.all_in("Faulty")
        failed = next(item for item in job["status"]["conditions"] if item["type"] == "Failed")
        assert failed["reason"] == "OtherStore"
        assert await asyncio.to_thread(store.job, "mine") is None, "nothing was claimed"

    on_bench(test)
