"""What several failures of one attempt come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from compaction.api.enums import JobReason
from compaction.api.job.report import ReportOutcome


class Failure(Protocol):
    """A part of a job that was not done, and why."""

    @property
    def reason(self) -> str: ...

    @property
    def message(self) -> str: ...


F = TypeVar("F", bound=Failure)


def verdict(failures: Sequence[F], *, worst_first: Sequence[str]) -> tuple[F, ReportOutcome, str]:
    """What several failures (at least one) come to: the worst of them, how the attempt ended, and the message."""
    worst = min(failures, key=lambda failure: worst_first.index(failure.reason))
    others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    outcome = ReportOutcome.SKIPPED if worst.reason == JobReason.SOURCES_CHANGED else ReportOutcome.FAILED
    return worst, outcome, worst.message + others
