"""The last word about an attempt: what was committed, what was skipped, and why.

It travels as JSON in an annotation of the job's Lease; receipt and skipped sources are the types of the job's status.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from compaction.api.job import JobReceipt, SkippedSource
from compaction.api.text import MESSAGE_LIMIT, cut


class Outcome(StrEnum):
    """How an attempt ended, in the worker's own judgement."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"


class ReportReason(StrEnum):
    """Why an attempt did not (wholly) succeed."""

    COMPLETED = "Completed"
    SOURCE_CORRUPT = "SourceCorrupt"
    """A source holds damaged data, or lacks a live entry. The other groups of the job were committed."""
    SOURCES_CHANGED = "SourcesChanged"
    """The log is no longer what the plan saw (sources replaced, gone, or grown): plan again."""
    STORE_UNREADABLE = "StoreUnreadable"
    """The log's directory could not be read or written (permission, no space, input/output error)."""
    LIVE_SET_UNKNOWN = "LiveSetUnknown"
    """A snapshot without a (readable) `indexes` file, and the policy says to refuse."""
    STORE_LOCKED = "StoreLocked"
    """Another process held the log's lock for too long."""
    VERIFICATION_FAILED = "VerificationFailed"
    """The rewritten group did not read back equal to its sources; it was thrown away."""
    STALE_TOKEN = "StaleToken"
    """The store knows a newer attempt of this job: this one was fenced off and committed nothing more."""
    INVALID_JOB = "InvalidJob"
    """The job's spec cannot be carried out by this worker."""
    LEASE_EXPIRED = "LeaseExpired"
    """The worker could not renew the job's lease in time and stopped before its next commit."""
    WORKER_STOPPED = "WorkerStopped"
    """The worker was asked to stop before the job was done."""
    ENGINE_LOST = "EngineLost"
    """Spark went away under the job."""
    INTERNAL_ERROR = "InternalError"
    """A defect of ours; the worker's log has the traceback."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """The worker's last word about an attempt. `charged` says whether a failure counts against the job."""

    token: int
    outcome: Outcome
    reason: ReportReason
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
