"""Who runs a job: the one place where kinds of jobs and their rewrites meet."""

from __future__ import annotations

from compaction.api.enums import JobKind
from compaction.rewrite.engine import Engine
from compaction.rewrite.ports import Assignment, HeldLease, JobRunner
from compaction.rewrite.receipts import JobReport
from compaction.rewrite.segments.rewriter import SegmentRewriter
from compaction.stores.secrets import Secrets


class RunnerOfAllKinds:
    """Implements `ports.JobRunner` by handing each job to the runner of its kind.

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

    def _runner(self, kind: JobKind) -> JobRunner:
        match kind:
            case JobKind.SEGMENT_REWRITE:
                return SegmentRewriter(self._engine, holder=self._holder)
            case JobKind.BLOCK_REWRITE:
                # Arrow, object stores and databases: a second that workers of segment logs need not wait.
                from compaction.rewrite.blocks.rewriter import BlockRewriter

                return BlockRewriter(self._engine, holder=self._holder, secrets=self._secrets)
