"""What `compactor run` shows of directories of lines; implements `cli.local.run_view.RunTables`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from compaction.api.text.printing import plural
from compaction.cli.output import OutputColumn
from compaction.core.planning.debt import ScanResult, total_debt
from compaction.core.planning.planner import LeftOut, Plan, PlannedJob
from compaction.local.run.job import LocalJob, RunResult

Data = dict[str, Any]
PLANNED: Final = (
    OutputColumn("name", "Job"),
    OutputColumn("target", "Directory"),
    OutputColumn("files", "Files", right=True),
)
RECEIPTS: Final = (OutputColumn("job", "Job"), OutputColumn("target", "Directory"), OutputColumn("state", "State"))
QUARANTINED: Final = (
    OutputColumn("target", "Directory"),
    OutputColumn("source", "Quarantined"),
    OutputColumn("reason", "Reason"),
)


def planned_job(job: PlannedJob) -> Data:
    return {"name": job.name, "target": job.target, "files": sum(len(group.sources) for group in job.groups)}


def planned_rows(data: Data, plan: Plan) -> Iterable[Data]:
    rows: list[Data] = data["jobs"]
    return rows


def debt_of(scan: ScanResult) -> Data:
    debt = total_debt(scan.candidates)
    return {"bytes": debt.bytes, "sources": debt.sources, "targets": debt.targets}


def more_of(scan: ScanResult) -> Data:
    return {}


def left_out(row: LeftOut) -> Data:
    return {"reason": row.reason, "count": row.count, "example": row.example}


def rows_after(result: RunResult) -> Sequence[LeftOut]:
    return result.left_out


def summary(data: Data, plan: Plan) -> str:
    return f"{plural(data['debt']['sources'], 'file')} would be merged"


def show_rest(data: Data) -> None:
    """What was left out is in the data."""


def receipt_row(job: LocalJob) -> Data:
    return {"job": job.name, "target": job.target, "state": str(job.state)}


def outcome(data: Data, result: RunResult) -> str:
    return f"{plural(len(data['jobs']), 'job')} ended"


def undone(result: RunResult) -> list[str]:
    return []
