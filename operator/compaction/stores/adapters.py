"""From a policy's spec to the adapter of its store."""

from __future__ import annotations

import time
from collections.abc import Callable

from compaction.api.policy import CompactionPolicySpec
from compaction.stores.adapter import StoreAdapter
from compaction.stores.block_adapter import BlockStoreAdapter
from compaction.stores.blocks.holders import ThisProcess
from compaction.stores.secrets import NO_SECRETS, Secrets
from compaction.stores.segment_adapter import SegmentLogsAdapter


def open_store(
    spec: CompactionPolicySpec,
    *,
    holder: str,
    secrets: Secrets = NO_SECRETS,
    here: ThisProcess | None = None,
    lock_timeout: float = 2.0,
    clock: Callable[[], float] = time.monotonic,
) -> StoreAdapter:
    """The adapter for a policy's store. Keep it while the spec stays: it remembers what did not change.

    `secrets`: those of the policy's namespace. `here`: the process that claims blocks where no cluster does. Nothing is
    read: opening never blocks.
    """
    if spec.store.block_store is not None:
        return BlockStoreAdapter(
            spec.store.block_store,
            grace=float(spec.cleanup.delay),
            max_bytes_per_job=int(spec.limits.max_bytes_per_job),
            max_jobs_queued=spec.limits.max_jobs_queued,
            secrets=secrets,
            here=here,
            clock=clock,
        )
    assert spec.store.segment_logs is not None, "exactly one member of the union is set"
    return SegmentLogsAdapter(
        spec.store.segment_logs, grace=float(spec.cleanup.delay), holder=holder, lock_timeout=lock_timeout, clock=clock
    )
