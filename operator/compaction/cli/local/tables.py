"""What `compactor run` asks of a kind: the tables of a plan and of its receipts, and the jobs of others.

A module of the kind's own room implements each Protocol; the doors `Doors.tables` and `Doors.open_jobs` lead there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from compaction.api.policy.resource import CompactionPolicy
from compaction.cli.output import Column
from compaction.core.planning.planner import LeftOut, Plan, PlannedJob
from compaction.core.planning.reading import HeldJob, ScanResult
from compaction.local.run.job import LocalJob, RunResult
from compaction.storage.processes import ThisProcess
from compaction.storage.secrets import Secrets

Data = dict[str, Any]


class RunTables(Protocol):
    """Data first, with exact values, then tables from the data."""

    PLANNED: Sequence[Column]
    """Columns of the jobs of a plan."""
    RECEIPTS: Sequence[Column]
    """Columns of what became of jobs."""
    QUARANTINED: Sequence[Column]
    """Columns of sources in quarantine."""

    def planned_job(self, job: PlannedJob) -> Data:
        """A job of a plan."""
        ...

    def planned_rows(self, data: Data, plan: Plan) -> Iterable[Data]:
        """The rows of the table of a plan; `data["jobs"]` are those of `planned_job`."""
        ...

    def debt_of(self, scan: ScanResult) -> Data:
        """What is behind."""
        ...

    def more_of(self, scan: ScanResult) -> Data:
        """What else a scan found that belongs into the data."""
        ...

    def left_out(self, row: LeftOut) -> Data:
        """A reason for which something got no job."""
        ...

    def rows_after(self, result: RunResult) -> Sequence[LeftOut]:
        """Why the rest got no job, at the end of a run."""
        ...

    def summary(self, data: Data, plan: Plan) -> str:
        """One line below a plan."""
        ...

    def show_rest(self, data: Data) -> None:
        """Below the jobs: what else waits, and why."""
        ...

    def receipt_row(self, job: LocalJob) -> Data:
        """What became of a job."""
        ...

    def outcome(self, data: Data, result: RunResult) -> str:
        """One line below the receipts."""
        ...

    def undone(self, result: RunResult) -> list[str]:
        """One line for each reason for which a run could do nothing at all."""
        ...


class Others(Protocol):
    """The open jobs of others in one store."""

    def __call__(self) -> Mapping[str, HeldJob]:
        """The jobs that others work on by name, each in a target of its own."""
        ...

    def parked(self) -> list[str]:
        """One line for each job that holds its sources although no process seems to work on it."""
        ...

    def tell(self, *, take_over: bool = False) -> None:
        """Say on standard error which there are; with `take_over` they are given up."""
        ...


class OpenOthers(Protocol):
    """The door `Doors.open_jobs` of a kind."""

    def __call__(
        self, policy: CompactionPolicy, secrets: Secrets, *, here: ThisProcess, taking: bool
    ) -> AbstractContextManager[Others]:
        """Those of the policy's store. `here`: this process; `taking`: jobs whose process is gone are taken over."""
        ...


class NoOthers:
    """Implements `Others` for a kind that needs none: its claims say themselves who has them."""

    def __call__(self) -> Mapping[str, HeldJob]:
        return {}

    def parked(self) -> list[str]:
        return []

    def tell(self, *, take_over: bool = False) -> None:
        """There is nothing to say."""
