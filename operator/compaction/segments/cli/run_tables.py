"""The tables of segment logs that `compactor run` shows. Implements `cli.local.run_view.RunTables`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.printing import format_bytes, plural
from compaction.cli.output import OutputColumn, optional, optional_bytes, print_table
from compaction.core.planning.debt import ScanResult, total_debt
from compaction.core.planning.planner import LeftOut, Plan, PlannedJob
from compaction.local.run.job import LocalJob, RunResult
from compaction.segments.kind import SEGMENTS

PLANNED: Final = (
    OutputColumn("name", "Job"),
    OutputColumn("target", "Log"),
    OutputColumn("group", "Segments"),
    OutputColumn("costBytes", "Copies", optional_bytes, right=True),
    OutputColumn("gainBytes", "Reclaims", optional_bytes, right=True),
)
RECEIPTS: Final = (
    OutputColumn("job", "Job"),
    OutputColumn("target", "Log"),
    OutputColumn("state", "State"),
    OutputColumn("done", "Groups"),
    OutputColumn("records", "Entries", right=True),
    OutputColumn("bytesBefore", "Before", optional_bytes, right=True),
    OutputColumn("bytesAfter", "After", optional_bytes, right=True),
    OutputColumn("bytesReclaimed", "Reclaimed", optional_bytes, right=True),
    OutputColumn("verified", "Verified"),
)
QUARANTINED: Final = (
    OutputColumn("target", "Log"),
    OutputColumn("source", "Quarantined"),
    OutputColumn("index", "Index", optional, right=True),
    OutputColumn("offset", "Offset", optional, right=True),
    OutputColumn("reason", "Reason"),
)
_LEFT_OUT: Final = (
    OutputColumn("reason", "Left out"),
    OutputColumn("count", "Count", right=True),
    OutputColumn("example", "For example"),
)


def planned_job(job: PlannedJob) -> dict[str, Any]:
    """A job of a plan with exact values."""
    return {
        "name": job.name,
        "target": job.target,
        "level": job.level,
        "snapshotIndex": int(job.base_version or 0),
        "costBytes": job.cost_bytes,
        "gainBytes": job.gain_bytes,
        "groups": [
            {"sources": list(group.sources), "costBytes": group.copy_bytes, "gainBytes": group.gain_bytes}
            for group in job.groups
        ],
        "obsolete": [{"source": item.name, "gainBytes": item.gain_bytes} for item in job.obsolete],
    }


def planned_rows(data: dict[str, Any], plan: Plan) -> Iterable[dict[str, Any]]:
    """One row per group, and one for what is only deleted; the job and its log stand in its first row."""
    return [row for job in plan.jobs for row in _group_rows(job)]


def _group_rows(job: PlannedJob) -> Iterable[dict[str, Any]]:
    rows = [
        {"group": _short(group.sources), "costBytes": group.copy_bytes, "gainBytes": group.gain_bytes}
        for group in job.groups
    ]
    if job.obsolete:
        gain = sum(item.gain_bytes for item in job.obsolete)
        names = _short([item.name for item in job.obsolete], limit=4)
        rows.append({"group": f"delete {names}", "costBytes": 0, "gainBytes": gain})
    for number, row in enumerate(rows):
        yield {"name": job.name if number == 0 else "", "target": job.target if number == 0 else ""} | row


def _short(names: Iterable[str], *, limit: int = 8) -> str:
    """`1+2+3` for 0000000000000001.segment and so on."""
    numbers = [str(int(Path(name).stem)) for name in names]
    return "+".join(numbers[:limit]) + (f" and {len(numbers) - limit} more" if len(numbers) > limit else "")


def debt_of(scan: ScanResult) -> dict[str, Any]:
    """Return the debt of all candidates: the bytes and files that compaction is behind."""
    debt = total_debt(scan.candidates)
    return {"bytes": debt.bytes, "sources": debt.sources, "targets": debt.targets}


def more_of(scan: ScanResult) -> dict[str, Any]:
    """Nothing more."""
    return {}


def left_out(row: LeftOut) -> dict[str, Any]:
    """A reason for which a log, or segments, got no job."""
    return {"reason": str(row.reason), "count": row.count, "example": row.example}


def rows_after(result: RunResult) -> Sequence[LeftOut]:
    """As of the newest plan."""
    return result.left_out


def summary(data: dict[str, Any], plan: Plan) -> str:
    """One line below a plan."""
    debt, planned = data["debt"], data["plan"]
    if not planned["jobs"]:
        left = (
            f"{format_bytes(debt['bytes'])} of debt in {plural(debt['targets'], 'log')}" if debt["bytes"] else "no debt"
        )
        return f"nothing is due ({left})"
    return (
        f"{planned['jobs']} jobs would copy {format_bytes(planned['costBytes'])} and reclaim "
        f"{format_bytes(planned['gainBytes'])}; debt: {format_bytes(debt['bytes'])} in {debt['sources']} segments of "
        f"{debt['targets']} logs"
    )


def show_rest(data: dict[str, Any]) -> None:
    """Below the jobs: what was left out, and why."""
    if data["leftOut"]:
        click.echo()
        print_table(data["leftOut"], _LEFT_OUT)


def receipt_row(job: LocalJob) -> dict[str, Any]:
    """Return the outcome of a job as an object with exact values."""
    receipt, groups = job.status.receipt, len(job.parts.groups)
    # Zeros for a job without a receipt: each row of a table has all columns.
    row: dict[str, Any] = {
        "job": job.name,
        "target": job.target,
        "state": str(job.state),
        "reason": job.reason,
        "message": job.message,
        "groups": groups,
        "groupsCommitted": 0,
        "done": f"0/{groups}",
        "records": 0,
        "bytesBefore": 0,
        "bytesAfter": 0,
        "bytesReclaimed": 0,
        "verified": "",
        "skipped": [source.to_object() for source in job.status.skipped],
    }
    if receipt is not None:
        row |= {
            "groupsCommitted": receipt.groups_committed,
            "done": f"{receipt.groups_committed}/{groups}",
            "records": receipt.records,
            "bytesBefore": receipt.bytes_before,
            "bytesAfter": receipt.bytes_after,
            "bytesReclaimed": receipt.bytes_reclaimed,
            "verified": "equal" if SEGMENTS.proves_equal(receipt) else "UNEQUAL",
            "receipt": receipt.to_object(),
        }
    return row


def outcome(data: dict[str, Any], result: RunResult) -> str:
    """One line below the receipts."""
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


def undone(result: RunResult) -> list[str]:
    """Nothing keeps a run of segment logs from doing what is due."""
    return []
