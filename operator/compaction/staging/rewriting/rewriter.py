"""The runner of MetarangeRewrite jobs: opens the repository that a job names, and makes one attempt."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from compaction.api.job.report import JobReport
from compaction.api.policy.staging_area import LakeFsMergeSpec
from compaction.staging.connecting import connection_of
from compaction.staging.errors import StagingStoreError
from compaction.staging.lakefs.repository import open_live_repository
from compaction.staging.reasons import StagingReason
from compaction.staging.rewriting.attempt import MetarangeAttempt
from compaction.staging.rewriting.job import MetarangeJob
from compaction.staging.rewriting.lakefs import TokenMergeAttempt
from compaction.staging.rewriting.report import RewriteFailure, failed
from compaction.staging.store import StagingConnection, StagingStore
from compaction.storage.database.engine import DEFAULT_PATIENCE
from compaction.storage.errors import StorageError
from compaction.storage.secrets import Secrets
from compaction.storage.unreachable import explaining
from compaction.worker.engine import Engine
from compaction.worker.place import objects_place
from compaction.worker.ports import Assignment, HeldLease, JobRunner


class MetarangeRewriter:
    """Implements `ports.JobRunner` for staging areas.

    Args:
        engine: runs the tasks that write ranges.
        holder: name of this worker, as it appears in receipts.
        secrets: those of the policy's namespace.
        clock: seconds since 1970.
        patience: seconds for which a call of the key-value store is repeated while the database is away.
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
        job = MetarangeJob.of(assignment.spec, name=assignment.job_name)
        if job.lakefs is not None and job.lakefs.dry_run:
            message = f"job {job.name}: parameters.metarange.lakefs.dryRun is true, so nothing is merged"
            return failed(RewriteFailure(StagingReason.DRY_RUN, message), token=assignment.token)
        try:
            connection = connection_of(job.store, self._secrets)
            if job.lakefs is not None:
                return self._merge(job, job.lakefs, connection, assignment, lease)
            with closing(StagingStore.open(connection, clock=self._clock, patience=self._patience)) as store:
                return self._attempt(job, connection, store, assignment, lease)
        except (StagingStoreError, StorageError) as error:
            return failed(RewriteFailure.of(error), token=assignment.token)

    def _attempt(
        self,
        job: MetarangeJob,
        connection: StagingConnection,
        store: StagingStore,
        assignment: Assignment,
        lease: HeldLease,
    ) -> JobReport:
        with explaining(connection.address()):
            area = replace(store.area(job.work.repository), clock=self._clock)
        namespace = area.repository.namespace
        place = objects_place(namespace, job.store.credentials_secret_name, self._secrets, job.store.ca_bundle)
        return MetarangeAttempt(
            job=job,
            token=assignment.token,
            area=area,
            place=place,
            worker=self._holder,
            lease=lease,
            engine=self._engine,
        ).run()

    def _merge(
        self,
        job: MetarangeJob,
        lakefs: LakeFsMergeSpec,
        connection: StagingConnection,
        assignment: Assignment,
        lease: HeldLease,
    ) -> JobReport:
        with closing(connection.open_kv(patience=self._patience)) as kv:
            with explaining(connection.address()):
                live = open_live_repository(kv, job.work.repository, options=connection.options, clock=self._clock)
            return TokenMergeAttempt(
                job=job,
                lakefs=lakefs,
                live=live,
                token=assignment.token,
                worker=self._holder,
                lease=lease,
                engine=self._engine,
            ).run()


def open_rewriter(engine: Engine, *, holder: str, secrets: Secrets) -> JobRunner:
    """See `ports.OpenRewriter`."""
    return MetarangeRewriter(engine, holder=holder, secrets=secrets)
