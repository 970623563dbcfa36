"""The jobs of others in the block store of a policy, for `compactor run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from compaction.api.policy.resource import CompactionPolicy
from compaction.blocks.cli.open_jobs import OpenJobs
from compaction.blocks.connecting import connection_of
from compaction.blocks.store import BlockStore
from compaction.cli.places import PATIENCE
from compaction.storage.processes import ThisProcess
from compaction.storage.secrets import Secrets
from compaction.storage.unreachable import explaining


@contextmanager
def open_jobs_of(policy: CompactionPolicy, secrets: Secrets, *, here: ThisProcess, taking: bool) -> Iterator[OpenJobs]:
    """See `cli.local.tables.OpenOthers`. Raises BlockStoreError, SecretError."""
    store = policy.spec.store.block_store
    assert store is not None, "the kind is chosen by this member"
    connection = connection_of(store.reference, secrets)
    with explaining(connection.address), closing(BlockStore.open(connection, patience=PATIENCE)) as blocks:
        yield OpenJobs(blocks, here, taking)
