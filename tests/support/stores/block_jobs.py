"""Jobs of block stores for tests: claimed and run as a worker runs them, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from compaction.api.job.job_status import JobReport
from compaction.api.policy.block_store import BlockStoreReference, IndexReference
from compaction.blocks.index.tombstones import unknown_paths
from compaction.blocks.model import parse_block_path
from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.rewriting.rewriter import BlockRewriter
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep import orphan_collector
from compaction.blocks.sweep.cleaning import sweep
from compaction.storage.secrets import GivenSecrets
from compaction.worker.ports import Engine, HeldLease
from support.processes.worker_ports import FakeLease

JOB = "job-1"
MEBIBYTE = 1 << 20


def secrets_of(connection: BlockStoreConnection) -> GivenSecrets:
    """The Secrets of the policy in whose jobs the store is named."""
    values = {"index": {"url": connection.index_url}, "credentials": dict(connection.options)}
    return GivenSecrets(values, "the test")


def reference_of(connection: BlockStoreConnection) -> BlockStoreReference:
    return BlockStoreReference(
        url=connection.url,
        credentials_secret_name="credentials" if connection.options else None,
        index=IndexReference(secret_name="index"),
    )


def job_of(connection: BlockStoreConnection, ids: Sequence[str], **changes: Any) -> BlockJob:
    """A job that makes blocks of level 1 for tenant acme, shard 0."""
    values: dict[str, Any] = {"name": JOB, "level": 1, "memory_bytes": 64 * MEBIBYTE, "tenant": "acme", "shard": 0}
    return BlockJob(store=reference_of(connection), blocks=tuple(sorted(ids)), **values | changes)


def claim(store: BlockStore, job: BlockJob, token: int) -> None:
    store.claim(job=job.name, token=token, sources=job.blocks, output_level=job.level)


def run(
    connection: BlockStoreConnection,
    job: BlockJob,
    engine: Engine,
    *,
    token: int = 1,
    lease: HeldLease | None = None,
    patience: float = 5.0,
    bytes_per_second: int | None = None,
) -> JobReport:
    """One attempt, as a worker makes it."""
    rewriter = BlockRewriter(engine, holder=f"worker-{token}", secrets=secrets_of(connection), patience=patience)
    lease = lease or FakeLease(token=token, bytes_per_second=bytes_per_second)
    return rewriter.attempt(job, token=token, lease=lease)


def paths(store: BlockStore) -> set[str]:
    """All objects of the store that could be blocks."""
    return {info.path for info in store.objects.list() if parse_block_path(info.path) is not None}


def orphans(store: BlockStore) -> tuple[str, ...]:
    """Objects that no block refers to."""
    return unknown_paths(store.index, sorted(paths(store)))


def clean(store: BlockStore) -> None:
    """What the coordinator does in time: a month later, by everybody's clock, it sweeps and collects."""
    month = timedelta(days=30)
    now = store.now() + int(month.total_seconds()) * 1_000_000
    assert sweep(store.objects, store.index, now=now, grace=0).failed == {}
    with patch.object(orphan_collector, "_store_now", lambda objects: datetime.now(UTC) + month):
        assert orphan_collector.collect_orphans(store.objects, store.index, now=now).failed == {}


def assert_tidy(store: BlockStore) -> None:
    """After cleaning, the objects are those of the live blocks, no more and no fewer."""
    clean(store)
    assert paths(store) == {block.path for block in store.live().blocks}
