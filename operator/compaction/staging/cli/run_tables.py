"""Tables of a staging area for `compactor run` and `staging plan`."""

from __future__ import annotations

from typing import Final

from compaction.api.text.printing import format_bytes, plural
from compaction.cli.local.run_view import Columns, CommonTables, Data, RunTables
from compaction.cli.output import OutputColumn, optional, optional_bytes
from compaction.core.planning.debt import ScanResult
from compaction.core.planning.planner import Plan, PlannedJob
from compaction.local.run.job import LocalJob, RunResult
from compaction.staging.kind import branch_of_target


class StagingTables(CommonTables):
    """Implements `RunTables`: one row per job."""

    PLANNED: Columns = (
        OutputColumn("name", "Job"),
        OutputColumn("branch", "Branch"),
        OutputColumn("sources", "Tokens", lambda names: str(len(names)), right=True),
        OutputColumn("bytes", "Staged", optional_bytes, right=True),
    )
    RECEIPTS: Columns = (
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
    LEFT_OUT: Columns = (
        OutputColumn("reason", "Left out"),
        OutputColumn("count", "Branches", right=True),
        OutputColumn("example", "For example"),
    )
    COUNTS = ("tokens", "ranges")

    def planned_job(self, job: PlannedJob) -> Data:
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

    def debt_of(self, scan: ScanResult) -> Data:
        """Return the debt of all branches of a scan, and its measures."""
        return super().debt_of(scan) | {"measures": dict(scan.measures)}

    def place_of(self, job: LocalJob) -> Data:
        """Return the target of a job and its branch."""
        return {"target": job.target, "branch": branch_of_target(job.target)}

    def summary(self, data: Data, plan: Plan) -> str:
        """One line below a plan."""
        debt = data["debt"]
        staged = f"{format_bytes(debt['bytes'])} in {plural(debt['sources'], 'token')}"
        where = f"{staged} of {plural(debt['targets'], 'branch', 'branches')}"
        if not plan.jobs:
            held = sum(row["count"] for row in data["leftOut"])
            if not debt["sources"] and held:
                return (
                    f"nothing is planned; {plural(held, 'branch', 'branches')} would be, but for what is listed above"
                )
            return (
                f"nothing is due ({where} staged)"
                if debt["sources"]
                else "nothing is due: no branch has tokens to compact"
            )
        return f"{plural(len(plan.jobs), 'job')} would compact {format_bytes(plan.cost_bytes)}; staged: {where}"

    def outcome(self, data: Data, result: RunResult) -> str:
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


TABLES: Final[RunTables] = StagingTables()
