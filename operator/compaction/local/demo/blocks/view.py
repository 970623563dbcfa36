"""What one sees of a block store while it runs: its policy and newest jobs, blocks by tenant and level, the reader."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from compaction.api.enums import JobState
from compaction.api.job.resource import CompactionJob, JobReceipt
from compaction.api.text.formatting import format_age, format_bytes
from compaction.kinds.blocks.kind import BLOCKS
from compaction.local.demo.blocks.facts import StoreFacts
from compaction.local.demo.blocks.ledger import Entries
from compaction.local.demo.blocks.prover import Prover
from compaction.local.demo.blocks.scenario import TOP_LEVEL
from compaction.local.demo.cluster import DemoObservation
from compaction.local.demo.view import (
    MISSING,
    POLICY_COLUMNS,
    STYLES,
    live_or_plain,
    policy_cells,
    policy_table,
    table_of,
)

JOB_COLUMNS: Final = ("JOB", "TENANT", "LEVEL", "BLOCKS", "SIZE", "STATE", "PROGRESS", "WORKER", "TOKEN")
SHOWN_JOBS: Final = 12
PLAIN_SECONDS: Final = 3.0
"""So often at most a line about the store, which changes all the time."""


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is seen at one moment."""

    seen: DemoObservation
    facts: StoreFacts
    entries: Entries
    prover: Prover


class BlockDemoView(Protocol):
    """Shows one scene after the other, and what is said in between."""

    def show(self, scene: Scene) -> None: ...

    def say(self, line: str) -> None: ...


def watching(console: Console) -> AbstractContextManager[BlockDemoView]:
    """See `live_or_plain`."""
    return live_or_plain(console, LiveTables, BlockPlainLines)


class LiveTables:
    """Everything, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._started = time.monotonic()

    def show(self, scene: Scene) -> None:
        age = format_age(time.monotonic() - self._started)
        caption = f"{age}   leader: {scene.seen.leader or MISSING}   {reader_line(scene.prover)}"
        parts: list[RenderableType] = [
            Text(caption, style="dim"),
            policy_table(scene.seen.policy),
            store_table(scene.facts, scene.entries),
            jobs_table(newest(scene.seen.jobs)),
        ]
        self._live.update(Group(*parts))

    def say(self, line: str) -> None:
        self._live.console.print(f"> {line}", style="dim", highlight=False)


class BlockPlainLines:
    """A line for each change of a job's state, and of the numbers of policy and store, the latter now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._told = 0.0
        self._last: tuple[str, ...] = ()
        self._states: dict[str, JobState] = {}

    def show(self, scene: Scene) -> None:
        for job in scene.seen.jobs:
            if self._states.get(job.metadata.name) is not job.status.state:
                self._states[job.metadata.name] = job.status.state
                self.say(f"job {' '.join(cell for cell in job_cells(job) if cell != MISSING)}")
        cells = policy_cells(scene.seen.policy)
        told = tuple(cell for name, cell in zip(POLICY_COLUMNS, cells, strict=True) if name != "OLDEST")
        if told != self._last and time.monotonic() - self._told > PLAIN_SECONDS:
            self._last, self._told = told, time.monotonic()
            pairs = zip(POLICY_COLUMNS, cells, strict=True)
            self.say("policy " + "  ".join(f"{name.lower()} {cell}" for name, cell in pairs))
            self.say(f"store  {store_line(scene.facts, scene.entries)}; {reader_line(scene.prover)}")

    def say(self, line: str) -> None:
        self._console.print(f"{int(time.monotonic() - self._started):4d} s  {line}", highlight=False, soft_wrap=True)


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


def newest(jobs: Sequence[CompactionJob]) -> Sequence[CompactionJob]:
    """As many as fit: those that run or wait, and the newest of the others, by age."""
    running = [job for job in jobs if job.status.state not in (JobState.SUCCEEDED, JobState.FAULTY)][:SHOWN_JOBS]
    ended = [job for job in jobs if job.status.state in (JobState.SUCCEEDED, JobState.FAULTY)]
    return [*ended[max(0, len(ended) + len(running) - SHOWN_JOBS) :], *running]


def job_cells(job: CompactionJob) -> tuple[str, ...]:
    status, sources = job.status, job.spec.sources.blocks
    return (
        job.metadata.name,
        MISSING if sources is None else sources.tenant,
        f"L{job.spec.level}",
        MISSING if sources is None else str(len(sources.blocks)),
        format_bytes(job.spec.estimated_bytes),
        status.state.value,
        status.progress or MISSING,
        status.worker or MISSING,
        str(status.fencing_token) if status.fencing_token else MISSING,
    )


def jobs_table(jobs: Sequence[CompactionJob]) -> Table:
    table = table_of(JOB_COLUMNS)
    for job in jobs:
        cells: list[RenderableType] = list(job_cells(job))
        cells[5] = Text(job.status.state.value, style=STYLES[job.status.state])
        if job.status.state is JobState.IN_PROGRESS:
            cells[6] = ProgressBar(total=100, completed=job.status.progress_percent or 0, width=10)
        table.add_row(*cells)
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
