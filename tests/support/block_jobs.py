"""Jobs of block stores for tests: claimed and run as a worker runs them, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compaction.api.block_store_spec import BlockStoreReference, IndexReference
from compaction.rewrite.block_job import BlockJob
from compaction.rewrite.block_rewriter import BlockRewriter
from compaction.rewrite.engine import Engine
from compaction.rewrite.ports import HeldLease
from compaction.rewrite.receipts import JobReport
from compaction.stores.blocks.identity import IDENTITY_PATH
from compaction.stores.blocks.index.orphans import condemn, confirm_gone, unknown_paths
from compaction.stores.blocks.index.tombstones import confirm, due
from compaction.stores.blocks.store import BlockStore, BlockStoreConnection
from compaction.stores.secrets import GivenSecrets
from support.worker_ports import FakeLease

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
    lease = lease or FakeLease(token=token)
    return rewriter.attempt(job, token=token, lease=lease, bytes_per_second=bytes_per_second)


def paths(store: BlockStore) -> set[str]:
    """All objects of the store that could be blocks."""
    return {info.path for info in store.objects.list()} - {IDENTITY_PATH}


def orphans(store: BlockStore) -> tuple[str, ...]:
    """Objects that no block refers to."""
    return unknown_paths(store.index, sorted(paths(store)))


def clean(store: BlockStore) -> None:
    """What the coordinator does in time: tombstones and orphans are deleted, as if every grace had passed."""
    buried = due(store.index, now=store.now(), grace=0)
    assert store.objects.delete(one.path for one in buried) == []
    confirm(store.index, [one.block for one in buried], now=store.now())
    doomed = condemn(store.index, orphans(store), now=store.now())
    assert store.objects.delete(doomed) == []
    confirm_gone(store.index, doomed, now=store.now())


def assert_tidy(store: BlockStore) -> None:
    """After cleaning, the objects are those of the live blocks, no more and no fewer."""
    clean(store)
    assert paths(store) == {block.path for block in store.live().blocks}
