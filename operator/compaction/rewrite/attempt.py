"""One attempt at one job of a segment log, from beginning to report: what every kind of rewrite does alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final

from compaction.exceptions import SegmentLogError
from compaction.rewrite.engine import Engine
from compaction.rewrite.ports import HeldLease
from compaction.rewrite.receipts import JobReport
from compaction.rewrite.segment_job import SegmentJob
from compaction.rewrite.task import GroupFailure, failure_of
from compaction.stores.segments.store import SegmentLogStore

LOOK_SECONDS: Final = 0.25
"""How often a running job looks whether it must stop."""


@dataclass(slots=True, kw_only=True)
class Attempt(ABC):
    """Who works on what, and what went wrong. `bytes_per_second`: what all of the job's tasks may move together.

    `identities`: see `segment_report.identities_of`.
    """

    job: SegmentJob
    token: int
    store: SegmentLogStore
    lease: HeldLease
    engine: Engine
    bytes_per_second: int | None = None
    failures: list[GroupFailure] = field(default_factory=list)
    identities: dict[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """Names this attempt's tasks in the engine."""
        return f"{self.job.name}.{self.token}"

    def run(self) -> JobReport:
        """Do what can be done and say what was.

        Raises:
            LeaseLostError, JobStoppedError, EngineLostError: see `ports.JobRunner`.
        """
        try:
            self._work()
        except SegmentLogError as error:
            self.failures.append(failure_of(error, self.job.all_sources))
        finally:
            self._remove_partials()
        return self._report()

    @abstractmethod
    def _work(self) -> None:
        """Everything up to the last commit; a SegmentLogError ends it and is reported."""

    @abstractmethod
    def _remove_partials(self) -> None:
        """Remove this attempt's partial files, however it ended."""

    @abstractmethod
    def _report(self) -> JobReport:
        """What was done, and the worst of what went wrong."""
