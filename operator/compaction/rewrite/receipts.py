"""The last word about an attempt: what was committed, what was skipped, and why.

A report travels as JSON in an annotation of the job's Lease, a receipt becomes `status.receipt` of the job. Both are plain
data; the wire form is camelCase like the resources.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


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
    """A snapshot without its `indexes` file, and the policy says to refuse."""
    STORE_LOCKED = "StoreLocked"
    """Another process held the log's lock for too long."""
    VERIFICATION_FAILED = "VerificationFailed"
    """The rewritten group did not read back equal to its sources; it was thrown away."""
    WORKER_STOPPED = "WorkerStopped"
    """The worker was asked to stop before the job was done."""
    ENGINE_LOST = "EngineLost"
    """Spark went away under the job."""
    INTERNAL_ERROR = "InternalError"
    """A defect of ours; the worker's log has the traceback."""


@dataclass(frozen=True, slots=True)
class SkippedSource:
    """A source that was left as it is, and the exact place that is damaged (index and byte offset where known)."""

    segment: str
    reason: str
    message: str
    index: int | None = None
    offset: int | None = None

    def to_wire(self) -> dict[str, Any]:
        """As in `status.skipped` of a job."""
        named = {"segment": self.segment, "index": self.index, "offset": self.offset}
        return {k: v for k, v in named.items() if v is not None} | {"reason": self.reason, "message": self.message}


@dataclass(frozen=True, slots=True)
class JobReceipt:
    """Proof of what a job committed, over all its attempts (bytes, epoch seconds for `committed_at`).

    The fingerprints are those of the groups' live entries before and after the rewrite, folded in group order.
    """

    token: int
    worker: str
    groups: int
    groups_committed: int
    sources: tuple[str, ...]
    outputs: tuple[str, ...]
    unreferenced: tuple[str, ...]
    entries: int
    bytes_before: int
    bytes_after: int
    bytes_reclaimed: int
    fingerprint_before: str
    fingerprint_after: str
    seconds: float
    committed_at: str

    def to_wire(self) -> dict[str, Any]:
        """As in `status.receipt` of a job."""
        return {
            "token": self.token,
            "worker": self.worker,
            "groups": self.groups,
            "groupsCommitted": self.groups_committed,
            "sources": list(self.sources),
            "outputs": list(self.outputs),
            "unreferenced": list(self.unreferenced),
            "entries": self.entries,
            "bytesBefore": self.bytes_before,
            "bytesAfter": self.bytes_after,
            "bytesReclaimed": self.bytes_reclaimed,
            "fingerprintBefore": self.fingerprint_before,
            "fingerprintAfter": self.fingerprint_after,
            "seconds": round(self.seconds, 3),
            "committedAt": self.committed_at,
        }


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

    def uncharged(self) -> JobReport:
        """The same report, not counted against the job."""
        return replace(self, charged=False)

    def to_json(self) -> str:
        """The value of the annotation `compaction.dev/report`."""
        wire: dict[str, Any] = {
            "token": self.token,
            "outcome": self.outcome.value,
            "reason": self.reason.value,
            "message": self.message,
            "charged": self.charged,
            "skipped": [source.to_wire() for source in self.skipped],
        }
        if self.receipt is not None:
            wire["receipt"] = self.receipt.to_wire()
        return json.dumps(wire, separators=(",", ":"))
