"""What a job changed for reads, from its receipt: measures before and after."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from compaction.api.enums import JobState
from compaction.api.job.resource import CompactionJob, JobReceipt
from compaction.registry import all_kinds


def changes_of(receipt: JobReceipt) -> str:
    """`Before and after it: tombstones 999,999 and 0, sealed tokens 12 and 0.`; "" without measures."""
    changed = _changes(receipt)
    return f"Before and after it: {changed}." if changed else ""


def last_change(jobs: Iterable[CompactionJob]) -> str:
    """The same of the job that succeeded last, with its name and target; "" when none has measures."""
    done = [job for job in jobs if job.status.state is JobState.SUCCEEDED and _receipt_changes(job)]
    if not done:
        return ""
    last = max(done, key=lambda job: job.status.finished_at or datetime.min.replace(tzinfo=UTC))
    return f"Before and after job {last.metadata.name} of {last.spec.target}: {_receipt_changes(last)}."


def _receipt_changes(job: CompactionJob) -> str:
    return _changes(job.status.receipt) if job.status.receipt is not None else ""


def _changes(receipt: JobReceipt) -> str:
    titles = {one.name: one.title.lower() for kind in all_kinds() for one in kind.measures}
    return ", ".join(
        f"{titles.get(one.name, one.name)} {one.before:,.0f} and {one.after:,.0f}" for one in receipt.measures
    )
