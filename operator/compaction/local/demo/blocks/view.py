"""What one sees of a block store while it runs: its policy and newest jobs, blocks by tenant and level, the reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table
from rich.text import Text

from compaction.api.job.resource import CompactionJob, JobReceipt
from compaction.api.text.formatting import format_bytes
from compaction.blocks.kind import BLOCKS
from compaction.local.demo.blocks.facts import StoreFacts
from compaction.local.demo.blocks.ledger import Entries
from compaction.local.demo.blocks.prover import Prover
from compaction.local.demo.blocks.scenario import TOP_LEVEL
from compaction.local.demo.cluster import DemoObservation
from compaction.local.demo.view import (
    MISSING,
    table_of,
)

JOB_COLUMNS: Final = ("TENANT", "LEVEL", "BLOCKS", "SIZE")


@dataclass(frozen=True, slots=True)
class BlockScene:
    """See `Scene`: of a block store."""

    seen: DemoObservation
    facts: StoreFacts
    entries: Entries
    prover: Prover
    job_columns: Sequence[str] = JOB_COLUMNS

    def job_cells(self, job: CompactionJob) -> tuple[str, ...]:
        """See `Scene`."""
        sources = job.spec.sources.blocks
        return (
            MISSING if sources is None else sources.tenant,
            f"L{job.spec.level}",
            MISSING if sources is None else str(len(sources.blocks)),
            format_bytes(job.spec.estimated_bytes),
        )

    def reader_line(self) -> str:
        """See `Scene`."""
        return reader_line(self.prover)

    def store_line(self) -> str:
        """See `Scene`."""
        return store_line(self.facts, self.entries)

    def store_table(self) -> Table:
        """See `Scene`."""
        return store_table(self.facts, self.entries)


def reader_line(prover: Prover) -> str:
    """How it goes for the reader."""
    wrong = f", {len(prover.different)} DIFFERENT" if prover.different else ""
    last = f", the last one of {prover.last.rows} rows in {prover.last.blocks} blocks" if prover.last else ""
    return f"reader: {prover.proven} instants equal{wrong}{last}"


def store_line(facts: StoreFacts, entries: Entries) -> str:
    """The store in one line."""
    levels = Counter(block.level for block in facts.live)
    shown = " ".join(f"L{level} {levels[level]}" for level in range(TOP_LEVEL + 1))
    return f"{entries.count} blocks registered, {len(facts.live)} live ({shown}), {facts.tombstones} to delete"


def store_table(facts: StoreFacts, entries: Entries) -> Table:
    """By tenant: what was registered, and what a reader opens now."""
    levels = tuple(f"L{level}" for level in range(TOP_LEVEL + 1))
    table = table_of(("TENANT", "REGISTERED", "ROWS", *levels, "LIVE"))
    for tenant in sorted(entries.blocks):
        counts = facts.by_level.get(tenant, {})
        cells = [str(counts.get(level, 0)) for level in range(TOP_LEVEL + 1)]
        rows = str(entries.content[tenant].rows)
        table.add_row(tenant, str(entries.blocks[tenant]), rows, *cells, str(sum(counts.values())))
    return table


def receipts_table(jobs: Sequence[CompactionJob], receipts: Mapping[str, JobReceipt]) -> Table:
    """By level: what its jobs read, what they wrote, and that both hold the same rows."""
    table = table_of(("LEVEL", "RECEIPTS", "BLOCKS", "ROWS", "BEFORE", "AFTER", "FINGERPRINTS BEFORE = AFTER"))
    for level in sorted({job.spec.level for job in jobs}):
        mine = [
            receipts[job.metadata.name] for job in jobs if job.spec.level == level and job.metadata.name in receipts
        ]
        equal = sum(BLOCKS.proves_equal(one) for one in mine)
        table.add_row(
            f"L{level} -> L{level + 1}",
            str(len(mine)),
            f"{sum(len(one.sources) for one in mine)} -> {sum(len(one.outputs) for one in mine)}",
            str(sum(one.records for one in mine)),
            format_bytes(sum(one.bytes_before for one in mine)),
            format_bytes(sum(one.bytes_after for one in mine)),
            Text(f"{equal} of {len(mine)} equal", style="green" if equal == len(mine) else "bold red"),
        )
    return table


def proof_table(entries: Entries, before: StoreFacts, after: StoreFacts, prover: Prover) -> Table:
    """By tenant: rows as registered and as read, and how many blocks a query about it opens."""
    table = table_of(("TENANT", "ROWS", "CONTENT", "REGISTERED", "LIVE AT THE BEGINNING", "LIVE AT THE END"))
    for tenant, content in sorted(entries.content.items()):
        read = prover.last.content.get(tenant) if prover.last is not None else None
        table.add_row(
            tenant,
            str(content.rows),
            Text("equal", style="green") if read == content else Text("DIFFERENT", style="bold red"),
            str(entries.blocks[tenant]),
            str(before.of(tenant)),
            str(after.of(tenant)),
        )
    table.add_section()
    table.add_row("all", "", "", str(entries.count), str(len(before.live)), str(len(after.live)))
    return table
