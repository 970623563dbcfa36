"""What one sees of a staging area while it runs: its policy and newest jobs, the branches, the reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table
from rich.text import Text

from compaction.api.job.resource import CompactionJob
from compaction.api.text.formatting import format_bytes
from compaction.local.demo.cluster import DemoObservation
from compaction.local.demo.staging.facts import BranchFacts
from compaction.local.demo.staging.proof import StagingStory, branch_of
from compaction.local.demo.staging.prover import StagingProver
from compaction.local.demo.staging.writers import BranchWriter
from compaction.local.demo.view import MISSING, table_of
from compaction.staging.kind import STAGING

JOB_COLUMNS: Final = ("BRANCH", "TOKENS", "SIZE")


@dataclass(frozen=True, slots=True)
class StagingScene:
    """See `Scene`: of a staging area."""

    seen: DemoObservation
    facts: Mapping[str, BranchFacts]
    writers: Mapping[str, BranchWriter]
    prover: StagingProver
    job_columns: Sequence[str] = JOB_COLUMNS

    def job_cells(self, job: CompactionJob) -> tuple[str, ...]:
        """See `Scene`."""
        sources = job.spec.sources.metarange
        tokens = MISSING if sources is None else str(len(sources.tokens))
        return (branch_of(job), tokens, format_bytes(job.spec.estimated_bytes))

    def reader_line(self) -> str:
        """See `Scene`."""
        prover = self.prover
        wrong = f", {len(prover.different)} DIFFERENT" if prover.different else ""
        refused = f", {prover.refused} refused" if prover.refused else ""
        return f"reader: {prover.proven} readings equal{wrong}{refused}, {prover.records} records"

    def store_line(self) -> str:
        """See `Scene`."""
        return "; ".join(f"{name} {_staged(facts)}" for name, facts in self.facts.items())

    def store_table(self) -> Table:
        """See `Scene`."""
        table = table_of(("BRANCH", "CHANGES", "COMMITS", "STAGED", "TOMBSTONES", "SEALED", "COMPACTED BASE"))
        for name, facts in self.facts.items():
            writer = self.writers[name]
            staged, tombstones = str(facts.counts.writes), str(facts.counts.tombstones)
            changes, commits = str(writer.model.acknowledged), str(writer.commits)
            table.add_row(name, changes, commits, staged, tombstones, str(facts.sealed), facts.base[:12] or MISSING)
        return table


def _staged(facts: BranchFacts) -> str:
    counts = facts.counts
    return f"{counts.writes} writes ({counts.tombstones} tombstones) in {facts.sealed + 1} tokens"


def receipts_table(story: StagingStory) -> Table:
    """By branch: tokens that became part of its base, ranges that were written, and that both hold the same."""
    table = table_of(("BRANCH", "RECEIPTS", "TOKENS", "RANGES", "RECORDS", "FINGERPRINTS BEFORE = AFTER"))
    for name in story.writers:
        mine = story.receipts_of(name)
        equal = sum(STAGING.proves_equal(one) for one in mine)
        table.add_row(
            name,
            str(len(mine)),
            str(sum(len(one.sources) for one in mine)),
            str(sum(len(one.outputs) for one in mine)),
            str(sum(one.records for one in mine)),
            Text(f"{equal} of {len(mine)} equal", style="green" if equal == len(mine) else "bold red"),
        )
    return table


def proof_table(story: StagingStory) -> Table:
    """By branch: what it shows by its writer and by the reader, and what a read of it asks."""
    table = table_of(("BRANCH", "RECORDS", "CONTENT", "CHANGES", "COMMITS", "TOMBSTONES", "SEALED TOKENS"))
    for name, writer in story.writers.items():
        before, after, read = story.before[name], story.after[name], story.final.get(name, ())
        equal = bool(read) and not any(one.different for one in read)
        table.add_row(
            name,
            str(writer.model.records),
            Text("equal", style="green") if equal else Text("DIFFERENT", style="bold red"),
            str(writer.model.acknowledged),
            str(writer.commits),
            f"{before.counts.tombstones} -> {after.counts.tombstones}",
            f"{before.sealed} -> {after.sealed}",
        )
    return table
