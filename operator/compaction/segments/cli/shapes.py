"""The output forms of plans, receipts, recoveries and sweeps of segment logs: columns for tables, objects for json and
yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from compaction.api.text.printing import format_bytes
from compaction.cli.lazy import describe
from compaction.cli.output import OutputColumn, optional, optional_bytes
from compaction.segments import sweep
from compaction.segments.commit import recovery
from compaction.segments.commit.evidence import Stays
from compaction.segments.planning.plan import LogPlan
from compaction.segments.reading.view import LogState
from compaction.segments.rewriting.compact import LogCompaction

PLAN_COLUMNS = (
    OutputColumn("segment", "segment"),
    OutputColumn("action", "action"),
    OutputColumn("into", "into", optional),
    OutputColumn("reason", "reason", optional),
    OutputColumn("detail", "detail", optional),
)
RECEIPT_COLUMNS = (
    OutputColumn("output", "output"),
    OutputColumn("replaced", "replaced", lambda names: str(len(names)), right=True),
    OutputColumn("entries", "entries", right=True),
    OutputColumn("bytesBefore", "before", optional_bytes, right=True),
    OutputColumn("bytesAfter", "after", optional_bytes, right=True),
    OutputColumn("bytesReclaimed", "reclaimed", optional_bytes, right=True),
    OutputColumn("fingerprintBefore", "content before", lambda text: text[:12]),
    OutputColumn("fingerprintAfter", "content after", lambda text: text[:12]),
    OutputColumn("seconds", "seconds", lambda seconds: f"{seconds:.3f}", right=True),
)
NAME_COLUMNS = (
    OutputColumn("segment", "segment"),
    OutputColumn("bytes", "bytes", optional_bytes, right=True),
    OutputColumn("reason", "reason"),
)

_STAYS = {
    Stays.CHANGED: "it is no longer the file that the commit read",
    Stays.NOT_COVERED: "the output does not provably hold what must survive of it",
    Stays.HIDES_OUTPUT: "a segment below it hides the output",
}


def plan_rows(planned: LogPlan) -> list[dict[str, Any]]:
    """One row per segment, in name order."""
    rows: list[dict[str, Any]] = []
    for group in planned.groups:
        into = group.sources[0]
        detail = f"{group.live_entries} entries, {format_bytes(group.live_bytes)} live in the group"
        rows += [{"segment": name, "action": "rewrite", "into": into, "detail": detail} for name in group.sources]
        rows += [{"segment": name, "action": "replace", "into": into, "reason": "Dead"} for name in group.carried]
    rows += [{"segment": u.name, "action": "delete", "reason": u.reason.value} for u in planned.unreferenced]
    rows += [
        {"segment": left.name, "action": "keep", "reason": left.reason.value, "detail": left.detail}
        for left in planned.left_alone
    ]
    return sorted(rows, key=lambda row: str(row["segment"]))


def plan_object(log: LogState, planned: LogPlan) -> dict[str, Any]:
    """The whole plan, for machines."""
    return {
        "log": str(log.directory),
        "snapshotIndex": log.snapshot_index,
        "groups": [
            {
                "sources": list(group.sources),
                "carried": list(group.carried),
                "liveEntries": group.live_entries,
                "liveBytes": group.live_bytes,
                "sourceBytes": group.source_bytes,
                "outputBytes": group.output_bytes,
                "reclaimableBytes": group.reclaimable_bytes,
            }
            for group in planned.groups
        ],
        "unreferenced": [{"segment": u.name, "bytes": u.bytes, "reason": u.reason.value} for u in planned.unreferenced],
        "leftAlone": [
            {"segment": left.name, "reason": left.reason.value, "detail": left.detail} for left in planned.left_alone
        ],
        "liveEntries": planned.live_entries,
        "liveBytes": planned.live_bytes,
        "totalBytes": planned.total_bytes,
        "debtBytes": planned.debt_bytes,
        "debtSegments": planned.debt_segments,
    }


def recovery_object(done: recovery.RecoveryReport) -> dict[str, list[Any]]:
    """Return the actions of a recovery, by kind."""
    return {
        "finished": list(done.finished),
        "discarded": list(done.discarded),
        "removed": list(done.removed),
        "raCompactions": [{"leader": r.leader, "outcome": r.outcome.value} for r in done.ra],
        "stayed": [{"segment": s.segment, "reason": s.reason.value, "commit": s.commit} for s in done.stayed],
        "kept": [{"name": k.name, "reason": k.reason} for k in done.kept],
    }


def outlook_words(outlook: Iterable[recovery.RecoveryReport]) -> list[str]:
    """Return the actions that a recovery would take: the end of a sentence for each half-done commit."""
    said = []
    for item in outlook:
        said += [f"it undoes {group}" for group in item.discarded]
        stays = f", but {item.stayed[0].segment} stays: {_STAYS[item.stayed[0].reason]}" if item.stayed else ""
        said += [f"it finishes {group}{stays}" for group in item.finished]
        said += [f"it keeps {kept.name}: {kept.reason}" for kept in item.kept]
    return said


def swept_object(deleted: Sequence[sweep.Deleted], blocked: Sequence[sweep.Blocked], waiting: int) -> dict[str, Any]:
    """The outcome of a sweep, or what it would be: names deleted and kept, and how many wait for their grace."""
    return {
        "deleted": [item.name for item in deleted],
        "bytesReclaimed": sum(item.bytes for item in deleted),
        "blocked": [{"name": item.name, "reason": item.reason} for item in blocked],
        "waiting": waiting,
    }


def compact_object(directory: Path, done: LogCompaction) -> dict[str, Any]:
    """The outcome of one run: receipts, what was marked, what failed."""
    return {
        "log": str(directory),
        "job": done.job,
        "recovered": recovery_object(done.recovered),
        "receipts": [
            {
                "token": r.token,
                "output": r.output,
                "sources": list(r.sources),
                "replaced": list(r.linked),
                "entries": r.entries,
                "bytesBefore": r.bytes_before,
                "bytesAfter": r.bytes_after,
                "bytesReclaimed": r.bytes_reclaimed,
                "fingerprintBefore": r.fingerprint_before,
                "fingerprintAfter": r.fingerprint_after,
                "seconds": round(r.seconds, 6),
            }
            for r in done.receipts
        ],
        "unreferenced": [
            {"segment": t.name, "bytes": t.bytes, "reason": t.reason.value if t.reason else None} for t in done.marked
        ],
        "failures": [describe(failure) for failure in done.failures],
        "bytesReclaimed": sum(r.bytes_reclaimed for r in done.receipts),
    }
