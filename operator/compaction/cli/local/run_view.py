"""The view of `compactor run`: the plan of a dry run, the receipts of a real one, tables that each kind provides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import click

from compaction.api.enums import JobReason, JobState
from compaction.api.job.job import JobReceipt
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.policy.policy_status import PolicyCost
from compaction.api.text.printing import format_cost
from compaction.cli.output import OutputColumn, OutputFormat, emit, print_table
from compaction.core.planning.debt import HeldJob, ScanResult, TargetProblem, total_debt
from compaction.core.planning.planner import LeftOut, Plan, PlannedJob
from compaction.local.run.job import LocalJob, RunResult
from compaction.local.run.once import not_approved
from compaction.registry import kind_of, kind_of_job
from compaction.storage.opened import ThisProcess
from compaction.storage.secrets import Secrets

# Requirements of `compactor run` on a kind: the tables of a plan and of its receipts, and the jobs of others.
#
# The kind's own room implements each Protocol; the doors `Doors.tables` and `Doors.open_jobs` lead there.

Data = dict[str, Any]
Columns = Sequence[OutputColumn]


class RunTables(Protocol):
    """Data first, with exact values, then tables from the data."""

    PLANNED: Columns
    """Columns of the jobs of a plan."""
    RECEIPTS: Columns
    """Columns of what became of jobs."""
    QUARANTINED: Columns
    """Columns of sources in quarantine."""

    def planned_job(self, job: PlannedJob) -> Data:
        """A job of a plan."""
        ...

    def planned_rows(self, data: Data, plan: Plan) -> Iterable[Data]:
        """The rows of the table of a plan; `data["jobs"]` are those of `planned_job`."""
        ...

    def debt_of(self, scan: ScanResult) -> Data:
        """Return what is behind."""
        ...

    def more_of(self, scan: ScanResult) -> Data:
        """Return what else a scan found that belongs into the data."""
        ...

    def left_out(self, row: LeftOut) -> Data:
        """A reason for which something got no job."""
        ...

    def rows_after(self, result: RunResult) -> Sequence[LeftOut]:
        """Return the rows that say why the rest got no job, at the end of a run."""
        ...

    def summary(self, data: Data, plan: Plan) -> str:
        """One line below a plan."""
        ...

    def show_rest(self, data: Data) -> None:
        """Below the jobs: what else waits, and why."""
        ...

    def receipt_row(self, job: LocalJob) -> Data:
        """Return the row that says what became of a job."""
        ...

    def outcome(self, data: Data, result: RunResult) -> str:
        """One line below the receipts."""
        ...

    def undone(self, result: RunResult) -> list[str]:
        """One line for each reason for which a run could do nothing at all."""
        ...


class CommonTables:
    """The part of `RunTables` that is the same for most kinds; a kind's own tables add the rest."""

    QUARANTINED: Columns = (
        OutputColumn("source", "Quarantined"),
        OutputColumn("reason", "Reason"),
        OutputColumn("message", "Message"),
    )
    LEFT_OUT: Columns = (
        OutputColumn("reason", "Left out"),
        OutputColumn("count", "Count", right=True),
        OutputColumn("example", "For example"),
    )
    """Columns of the reasons for which something got no job."""
    COUNTS: tuple[str, str]
    """Names of the numbers of sources and of outputs in the row of a job."""
    UNVERIFIED: str | None = None
    """Value of `verified` in the row of a job without a receipt."""

    def planned_rows(self, data: Data, plan: Plan) -> Iterable[Data]:
        """One row per job."""
        jobs: list[Data] = data["jobs"]
        return jobs

    def debt_of(self, scan: ScanResult) -> Data:
        """Return the debt of all candidates: the bytes and sources that compaction is behind."""
        debt = total_debt(scan.candidates)
        return {"bytes": debt.bytes, "sources": debt.sources, "targets": debt.targets}

    def more_of(self, scan: ScanResult) -> Data:
        """Nothing more."""
        return {}

    def left_out(self, row: LeftOut) -> Data:
        """A reason, the number of those that got no job for it, and one of them."""
        return {"reason": str(row.reason), "count": row.count, "example": row.example}

    def rows_after(self, result: RunResult) -> Sequence[LeftOut]:
        """As of the newest plan."""
        return result.left_out

    def show_rest(self, data: Data) -> None:
        """Below the jobs: what was left out, and why."""
        _section(data["leftOut"], self.LEFT_OUT)

    def receipt_row(self, job: LocalJob) -> Data:
        """Return the result of a job with exact values; zeros without a receipt: each row has all columns."""
        receipt = job.status.receipt
        row: Data = {
            "job": job.name,
            **self.place_of(job),
            "state": str(job.state),
            "reason": job.reason,
            "message": job.message,
            **self.work_of(job, receipt),
            "records": receipt.records if receipt else 0,
            "bytesBefore": receipt.bytes_before if receipt else 0,
            "bytesAfter": receipt.bytes_after if receipt else 0,
            "bytesReclaimed": receipt.bytes_reclaimed if receipt else 0,
            "verified": self.UNVERIFIED,
            "skipped": [source.to_object() for source in job.status.skipped],
            "usage": job.status.usage.to_object() if job.status.usage is not None else None,
        }
        if receipt:
            equal = kind_of_job(job.job.spec.kind).proves_equal(receipt)
            row |= {"verified": "equal" if equal else "UNEQUAL", "receipt": receipt.to_object()}
        return row

    def place_of(self, job: LocalJob) -> Data:
        """Return the place of a job's commits, for its row."""
        return {"target": job.target}

    def work_of(self, job: LocalJob, receipt: JobReceipt | None) -> Data:
        """Return the sources and outputs of a job, for its row, and the reason for which it did not succeed."""
        read, written = self.COUNTS
        return {
            "failure": job.reason if job.state is not JobState.SUCCEEDED else None,
            "sources": list(job.sources),
            read: len(receipt.sources) if receipt else 0,
            written: len(receipt.outputs) if receipt else 0,
        }

    def undone(self, result: RunResult) -> list[str]:
        """Nothing keeps a run from doing what is due."""
        return []


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


