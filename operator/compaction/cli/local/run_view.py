"""What `compactor run` shows: the plan of a dry run, the receipts of a real one. Data first, tables from the data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from compaction.api.enums import StoreKind
from compaction.api.formatting import format_bytes, plural
from compaction.api.policy import CompactionPolicy
from compaction.cli.local import run_blocks_view as of_blocks
from compaction.cli.output import Column, OutputFormat, emit, optional, optional_bytes, print_table
from compaction.local.run_job import LocalJob, RunResult
from compaction.planning.debt import total_debt
from compaction.planning.planner import LeftOut, Plan, PlannedJob
from compaction.planning.reading import LogProblem, Reading

_PLANNED = (
    Column("name", "Job"),
    Column("log", "Log"),
    Column("group", "Segments"),
    Column("costBytes", "Copies", optional_bytes, right=True),
    Column("gainBytes", "Gives back", optional_bytes, right=True),
)
_LEFT_OUT = (Column("reason", "Left out"), Column("count", "Count", right=True), Column("example", "For example"))
_PROBLEMS = (Column("log", "Log"), Column("reason", "Problem"), Column("message", "Message"))
_SET_ASIDE = (
    Column("log", "Log"),
    Column("segment", "Set aside"),
    Column("index", "Index", optional, right=True),
    Column("offset", "Offset", optional, right=True),
    Column("reason", "Reason"),
)
_RECEIPTS = (
    Column("job", "Job"),
    Column("log", "Log"),
    Column("state", "State"),
    Column("groups", "Groups"),
    Column("entries", "Entries", right=True),
    Column("bytesBefore", "Before", optional_bytes, right=True),
    Column("bytesAfter", "After", optional_bytes, right=True),
    Column("bytesReclaimed", "Reclaimed", optional_bytes, right=True),
    Column("verified", "Verified"),
)


def show_plan(policy: CompactionPolicy, reading: Reading, plan: Plan, fmt: OutputFormat) -> None:
    """A dry run: jobs and groups with cost and gain, and a reason for everything that is left out."""
    data = plan_data(policy, reading, plan)
    if fmt is not OutputFormat.TABLE:
        emit(data, fmt)
        return
    blocks = _is_of_blocks(policy)
    rows = data["jobs"] if blocks else [row for job in plan.jobs for row in _group_rows(job)]
    if rows:
        print_table(rows, of_blocks.PLANNED if blocks else _PLANNED)
    click.echo(of_blocks.summary(data, plan) if blocks else _summary(data))
    if blocks:
        of_blocks.show_rest(data)
    else:
        _section(data["leftOut"], _LEFT_OUT)
    _section(data["problems"], _PROBLEMS)


def plan_data(policy: CompactionPolicy, reading: Reading, plan: Plan) -> dict[str, Any]:
    """The same with exact values; `leftAlone` has one entry per segment."""
    debt, blocks = total_debt(reading.candidates), _is_of_blocks(policy)
    of_logs = {"bytes": debt.bytes, "segments": debt.segments, "logs": debt.logs}
    return {
        "policy": policy.metadata.name,
        "debt": of_blocks.debt_of(reading) if blocks else of_logs,
        "plan": {
            "hash": plan.hash,
            "jobs": len(plan.jobs),
            "costBytes": plan.cost_bytes,
            "gainBytes": plan.gain_bytes,
        },
        "jobs": [of_blocks.planned_job(job) if blocks else _job_data(job) for job in plan.jobs],
        "leftOut": [of_blocks.left_out(row) if blocks else _left_out(row) for row in plan.left_out],
        **({"schemaConflicts": of_blocks.conflicts_of(reading)} if blocks else {}),
        "leftAlone": [
            {"log": candidate.path, "segment": part.name, "reason": str(part.reason)}
            for candidate in reading.candidates
            for part in candidate.left_alone
        ],
        "problems": [_problem(problem) for problem in reading.problems],
    }


def _job_data(job: PlannedJob) -> dict[str, Any]:
    return {
        "name": job.name,
        "log": job.path,
        "level": job.level,
        "snapshotIndex": job.snapshot_index,
        "costBytes": job.cost_bytes,
        "gainBytes": job.gain_bytes,
        "groups": [
            {"segments": list(group.sources), "costBytes": group.copy_bytes, "gainBytes": group.gain_bytes}
            for group in job.groups
        ],
        "unreferenced": [{"segment": one.name, "gainBytes": one.gain_bytes} for one in job.unreferenced],
    }


def _group_rows(job: PlannedJob) -> Iterable[dict[str, Any]]:
    """One row per group, and one for what is only deleted; the job and its log stand in its first row."""
    rows = [
        {"group": _short(group.sources), "costBytes": group.copy_bytes, "gainBytes": group.gain_bytes}
        for group in job.groups
    ]
    if job.unreferenced:
        gain = sum(one.gain_bytes for one in job.unreferenced)
        names = _short([one.name for one in job.unreferenced], limit=4)
        rows.append({"group": f"delete {names}", "costBytes": 0, "gainBytes": gain})
    for number, row in enumerate(rows):
        yield {"name": job.name if number == 0 else "", "log": job.path if number == 0 else ""} | row


def _short(names: Iterable[str], *, limit: int = 8) -> str:
    """`1+2+3` for 0000000000000001.segment and so on."""
    numbers = [str(int(Path(name).stem)) for name in names]
    return "+".join(numbers[:limit]) + (f" and {len(numbers) - limit} more" if len(numbers) > limit else "")


def _summary(data: dict[str, Any]) -> str:
    debt, plan = data["debt"], data["plan"]
    if not plan["jobs"]:
        left = f"{format_bytes(debt['bytes'])} of debt in {plural(debt['logs'], 'log')}" if debt["bytes"] else "no debt"
        return f"nothing is due ({left})"
    return (
        f"{plan['jobs']} jobs would copy {format_bytes(plan['costBytes'])} and give back "
        f"{format_bytes(plan['gainBytes'])}; debt: {format_bytes(debt['bytes'])} in {debt['segments']} segments of "
        f"{debt['logs']} logs"
    )


def show_result(policy: CompactionPolicy, result: RunResult, fmt: OutputFormat) -> None:
    """A real run: receipts, what was set aside and why, what waits for its deletion."""
    data = result_data(policy, result)
    if fmt is not OutputFormat.TABLE:
        emit(data, fmt)
        return
    blocks = _is_of_blocks(policy)
    if blocks and data["jobs"]:
        print_table(data["jobs"], of_blocks.RECEIPTS)
    elif data["jobs"]:
        rows = [row | {"groups": f"{row['groupsCommitted']}/{row['groups']}"} for row in data["jobs"]]
        print_table(rows, _RECEIPTS)
    click.echo(of_blocks.outcome(data, result) if blocks else _outcome(data))
    _section(data["quarantined"], of_blocks.SET_ASIDE if blocks else _SET_ASIDE)
    if blocks:
        of_blocks.show_rest(data)
    else:
        _section(data["leftOut"], _LEFT_OUT)
    _section(data["problems"], _PROBLEMS)


def problems_of(result: RunResult) -> list[str]:
    """One line per thing that is wrong, for stderr."""
    lines = [source.message for source in result.quarantined]
    named = {source.log for source in result.quarantined}
    for job in result.failed:
        last = job.status.attempts[-1] if job.status.attempts else None
        if last is not None and not (last.reason == "SourceCorrupt" and job.path in named):
            lines.append(f"job {job.name}: {last.reason}: {last.message}")
    lines += [problem.message for problem in (*result.reading.problems, *result.swept.problems)]
    return [*lines, *of_blocks.undone(result)]


def result_data(policy: CompactionPolicy, result: RunResult) -> dict[str, Any]:
    """The same with exact values."""
    blocks = _is_of_blocks(policy)
    row_of = of_blocks.receipt_row if blocks else _receipt_row
    jobs = [row_of(job) for job in result.jobs]
    left = [of_blocks.left_out(row) for row in of_blocks.rows_after(result)]
    return {
        "policy": policy.metadata.name,
        "succeeded": result.succeeded,
        "bytesReclaimed": sum(job["bytesReclaimed"] for job in jobs),
        "jobs": jobs,
        "quarantined": [source.to_object() for source in result.quarantined],
        "leftOut": left if blocks else [_left_out(row) for row in result.plan.left_out],
        **({"schemaConflicts": of_blocks.conflicts_of(result.reading)} if blocks else {}),
        "problems": [_problem(problem) for problem in (*result.reading.problems, *result.swept.problems)],
        "cleanup": {
            "deleted": result.swept.deleted,
            "bytes": result.swept.bytes,
            "nextInSeconds": None if result.swept.sweep_in is None else round(result.swept.sweep_in),
        },
    }


def _receipt_row(job: LocalJob) -> dict[str, Any]:
    receipt, last = job.status.receipt, job.status.attempts[-1] if job.status.attempts else None
    row: dict[str, Any] = {
        "job": job.name,
        "log": job.path,
        "state": str(job.state),
        "reason": last.reason if last is not None else "",
        "message": last.message if last is not None else "",
        "groups": len(job.planned.groups),
        "groupsCommitted": 0,
        "entries": 0,
        "bytesBefore": 0,
        "bytesAfter": 0,
        "bytesReclaimed": 0,
        "verified": "",
        "skipped": [source.to_object() for source in job.status.skipped],
    }
    if receipt is not None:
        equal = receipt.fingerprint_before == receipt.fingerprint_after
        row |= {
            "groupsCommitted": receipt.groups_committed,
            "entries": receipt.entries,
            "bytesBefore": receipt.bytes_before,
            "bytesAfter": receipt.bytes_after,
            "bytesReclaimed": receipt.bytes_reclaimed,
            "verified": "equal" if equal else "UNEQUAL",
            "receipt": receipt.to_object(),
        }
    return row


def _outcome(data: dict[str, Any]) -> str:
    if not data["jobs"]:
        text = "nothing is due"
    else:
        good = sum(job["state"] == "Succeeded" for job in data["jobs"])
        text = f"{good} of {len(data['jobs'])} jobs succeeded, {format_bytes(data['bytesReclaimed'])} reclaimed"
    cleanup = data["cleanup"]
    if cleanup["deleted"]:
        text += f"; {cleanup['deleted']} replaced files deleted"
    if cleanup["nextInSeconds"] is not None:
        text += f"; replaced files wait for their grace, the next for {cleanup['nextInSeconds']} s (run again then)"
    return text


def _is_of_blocks(policy: CompactionPolicy) -> bool:
    return policy.spec.store.kind is StoreKind.BLOCK_STORE


def _section(rows: list[dict[str, Any]], columns: tuple[Column, ...]) -> None:
    if rows:
        click.echo()
        print_table(rows, columns)


def _left_out(row: LeftOut) -> dict[str, Any]:
    return {"reason": str(row.reason), "count": row.count, "example": row.example}


def _problem(problem: LogProblem) -> dict[str, Any]:
    return {"log": problem.log, "reason": str(problem.reason), "message": problem.message}
