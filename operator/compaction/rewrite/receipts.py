"""The last word about an attempt: what was committed, what was skipped, and why.

It travels as JSON in an annotation of the job's Lease; receipt and skipped sources are the types of the job's status.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
