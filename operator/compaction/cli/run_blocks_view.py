"""What `compactor run` and `compactor blocks plan|compact` show of a block store. Data first, tables from the data."""

from __future__ import annotations

from typing import Any, Final

from compaction.api.enums import JobState
from compaction.api.formatting import format_bytes, format_merge, plural
from compaction.cli.output import Column, optional, optional_bytes
from compaction.local.run_job import LocalJob, RunResult
from compaction.planning.block_offers import work_of
from compaction.planning.candidates import LeftOutReason
from compaction.planning.planner import Plan, PlannedJob
from compaction.planning.reading import Reading

PLANNED: Final = (
    Column("name", "Job"),
    Column("level", "Level", right=True),
    Column("tenant", "Tenant"),
    Column("shard", "Shard", right=True),
    Column("blocks", "Blocks", lambda ids: str(len(ids)), right=True),
    Column("bytes", "Bytes", optional_bytes, right=True),
)
RECEIPTS: Final = (
    Column("job", "Job"),
    Column("level", "Level", right=True),
    Column("tenant", "Tenant"),
    Column("state", "State"),
    Column("merged", "Blocks", right=True),
    Column("into", "Into", right=True),
    Column("rows", "Rows", right=True),
    Column("bytesBefore", "Before", optional_bytes, right=True),
    Column("bytesAfter", "After", optional_bytes, right=True),
    Column("verified", "Verified", optional),
    Column("failure", "Reason", optional),
)
SET_ASIDE: Final = (Column("segment", "Set aside"), Column("reason", "Reason"), Column("message", "Message"))


def planned_job(job: PlannedJob) -> dict[str, Any]:
    """A job of a plan with exact values."""
    work = work_of(job)
    return {
        "name": job.name,
        "level": work.level,
        "outputLevel": work.output_level,
        "tenant": work.tenant,
        "shard": work.shard,
        "batch": job.path,
        "blocks": list(work.sources),
        "bytes": job.cost_bytes,
    }


def debt_of(reading: Reading) -> dict[str, Any]:
    """What is due: `blocks` that wait in ready batches, those of jobs included."""
    offered = [group for one in reading.candidates for group in one.groups]
    beyond = reading.blocks.beyond if reading.blocks is not None else ()
    return {
        "bytes": sum(group.copy_bytes for group in offered) + sum(one.bytes for one in beyond),
        "blocks": sum(len(group.sources) for group in offered) + sum(one.blocks for one in beyond),
        "batches": len(reading.candidates),
        "liveBlocks": reading.blocks.live if reading.blocks is not None else None,
        "windows": reading.blocks.windows if reading.blocks is not None else None,
    }


def summary(data: dict[str, Any], plan: Plan) -> str:
    """One line below a plan."""
    debt = data["debt"]
    if not plan.jobs:
        waits = f"{plural(debt['blocks'], 'block')} due" if debt["blocks"] else "no debt"
        return f"nothing is planned ({waits})"
    merged = sum(len(job["blocks"]) for job in data["jobs"])
    return (
        f"{plural(len(plan.jobs), 'job')} would merge {merged} blocks with {format_bytes(plan.cost_bytes)}; "
        f"due: {plural(debt['blocks'], 'block')} with {format_bytes(debt['bytes'])}"
    )


def receipt_row(job: LocalJob) -> dict[str, Any]:
    """What became of a job, with exact values."""
    receipt, last = job.status.receipt, job.status.attempts[-1] if job.status.attempts else None
    work = work_of(job.planned)
    row: dict[str, Any] = {
        "job": job.name,
        "level": work.level,
        "outputLevel": work.output_level,
        "tenant": work.tenant,
        "shard": work.shard,
        "batch": job.path,
        "state": str(job.state),
        "reason": last.reason if last is not None else "",
        "message": last.message if last is not None else "",
        "failure": last.reason if last is not None and job.state is not JobState.SUCCEEDED else None,
        "blocks": list(work.sources),
        "merged": 0,
        "into": 0,
        "rows": 0,
        "bytesBefore": 0,
        "bytesAfter": 0,
        "bytesReclaimed": 0,
        "verified": None,
        "skipped": [source.to_object() for source in job.status.skipped],
    }
    if receipt is not None:
        row |= {
            "merged": len(receipt.sources),
            "into": len(receipt.outputs),
            "rows": receipt.rows,
            "bytesBefore": receipt.bytes_before,
            "bytesAfter": receipt.bytes_after,
            "bytesReclaimed": receipt.bytes_reclaimed,
            "verified": "equal" if receipt.proves_equal else "UNEQUAL",
            "receipt": receipt.to_object(),
        }
    return row


def outcome(data: dict[str, Any], result: RunResult) -> str:
    """One line below the receipts."""
    if not data["jobs"]:
        others = any(row["reason"] == LeftOutReason.JOB_UNFINISHED for row in data["leftOut"])
        text = "nothing is due that no open job has" if others else "nothing is due"
    else:
        good = sum(job["state"] == "Succeeded" for job in data["jobs"])
        into = sum(job["into"] for job in data["jobs"])
        dropped = sum(job["merged"] for job in data["jobs"] if not job["into"])
        merged = sum(job["merged"] for job in data["jobs"]) - dropped
        text = f"{good} of {plural(len(data['jobs']), 'job')} succeeded"
        if merged or not dropped:
            text += f", {merged} blocks merged into {into}"
        if dropped:
            text += f", {format_merge(dropped, 0)}"
        if result.lost:
            text += f"; {plural(len(result.lost), 'job')} left to another process"
    if result.swept.deleted:
        text += f"; {plural(result.swept.deleted, 'object')} deleted after the grace"
    live = result.reading.blocks.live if result.reading.blocks is not None else None
    return text if live is None else f"{text}; {plural(live, 'block')} live"
