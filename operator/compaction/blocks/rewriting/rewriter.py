"""The runner of BlockRewrite jobs: opens the store that a job names, and makes one attempt."""

from __future__ import annotations

import time
from collections.abc import Callable

from compaction.api.job.report import JobReport
from compaction.blocks.connecting import connection_of
from compaction.blocks.errors import BlockStoreError
from compaction.blocks.rewriting.attempt import BlockAttempt
from compaction.blocks.rewriting.job import BlockJob
from compaction.blocks.rewriting.report import failed
from compaction.blocks.rewriting.task import failure_of
from compaction.blocks.store import BlockStore
from compaction.storage.database.engine import DEFAULT_PATIENCE
from compaction.storage.errors import StorageError
from compaction.storage.secrets import Secrets
from compaction.storage.unreachable import explaining
from compaction.worker.engine import Engine
from compaction.worker.place import objects_place
from compaction.worker.ports import Assignment, HeldLease, JobRunner


class BlockRewriter:
    """Implements `ports.JobRunner` for block stores.

    Args:
        engine: runs the merging tasks.
        holder: name of this worker, as it appears in receipts.
        secrets: those of the policy's namespace.
        clock: epoch seconds.
        patience: seconds for which a call of the index is repeated while the database is away.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        holder: str,
        secrets: Secrets,
        clock: Callable[[], float] = time.time,
        patience: float = DEFAULT_PATIENCE,
    ) -> None:
        self._engine = engine
        self._holder = holder
        self._secrets = secrets
        self._clock = clock
        self._patience = patience

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """See `ports.JobRunner`. InvalidAssignmentError when the spec makes no sense."""
        job = BlockJob.of(assignment.spec, name=assignment.job_name)
        return self.attempt(job, token=assignment.token, lease=lease)

    def attempt(self, job: BlockJob, *, token: int, lease: HeldLease) -> JobReport:
        """One attempt at a job. Raises as `ports.JobRunner`."""
        try:
            place = objects_place(job.store.url, job.store.credentials_secret_name, self._secrets, job.store.ca_bundle)
            connection = connection_of(job.store, self._secrets)
            with explaining(connection.address):
                store = BlockStore.open(connection, clock=self._clock, patience=self._patience)
        except (BlockStoreError, StorageError) as error:
            return failed([failure_of(error, job.name)], (), token=token)
        try:
            return BlockAttempt(
                job=job,
                token=token,
                store=store,
                place=place,
                worker=self._holder,
                lease=lease,
                engine=self._engine,
            ).run()
        finally:
            store.close()


def open_rewriter(engine: Engine, *, holder: str, secrets: Secrets) -> JobRunner:
    """See `ports.OpenRewriter`."""
    return BlockRewriter(engine, holder=holder, secrets=secrets)
