"""What one sees of the logs while they are written and compacted, and the last screens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table
from rich.text import Text

from compaction.api.job.resource import CompactionJob, JobReceipt
from compaction.api.text.formatting import format_bytes
from compaction.local.demo.cluster import DemoObservation
from compaction.local.demo.segments.facts import LogFacts, disk_bytes
from compaction.local.demo.segments.owners import NAMES, Owners
from compaction.local.demo.segments.proof import LogStory
from compaction.local.demo.segments.reader import KeyReader
from compaction.local.demo.view import MISSING, table_of
from replicated_kv.messages import Status

JOB_COLUMNS: Final = ("LOG", "SIZE", "RECLAIMED")


@dataclass(frozen=True, slots=True)
class LogScene:
    """See `Scene`: of logs and their owners."""

    seen: DemoObservation
    statuses: Mapping[str, Status]
    owners: Owners
    reader: KeyReader
    changes: int
    job_columns: Sequence[str] = JOB_COLUMNS

    def job_cells(self, job: CompactionJob) -> tuple[str, ...]:
        """See `Scene`."""
        receipt = job.status.receipt
        return (
            job.spec.target.rpartition("/")[2] or MISSING,
            format_bytes(job.spec.estimated_bytes),
            MISSING if receipt is None else format_bytes(receipt.bytes_reclaimed),
        )

    def reader_line(self) -> str:
        """See `Scene`."""
        return self.reader.line()

    def store_line(self) -> str:
        """See `Scene`."""
        shown = ", ".join(f"{one.name} {one.entries} entries in {one.segments}" for one in self.statuses.values())
        return f"{self.changes} changes acknowledged; needed entries and segments: {shown}"

    def store_table(self) -> Table:
        """See `Scene`."""
        table = table_of(("MEMBER", "LAST", "APPLIED", "SNAPSHOT", "KEYS", "ENTRIES", "SEGMENTS", "DISK", "INSTALLED"))
        for name in NAMES:
            one = self.statuses.get(name)
            if one is None:
                table.add_row(name, Text("does not run", style="red"))
                continue
            numbers = (one.last, one.applied, one.snapshot, one.keys, one.entries, one.segments)
            disk = format_bytes(disk_bytes(self.owners.log_of(name)))
            table.add_row(name, *map(str, numbers), disk, str(one.installed))
        return table


def receipts_table(story: LogStory) -> Table:
    """By log: what its jobs read, what they wrote, and that both hold the same entries."""
    table = table_of(("LOG", "RECEIPTS", "GROUPS", "SOURCES", "ENTRIES", "BEFORE", "AFTER", "SHA-256 BEFORE = AFTER"))
    for facts in _logs(story):
        mine = list(story.receipts(facts.path).values())
        rewrites = [one for one in mine if one.groups_committed]
        equal = sum(one.fingerprint_before == one.fingerprint_after != "" for one in rewrites)
        table.add_row(
            facts.path.name,
            str(len(mine)),
            f"{_sum(mine, 'groups_committed')} of {_sum(mine, 'groups')}",
            str(sum(len(one.sources) for one in mine)),
            str(_sum(mine, "records")),
            format_bytes(_sum(mine, "bytes_before")),
            format_bytes(_sum(mine, "bytes_after")),
            Text(f"{equal} of {len(rewrites)} equal", style="green" if equal == len(rewrites) else "bold red"),
        )
    return table


def proof_table(story: LogStory) -> Table:
    """By log: what can be read of it at the end, and what it costs."""
    table = table_of(("LOG", "CONTENT", "IN SEGMENTS", "SEGMENTS", "DISK", "RECLAIMED"))
    for facts in _logs(story):
        comparison = next((one for one, other in story.members.values() if other is facts), None)
        same = not comparison.different if comparison is not None else facts.fingerprint == story.before.fingerprint
        table.add_row(
            facts.path.name,
            Text("equal", style="green") if same else Text("DIFFERENT", style="bold red"),
            str(facts.entries),
            str(facts.segments),
            format_bytes(facts.disk_bytes),
            format_bytes(_sum(list(story.receipts(facts.path).values()), "bytes_reclaimed")),
        )
    return table


def _logs(story: LogStory) -> list[LogFacts]:
    return [*(facts for _, facts in story.members.values()), story.after]


def _sum(receipts: Sequence[JobReceipt], name: str) -> int:
    return sum(getattr(one, name) for one in receipts)