# The output of `compactor run`: the plan of a dry run, the receipts of a real one. Data first, tables from the data;
# what differs between kinds of stores is behind their door `tables`.

_PROBLEMS: Final = (
    OutputColumn("target", "Target"),
    OutputColumn("reason", "Problem"),
    OutputColumn("message", "Message"),
)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options with which a file is run."""

    output: OutputFormat
    dry_run: bool = False
    take_over: bool = False
    """Of a policy's open jobs; a round of a catalog claims its log anyway."""


def _tables(policy: CompactionPolicy) -> RunTables:
    tables: RunTables = kind_of(policy.spec.store).doors.tables.open()
    return tables


def show_plan(policy: CompactionPolicy, reading: ScanResult, plan: Plan, fmt: OutputFormat) -> None:
    """A dry run: jobs with cost and gain, and a reason for everything that is left out."""
    data, tables = plan_data(policy, reading, plan), _tables(policy)
    if fmt is not OutputFormat.TABLE:
        emit(data, fmt)
        return
    rows = list(tables.planned_rows(data, plan))
    if rows:
        print_table(rows, tables.PLANNED)
    click.echo(tables.summary(data, plan))
    tables.show_rest(data)
    _section(data["problems"], _PROBLEMS)


def plan_data(policy: CompactionPolicy, reading: ScanResult, plan: Plan) -> dict[str, Any]:
    """The same with exact values; `leftAlone` has one entry per source."""
    tables = _tables(policy)
    return {
        "policy": policy.metadata.name,
        "debt": tables.debt_of(reading),
        "plan": {
            "hash": plan.hash,
            "jobs": len(plan.jobs),
            "costBytes": plan.cost_bytes,
            "gainBytes": plan.gain_bytes,
        },
        "jobs": [tables.planned_job(job) for job in plan.jobs],
        "leftOut": [tables.left_out(row) for row in plan.left_out],
        **tables.more_of(reading),
        "leftAlone": [
            {"target": candidate.target, "source": part.name, "reason": str(part.reason)}
            for candidate in reading.candidates
            for part in candidate.left_alone
        ],
        "problems": [_problem(problem) for problem in reading.problems],
    }


def show_result(policy: CompactionPolicy, result: RunResult, fmt: OutputFormat) -> None:
    """A real run: receipts, what is in quarantine and why, what waits for its deletion."""
    data, tables = result_data(policy, result), _tables(policy)
    if fmt is not OutputFormat.TABLE:
        emit(data, fmt)
        return
    if data["jobs"]:
        print_table(data["jobs"], tables.RECEIPTS)
    click.echo(tables.outcome(data, result))
    if data["cpuSeconds"] is not None:
        click.echo(f"The jobs took {format_cost(data['cpuSeconds'], data['gainPerCpuSecond'])}.")
    _section(data["quarantined"], tables.QUARANTINED)
    tables.show_rest(data)
    _section(data["problems"], _PROBLEMS)


def problems_of(policy: CompactionPolicy, result: RunResult) -> list[str]:
    """One line per thing that is wrong, for stderr."""
    lines = [source.message for source in result.quarantined]
    named = {source.target for source in result.quarantined}
    lines += [
        f"job {job.name}: {job.reason}: {job.message}"
        for job in result.failed
        if job.reason != JobReason.SOURCE_CORRUPT or job.target not in named
    ]
    lines += [problem.message for problem in (*result.reading.problems, *result.swept.problems)]
    lines += [not_approved(result.unapproved)] if result.unapproved else []
    return [*lines, *_tables(policy).undone(result)]


def result_data(policy: CompactionPolicy, result: RunResult) -> dict[str, Any]:
    """The same with exact values."""
    tables = _tables(policy)
    jobs = [tables.receipt_row(job) for job in result.jobs]
    known = [
        (row, job.status.usage.cpu_seconds) for row, job in zip(jobs, result.jobs, strict=True) if job.status.usage
    ]
    spent = [(row["bytesReclaimed"], seconds) for row, seconds in known if seconds is not None]
    cost = PolicyCost(bytes_reclaimed=sum(size for size, _ in spent), cpu_seconds=sum(seconds for _, seconds in spent))
    return {
        "policy": policy.metadata.name,
        "succeeded": result.succeeded,
        "bytesReclaimed": sum(job["bytesReclaimed"] for job in jobs),
        "cpuSeconds": round(cost.cpu_seconds, 3) if spent else None,
        "gainPerCpuSecond": cost.gain_per_cpu_second,
        "jobs": jobs,
        "quarantined": [source.to_object() for source in result.quarantined],
        "leftOut": [tables.left_out(row) for row in tables.rows_after(result)],
        **tables.more_of(result.reading),
        "problems": [_problem(problem) for problem in (*result.reading.problems, *result.swept.problems)],
        "cleanup": {
            "deleted": result.swept.deleted,
            "bytes": result.swept.bytes,
            "nextInSeconds": None if result.swept.sweep_in is None else round(result.swept.sweep_in),
        },
    }


def _section(rows: list[dict[str, Any]], columns: Columns) -> None:
    if rows:
        click.echo()
        print_table(rows, columns)


def _problem(problem: TargetProblem) -> dict[str, Any]:
    return {"target": problem.target, "reason": str(problem.reason), "message": problem.message}
