"""What `compactor run` shows: the plan of a dry run, the receipts of a real one. Data first, tables from the data; what
differs between kinds of stores is behind their door `tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from compaction.api.enums import JobReason
from compaction.api.policy.resource import CompactionPolicy
from compaction.cli.local.tables import RunTables
from compaction.cli.output import Column, OutputFormat, emit, print_table
from compaction.core.planning.planner import Plan
from compaction.core.planning.reading import ScanResult, TargetProblem
from compaction.local.run.job import RunResult
from compaction.local.run.once import not_approved
from compaction.registry import kind_of

_PROBLEMS: Final = (Column("target", "Target"), Column("reason", "Problem"), Column("message", "Message"))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a file is run."""

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
    return {
        "policy": policy.metadata.name,
        "succeeded": result.succeeded,
        "bytesReclaimed": sum(job["bytesReclaimed"] for job in jobs),
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


def _section(rows: list[dict[str, Any]], columns: Sequence[Column]) -> None:
    if rows:
        click.echo()
        print_table(rows, columns)


def _problem(problem: TargetProblem) -> dict[str, Any]:
    return {"target": problem.target, "reason": str(problem.reason), "message": problem.message}
