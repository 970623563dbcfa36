"""Tables of a block store for `compactor run` and `compactor blocks plan|compact`, and the jobs of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import click

from compaction.api.policy.policy import CompactionPolicy
from compaction.api.text.printing import format_bytes, plural
from compaction.blocks.cli.open_jobs import OpenJobs
from compaction.blocks.cli.options import short_time, time_text
from compaction.blocks.cli.shapes import at_rest
from compaction.blocks.connecting import connection_of
from compaction.blocks.kind import LIVE
from compaction.blocks.model import SECOND, format_merge, work_of
from compaction.blocks.planning.batches import BlockReason
from compaction.blocks.store import BlockStore
from compaction.cli.local.run_view import Columns, CommonTables, Data, RunTables
from compaction.cli.output import OutputColumn, optional, optional_bytes
from compaction.cli.places import PATIENCE
from compaction.core.planning.candidates import LeftOutReason
from compaction.core.planning.debt import ScanResult
from compaction.core.planning.planner import LeftOut, Plan, PlannedJob
from compaction.local.run.job import LocalJob, RunResult
from compaction.storage.opened import ThisProcess, explaining
from compaction.storage.secrets import Secrets

# The jobs of others in the block store of a policy, for `compactor run`.


@contextmanager
def open_jobs_of(policy: CompactionPolicy, secrets: Secrets, *, here: ThisProcess, taking: bool) -> Iterator[OpenJobs]:
    """See `cli.local.run_view.OpenOthers`. Raises BlockStoreError, SecretError."""
    store = policy.spec.store.block_store
    assert store is not None, "the kind is chosen by this member"
    connection = connection_of(store.reference, secrets)
    with explaining(connection.address), closing(BlockStore.open(connection, patience=PATIENCE)) as blocks:
        yield OpenJobs(blocks, here, taking)


_AT_REST: Final = frozenset({BlockReason.NOTHING_TO_MERGE_WITH, BlockReason.LARGE_ENOUGH, BlockReason.HIGHEST_LEVEL})
"""Reasons of blocks that nothing is wrong with and nothing is due for."""


class BlockTables(CommonTables):
    """Implements `RunTables`: one row per job, and what schemas keep apart."""

    PLANNED: Columns = (
        OutputColumn("name", "Job"),
        OutputColumn("level", "Level", right=True),
        OutputColumn("tenant", "Tenant"),
        OutputColumn("shard", "Shard", right=True),
        OutputColumn("sources", "Blocks", lambda ids: str(len(ids)), right=True),
        OutputColumn("bytes", "Bytes", optional_bytes, right=True),
    )
    RECEIPTS: Columns = (
        OutputColumn("job", "Job"),
        OutputColumn("level", "Level", right=True),
        OutputColumn("tenant", "Tenant"),
        OutputColumn("state", "State"),
        OutputColumn("merged", "Blocks", right=True),
        OutputColumn("into", "Into", right=True),
        OutputColumn("records", "Rows", right=True),
        OutputColumn("bytesBefore", "Before", optional_bytes, right=True),
        OutputColumn("bytesAfter", "After", optional_bytes, right=True),
        OutputColumn("verified", "Verified", optional),
        OutputColumn("failure", "Reason", optional),
    )
    LEFT_OUT: Columns = (
        OutputColumn("reason", "Left out"),
        OutputColumn("count", "Blocks", right=True),
        OutputColumn("example", "For example"),
        OutputColumn("due", "Due", short_time),
        OutputColumn("missing", "Missing", lambda count: str(count or "-"), right=True),
    )
    COUNTS = ("merged", "into")

    def left_out(self, row: LeftOut) -> Data:
        """A reason why blocks (or a batch) got no job, with exact values."""
        due = None if row.due is None else time_text(int(row.due * SECOND))
        return super().left_out(row) | {"bytes": row.bytes, "due": due, "missing": row.missing}

    def show_rest(self, data: Data) -> None:
        """Below the jobs: what else waits and why; then, in words, what waits for nothing, and conflicts of schemas."""
        super().show_rest({"leftOut": [row for row in data["leftOut"] if row["reason"] not in _AT_REST]})
        counts = {row["reason"]: row["count"] for row in data["leftOut"] if row["reason"] in _AT_REST}
        alone, done = counts.pop(BlockReason.NOTHING_TO_MERGE_WITH, 0), sum(counts.values())
        if alone:
            click.echo(at_rest(alone))
        if done:
            click.echo(f"{plural(done, 'block')} {'has' if done == 1 else 'have'} come to the end of compaction")
        for item in data["conflicts"]:
            click.echo(item["message"])

    def more_of(self, scan: ScanResult) -> Data:
        """Return the conflicts between schemas that keep blocks apart."""
        conflicts = [
            {
                "tenant": conflict.tenant,
                "schemas": conflict.classes,
                "blocks": conflict.sources,
                "message": conflict.message,
            }
            for conflict in scan.conflicts
        ]
        return {"conflicts": conflicts}

    def rows_after(self, result: RunResult) -> list[LeftOut]:
        """Return the reasons for which blocks got no job: by the queue's rules as of the last scan, others as of the
        newest plan.
        """
        blocks, own = set(BlockReason), result.left_out
        waiting = [row for row in result.reading.left_out if row.reason in blocks]
        return [*(row for row in own if row.reason not in blocks), *waiting]

    def undone(self, result: RunResult) -> list[str]:
        """One line for each reason in the schemas for which a run could do nothing at all."""
        if result.jobs:
            return []
        kept = [conflict for conflict in result.reading.conflicts if conflict.alone > 1]
        return [f"{item.message}; nothing of {item.alone} blocks could be merged because of it" for item in kept]

    def planned_job(self, job: PlannedJob) -> Data:
        """A job of a plan with exact values."""
        (group,) = job.groups
        place = _place(job.target, job.level, group.sources)
        return {"name": job.name, **place, "sources": list(group.sources), "bytes": job.cost_bytes}

    def debt_of(self, scan: ScanResult) -> Data:
        """Return the debt that is due: `blocks` that wait in ready batches, those of jobs included."""
        offered = [group for candidate in scan.candidates for group in candidate.groups]
        return {
            "bytes": sum(group.copy_bytes for group in offered) + sum(item.bytes for item in scan.beyond),
            "sources": sum(len(group.sources) for group in offered) + sum(item.sources for item in scan.beyond),
            "targets": len(scan.candidates),
            "measures": dict(scan.measures),
        }

    def summary(self, data: Data, plan: Plan) -> str:
        """One line below a plan."""
        debt = data["debt"]
        if not plan.jobs:
            if debt["sources"]:
                return f"nothing is planned ({plural(debt['sources'], 'block')} due)"
            return _nothing_due([row for row in data["leftOut"] if row["reason"] == BlockReason.WAITING_FOR_MORE])
        merged = sum(len(job["sources"]) for job in data["jobs"])
        return (
            f"{plural(len(plan.jobs), 'job')} would merge {merged} blocks with {format_bytes(plan.cost_bytes)}; "
            f"due: {plural(debt['sources'], 'block')} with {format_bytes(debt['bytes'])}"
        )

    def place_of(self, job: LocalJob) -> Data:
        """Return the levels, the tenant and the shard of a job, and its target."""
        return _place(job.target, job.job.spec.level, job.sources)

    def outcome(self, data: Data, result: RunResult) -> str:
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
        live = result.reading.measures.get(LIVE)
        return text if live is None else f"{text}; {plural(int(live), 'block')} live"


def _place(target: str, level: int, sources: tuple[str, ...]) -> Data:
    work = work_of(target, level, sources)
    return {
        "level": work.level,
        "outputLevel": work.output_level,
        "tenant": work.tenant,
        "shard": work.shard,
        "target": target,
    }


def _nothing_due(waiting: list[Data]) -> str:
    if not waiting:
        return "nothing is due, and nothing waits"
    (row,) = waiting
    count, size = plural(row["count"], "block"), format_bytes(row["bytes"])
    when = f"next due at {short_time(row['due'])}, or when {row['missing']} more have come"
    return f"nothing is due yet: {count} ({size}) wait; {when}. Merge now: compactor blocks compact --all"


TABLES: Final[RunTables] = BlockTables()
