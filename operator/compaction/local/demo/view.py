"""What one sees while it runs: a table that redraws itself on a terminal, a line per change elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TypeVar

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from compaction.api.enums import ConditionType, JobState
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.formatting import format_age
from compaction.local.demo.check import Check

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


POLICY_COLUMNS: Final = ("STORE", "READY", "DEBT", "OLDEST", "ACTIVE", "QUEUED", "FAULTY", "WORKERS", "ETA")


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


def policy_table(policy: CompactionPolicy | None) -> Table:
    table = table_of(POLICY_COLUMNS)
    table.add_row(*policy_cells(policy))
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
