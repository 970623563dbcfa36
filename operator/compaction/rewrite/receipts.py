"""The last word about an attempt: what was committed, what was skipped, and why.

It travels as JSON in an annotation of the job's Lease; receipt and skipped sources are the types of the job's status.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from compaction.api.enums import JobReason
from compaction.api.job import JobReceipt, SkippedSource
from compaction.api.text import MESSAGE_LIMIT, cut


class Outcome(StrEnum):
    """How an attempt ended, in the worker's own judgement."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"


@dataclass(frozen=True, slots=True)
class JobReport:
    """The worker's last word about an attempt. `charged` says whether a failure counts against the job."""

    token: int
    outcome: Outcome
    reason: JobReason
    message: str
    charged: bool = True
    skipped: tuple[SkippedSource, ...] = ()
    receipt: JobReceipt | None = None

    def to_json(self) -> str:
        """The value of the annotation `compaction.dev/report`; `reconcile.reports.parse_report` reads it."""
        wire: dict[str, Any] = {
            "token": self.token,
            "outcome": self.outcome.value,
            "reason": self.reason.value,
            "message": cut(self.message, MESSAGE_LIMIT),
            "charged": self.charged,
            "skipped": [source.to_object() for source in self.skipped],
        }
        if self.receipt is not None:
            wire["receipt"] = self.receipt.to_object()
        return json.dumps(wire, separators=(",", ":"))


class Failure(Protocol):
    """A part of a job that was not done, and why."""

    @property
    def reason(self) -> JobReason: ...

    @property
    def message(self) -> str: ...


F = TypeVar("F", bound=Failure)


def verdict(failures: Sequence[F], *, worst_first: Sequence[JobReason]) -> tuple[F, Outcome, str]:
    """What several failures (at least one) come to: the worst of them, how the attempt ended, and the message."""
    worst = min(failures, key=lambda failure: worst_first.index(failure.reason))
    others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    outcome = Outcome.SKIPPED if worst.reason is JobReason.SOURCES_CHANGED else Outcome.FAILED
    return worst, outcome, worst.message + others
