"""Tables of a staging area for `compactor run` and `staging plan`. Implements `cli.local.run_view.RunTables`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from compaction.api.enums import JobState
from compaction.api.text.printing import format_bytes, plural
from compaction.cli.output import OutputColumn, optional, optional_bytes, print_table
from compaction.core.planning.debt import ScanResult, total_debt
from compaction.core.planning.planner import LeftOut, Plan, PlannedJob
from compaction.local.run.job import LocalJob, RunResult
from compaction.staging.kind import STAGING, branch_of_target

PLANNED: Final = (
    OutputColumn("name", "Job"),
    OutputColumn("branch", "Branch"),
    OutputColumn("sources", "Tokens", lambda names: str(len(names)), right=True),
    OutputColumn("bytes", "Staged", optional_bytes, right=True),
)
RECEIPTS: Final = (
    OutputColumn("job", "Job"),
    OutputColumn("branch", "Branch"),
    OutputColumn("state", "State"),
    OutputColumn("tokens", "Tokens", right=True),
    OutputColumn("ranges", "Ranges", right=True),
    OutputColumn("records", "Records", right=True),
    OutputColumn("bytesBefore", "Read", optional_bytes, right=True),
    OutputColumn("bytesAfter", "Written", optional_bytes, right=True),
    OutputColumn("verified", "Verified", optional),
    OutputColumn("failure", "Reason", optional),
)
QUARANTINED: Final = (
    OutputColumn("source", "Quarantined"),
    OutputColumn("reason", "Reason"),
    OutputColumn("message", "Message"),
)
_LEFT_OUT: Final = (
    OutputColumn("reason", "Left out"),
    OutputColumn("count", "Branches", right=True),
    OutputColumn("example", "For example"),
)


def planned_job(job: PlannedJob) -> dict[str, Any]:
    """A job of a plan with exact values."""
    (group,) = job.groups
    return {
        "name": job.name,
        "target": job.target,
        "branch": branch_of_target(job.target),
        "baseVersion": job.base_version,
        "sources": list(group.sources),
        "bytes": job.cost_bytes,
    }


def planned_rows(data: dict[str, Any], plan: Plan) -> Iterable[dict[str, Any]]:
    """One row per job."""
    jobs: list[dict[str, Any]] = data["jobs"]
    return jobs


def debt_of(scan: ScanResult) -> dict[str, Any]:
    """Return the debt of all branches of a scan."""
    debt = total_debt(scan.candidates)
    return {
        "bytes": debt.bytes,
        "sources": debt.sources,
        "targets": debt.targets,
        "measures": dict(scan.measures),
    }


def more_of(scan: ScanResult) -> dict[str, Any]:
    """Nothing more."""
    return {}


def left_out(row: LeftOut) -> dict[str, Any]:
    """A reason for which a branch got no job."""
    return {"reason": str(row.reason), "count": row.count, "example": row.example}


def rows_after(result: RunResult) -> Sequence[LeftOut]:
    """As of the newest plan."""
    return result.left_out


def summary(data: dict[str, Any], plan: Plan) -> str:
    """One line below a plan."""
    debt = data["debt"]
    staged = f"{format_bytes(debt['bytes'])} in {plural(debt['sources'], 'token')}"
    where = f"{staged} of {plural(debt['targets'], 'branch', 'branches')}"
    if not plan.jobs:
        held = sum(row["count"] for row in data["leftOut"])
        if not debt["sources"] and held:
            return f"nothing is planned; {plural(held, 'branch', 'branches')} would be, but for what is listed above"
        return (
            f"nothing is due ({where} staged)" if debt["sources"] else "nothing is due: no branch has tokens to compact"
        )
    return f"{plural(len(plan.jobs), 'job')} would compact {format_bytes(plan.cost_bytes)}; staged: {where}"


def show_rest(data: dict[str, Any]) -> None:
    """Below the jobs: what was left out, and why."""
    if data["leftOut"]:
        click.echo()
        print_table(data["leftOut"], _LEFT_OUT)


def receipt_row(job: LocalJob) -> dict[str, Any]:
    """Return the result of a job, with exact values."""
    receipt = job.status.receipt
    row: dict[str, Any] = {
        "job": job.name,
        "target": job.target,
        "branch": branch_of_target(job.target),
        "state": str(job.state),
        "reason": job.reason,
        "message": job.message,
        "failure": job.reason if job.state is not JobState.SUCCEEDED else None,
        "sources": list(job.sources),
        "tokens": 0,
        "ranges": 0,
        "records": 0,
        "bytesBefore": 0,
        "bytesAfter": 0,
        "bytesReclaimed": 0,
        "verified": None,
        "skipped": [source.to_object() for source in job.status.skipped],
    }
    if receipt is not None:
        row |= {
            "tokens": len(receipt.sources),
            "ranges": len(receipt.outputs),
            "records": receipt.records,
            "bytesBefore": receipt.bytes_before,
            "bytesAfter": receipt.bytes_after,
            "bytesReclaimed": receipt.bytes_reclaimed,
            "verified": "equal" if STAGING.proves_equal(receipt) else "UNEQUAL",
            "receipt": receipt.to_object(),
        }
    return row


def outcome(data: dict[str, Any], result: RunResult) -> str:
    """One line below the receipts."""
    if not data["jobs"]:
        return "nothing is due"
    good = [job for job in data["jobs"] if job["state"] == "Succeeded"]
    tokens, ranges = (sum(job[name] for job in good) for name in ("tokens", "ranges"))
    text = f"{len(good)} of {plural(len(data['jobs']), 'job')} succeeded, {plural(tokens, 'token')} compacted"
    text += f", {plural(ranges, 'range')} written"
    if result.swept.deleted:
        text += f"; {plural(result.swept.deleted, 'token or range', 'tokens and ranges')} deleted after the grace"
    return text


def undone(result: RunResult) -> list[str]:
    """Nothing keeps branches apart."""
    return []
