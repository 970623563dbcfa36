"""The tables of segment logs that `compactor run` shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from compaction.api.job.job import JobReceipt
from compaction.api.text.printing import format_bytes, plural
from compaction.cli.local.run_view import Columns, CommonTables, Data, RunTables
from compaction.cli.output import OutputColumn, optional, optional_bytes
from compaction.core.planning.planner import Plan, PlannedJob
from compaction.local.run.job import LocalJob, RunResult


class SegmentTables(CommonTables):
    """Implements `RunTables`: one row per group of a plan, and what is only deleted in a row of its own."""

    PLANNED: Columns = (
        OutputColumn("name", "Job"),
        OutputColumn("target", "Log"),
        OutputColumn("group", "Segments"),
        OutputColumn("costBytes", "Copies", optional_bytes, right=True),
        OutputColumn("gainBytes", "Reclaims", optional_bytes, right=True),
    )
    RECEIPTS: Columns = (
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
    QUARANTINED: Columns = (
        OutputColumn("target", "Log"),
        OutputColumn("source", "Quarantined"),
        OutputColumn("index", "Index", optional, right=True),
        OutputColumn("offset", "Offset", optional, right=True),
        OutputColumn("reason", "Reason"),
    )
    UNVERIFIED = ""

    def planned_job(self, job: PlannedJob) -> Data:
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

    def planned_rows(self, data: Data, plan: Plan) -> Iterable[Data]:
        """One row per group, and one for what is only deleted; the job and its log stand in its first row."""
        return [row for job in plan.jobs for row in _group_rows(job)]

    def summary(self, data: Data, plan: Plan) -> str:
        """One line below a plan."""
        debt, planned = data["debt"], data["plan"]
        if not planned["jobs"]:
            left = (
                f"{format_bytes(debt['bytes'])} of debt in {plural(debt['targets'], 'log')}"
                if debt["bytes"]
                else "no debt"
            )
            return f"nothing is due ({left})"
        return (
            f"{planned['jobs']} jobs would copy {format_bytes(planned['costBytes'])} and reclaim "
            f"{format_bytes(planned['gainBytes'])}; debt: {format_bytes(debt['bytes'])} in {debt['sources']} segments "
            f"of {debt['targets']} logs"
        )

    def work_of(self, job: LocalJob, receipt: JobReceipt | None) -> Data:
        """Return the groups of a job, and how many of them are committed."""
        groups, committed = len(job.parts.groups), receipt.groups_committed if receipt else 0
        return {"groups": groups, "groupsCommitted": committed, "done": f"{committed}/{groups}"}

    def outcome(self, data: Data, result: RunResult) -> str:
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


def _group_rows(job: PlannedJob) -> Iterable[Data]:
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


TABLES: Final[RunTables] = SegmentTables()
