"""What one sees while it runs: a table that redraws itself on a terminal, a line per change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from compaction.api.enums import ConditionType, JobState
from compaction.api.job.resource import CompactionJob
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.formatting import format_age, format_bytes
from compaction.local.demo.check import Check
from compaction.local.demo.cluster import DemoObservation

STYLES: Final = {
    JobState.UNASSIGNED: "dim",
    JobState.IN_PROGRESS: "cyan",
    JobState.ABANDONED: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAULTY: "red",
}
MISSING: Final = "-"


T = TypeVar("T")


@contextmanager
def live_or_plain(console: Console, live: Callable[[Live], T], plain: Callable[[Console], T]) -> Iterator[T]:
    """The view for this console: redrawn in place on a terminal, plain lines in a pipe or a log."""
    if not console.is_terminal:
        yield plain(console)
        return
    with Live(console=console, refresh_per_second=4) as display:
        yield live(display)


class DemoView(Protocol):
    """Shows one observation after the other."""

    def show(self, seen: DemoObservation) -> None: ...


def watching(console: Console) -> AbstractContextManager[DemoView]:
    """See `live_or_plain`."""
    return live_or_plain(console, LiveTable, PlainLines)


class LiveTable:
    """The policy and its jobs, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._started = time.monotonic()

    def show(self, seen: DemoObservation) -> None:
        caption = f"{format_age(time.monotonic() - self._started)}   leader: {seen.leader or MISSING}"
        self._live.update(Group(Text(caption, style="dim"), policy_table(seen.policy), jobs_table(seen.jobs)))


class PlainLines:
    """One line when the numbers of the policy changed, and one for each change of a job's state."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._last: tuple[str, ...] = ()
        self._states: dict[str, JobState] = {}

    def show(self, seen: DemoObservation) -> None:
        for job in seen.jobs:
            if self._states.get(job.metadata.name) is not job.status.state:
                self._states[job.metadata.name] = job.status.state
                self._say(f"job {' '.join(cell for cell in job_cells(job) if cell != MISSING)}")
        cells = policy_cells(seen.policy)
        # An age grows by itself: alone it is no news.
        told = tuple(cell for name, cell in zip(POLICY_COLUMNS, cells, strict=True) if name != "OLDEST")
        if told != self._last:
            self._last = told
            pairs = zip(POLICY_COLUMNS, cells, strict=True)
            self._say("policy " + "  ".join(f"{name.lower()} {cell}" for name, cell in pairs))

    def _say(self, line: str) -> None:
        self._console.print(f"{int(time.monotonic() - self._started):4d} s  {line}", highlight=False, soft_wrap=True)


POLICY_COLUMNS: Final = ("STORE", "READY", "DEBT", "OLDEST", "ACTIVE", "QUEUED", "FAULTY", "WORKERS", "ETA")
JOB_COLUMNS: Final = ("JOB", "TARGET", "SIZE", "STATE", "PROGRESS", "WORKER", "TOKEN", "RECLAIMED")


def policy_cells(policy: CompactionPolicy | None) -> tuple[str, ...]:
    if policy is None:
        return (MISSING,) * len(POLICY_COLUMNS)
    status = policy.status
    ready = next((item for item in status.conditions if item.type == ConditionType.READY), None)
    return (
        status.store or MISSING,
        MISSING if ready is None else f"{ready.status} ({ready.reason})",
        MISSING if status.debt is None else status.debt.summary,
        _age(status.oldest_debt_at),
        str(status.active),
        str(status.queued),
        str(status.faulty),
        str(status.workers),
        status.eta or MISSING,
    )


def job_cells(job: CompactionJob) -> tuple[str, ...]:
    status = job.status
    return (
        job.metadata.name,
        job.spec.target.rpartition("/")[2] or MISSING,
        format_bytes(job.spec.estimated_bytes),
        status.state.value,
        status.progress or MISSING,
        status.worker or MISSING,
        str(status.fencing_token) if status.fencing_token else MISSING,
        MISSING if status.receipt is None else format_bytes(status.receipt.bytes_reclaimed),
    )


def policy_table(policy: CompactionPolicy | None) -> Table:
    table = table_of(POLICY_COLUMNS)
    table.add_row(*policy_cells(policy))
    return table


def jobs_table(jobs: Sequence[CompactionJob]) -> Table:
    table = table_of(JOB_COLUMNS)
    for job in jobs:
        cells: list[RenderableType] = list(job_cells(job))
        cells[3] = Text(job.status.state.value, style=STYLES[job.status.state])
        if job.status.state is JobState.IN_PROGRESS:
            cells[4] = ProgressBar(total=100, completed=job.status.progress_percent or 0, width=10)
        table.add_row(*cells)
    return table


def checks_table(checks: Sequence[Check]) -> Table:
    table = table_of(("", "CLAIM", "FACT"))
    for check in checks:
        table.add_row(
            Text("yes", style="green") if check.holds else Text("NO", style="bold red"), check.claim, check.fact
        )
    return table


def table_of(columns: Sequence[str]) -> Table:
    """An empty table, as all tables of the demos look."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _age(moment: datetime | None) -> str:
    return MISSING if moment is None else format_age((datetime.now(UTC) - moment).total_seconds())
