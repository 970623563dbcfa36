"""One attempt at one job, from beginning to report: what every kind of rewrite does alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from compaction.api.job.report import JobReport
from compaction.errors import CompactionError
from compaction.worker.budget import BudgetClient, budget_of
from compaction.worker.engine import Engine
from compaction.worker.ports import HeldLease


@dataclass(slots=True, kw_only=True)
class RewriteAttempt(ABC):
    """Who works, and with what. `lease` says what the job adds to what all that runs in its worker may move together;
    `budget`: what its tasks ask for it while the attempt works, None without a limit.
    """

    reported: ClassVar[tuple[type[CompactionError], ...]]
    """What data and storage can cause; it ends the work and becomes a part of the report."""

    token: int
    lease: HeldLease
    engine: Engine
    budget: BudgetClient | None = field(default=None, init=False)

    @property
    def tag(self) -> str:
        """Names this attempt, and its tasks in the engine."""
        return f"{self.job_name}.{self.token}"

    def run(self) -> JobReport:
        """Do what can be done and say what was.

        Raises:
            LeaseLostError, JobStoppedError, EngineLostError: see `ports.JobRunner`.
        """
        try:
            with budget_of(self.engine).joined(lambda: self.lease.bytes_per_second) as self.budget:
                self._work()
        except self.reported as error:
            self._failed(error)
        finally:
            self._clean_up()
        return self._report()

    @property
    @abstractmethod
    def job_name(self) -> str:
        """Name of the job."""

    @abstractmethod
    def _work(self) -> None:
        """Everything up to the last commit; an error of the kind `reported` ends it."""

    @abstractmethod
    def _failed(self, error: CompactionError) -> None:
        """Note such an error for the report."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Remove what only this attempt has and leaves behind, however it ended."""

    @abstractmethod
    def _report(self) -> JobReport:
        """What was done, and the worst of what went wrong."""
