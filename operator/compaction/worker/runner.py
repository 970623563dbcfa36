"""Who runs a job: the worker's side of a kind, found by the type of the job."""

from __future__ import annotations

from compaction.api.job.report import JobReport
from compaction.registry import kind_of_job
from compaction.storage.secrets import Secrets
from compaction.worker.engine import Engine
from compaction.worker.ports import Assignment, HeldLease, JobRunner, OpenRewriter


class RunnerOfAllKinds:
    """Implements `ports.JobRunner` by handing each job to the runner of its type, which is loaded with its first job.

    Args:
        engine: runs the tasks.
        holder: name of this worker, as it appears in receipts and locks.
        secrets: those of the policy's namespace.
    """

    def __init__(self, engine: Engine, *, holder: str, secrets: Secrets) -> None:
        self._engine = engine
        self._holder = holder
        self._secrets = secrets

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """See `ports.JobRunner`."""
        return self._runner(assignment.spec.kind).run(assignment, lease)

    def _runner(self, job_type: str) -> JobRunner:
        opened: OpenRewriter = kind_of_job(job_type).doors.rewriters[job_type].open()
        return opened(self._engine, holder=self._holder, secrets=self._secrets)
