"""Segment logs as the core knows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from compaction.api.job.job import CompactionJobSpec, JobParameters, JobReceipt, JobSources
from compaction.api.members import member_of
from compaction.api.policy.segment_logs import (
    SEGMENT_LOGS,
    SEGMENT_REWRITE,
    SegmentGroup,
    SegmentLogParameters,
    SegmentLogSources,
)
from compaction.api.policy.store import StoreSpec
from compaction.api.text.printing import format_bytes, plural
from compaction.core.kind import Alarm, Kind, Measure, Nouns, ReasonMessage, StoreVolume, Words, Work, debt_of
from compaction.core.planning.candidates import Candidate, Parts
from compaction.core.planning.debt import ScanResult
from compaction.core.planning.overlap import Selection, first_below, overlap, plain_path, relative_to
from compaction.core.planning.planner import PlannedJob
from compaction.segments import reasons
from compaction.segments.doors import SEGMENT_DOORS
from compaction.segments.reasons import FATES, SegmentReason

if TYPE_CHECKING:
    from compaction.api.policy.policy import CompactionPolicyStatus

MISSING: Final = Measure(
    name="missingLiveEntries",
    metric="missing_live_entries",
    help="Live entries of segment logs that no segment holds: in a write-ahead log, or lost",
    title="Live entries in no segment",
    alarm=Alarm(
        SegmentReason.LIVE_ENTRIES_MISSING,
        "live entry",
        "live entries",
        "in no segment of their logs: in a write-ahead log, or lost",
    ),
)
_PAIRS_KEPT: Final = 4096


class SegmentLogsKind(Kind):
    """See `Kind`. A target is a log, by the path of its directory; its base version is the index of the snapshot."""

    member = SEGMENT_LOGS
    nouns = Nouns(
        source="segment",
        target="log",
        targets="logs",
        gain="to reclaim",
        compacted="rewritten",
        deleted="replaced file",
        ends_quarantine="restore the file",
    )
    doors = SEGMENT_DOORS
    words = Words(
        jobs=reasons.JOB_WORDS,
        policies=reasons.POLICY_WORDS,
        waits=reasons.WAIT_WORDS,
        left_out=reasons.LEFT_OUT_WORDS,
        left_alone=reasons.LEFT_ALONE_WORDS,
    )
    measures = (MISSING,)
    fates = FATES
    overlap_remedy = "make root, include and exclude of the two disjoint"

    # -- planning ------------------------------------------------------------------------------------------------------

    def due(self, store: StoreSpec) -> Callable[[Candidate], bool]:
        """See `Kind`. Bytes AND segments."""
        thresholds = member_of(store.segment_logs).thresholds
        least, fewest = int(thresholds.debt_bytes), thresholds.debt_segments
        return lambda candidate: candidate.debt_bytes >= least and candidate.debt_sources >= fewest

    def parameters(self, store: StoreSpec) -> JobParameters:
        """See `Kind`."""
        logs = member_of(store.segment_logs)
        parameters = SegmentLogParameters(
            max_entries_per_segment=logs.max_entries_per_segment,
            max_bytes_per_segment=int(logs.max_bytes_per_segment),
            when_indexes_missing=logs.when_indexes_missing,
            ownership=logs.ownership,
        )
        return JobParameters(segment_log=parameters)

    def work(self, job: PlannedJob, store: StoreSpec) -> Work:
        """See `Kind`."""
        sources = SegmentLogSources(
            path=job.target,
            snapshot_index=int(job.base_version or 0),
            groups=tuple(SegmentGroup(segments=group.sources) for group in job.groups),
            obsolete=tuple(item.name for item in job.obsolete),
        )
        return Work(SEGMENT_REWRITE, JobSources(segment_log=sources), self.parameters(store))

    def parts(self, spec: CompactionJobSpec) -> Parts:
        """See `Kind`."""
        log = member_of(spec.sources.segment_log)
        return Parts(str(log.snapshot_index), tuple(group.segments for group in log.groups), log.obsolete)

    def tenant(self, spec: CompactionJobSpec, store: StoreSpec) -> str:
        """See `Kind`."""
        return tenant_of(store.location, spec.target)

    # -- which store ---------------------------------------------------------------------------------------------------

    def stranger(self, spec: CompactionJobSpec, store: StoreSpec, policy: str) -> str:
        """See `Kind`."""
        path, root = member_of(spec.sources.segment_log).path, member_of(store.segment_logs).root
        return "" if relative_to(root, path) is not None else f"{path} is not below {root}, the root of policy {policy}"

    def places(self, store: StoreSpec, namespace: str) -> tuple[str, ...]:
        """See `Kind`."""
        return (f"logs:{plain_path(member_of(store.segment_logs).root)}".rstrip("/"),)

    def overlap(self, spec: StoreSpec, other: StoreSpec, *, same_namespace: bool) -> bool:
        """See `Kind`. The operator reads both where it runs, so the same path is the same directory whatever volumes
        workers mount.
        """
        outside, inside = member_of(spec.segment_logs), member_of(other.segment_logs)
        below = relative_to(outside.root, inside.root)
        if below is None:
            outside, inside = inside, outside
            below = relative_to(outside.root, inside.root)
        if below is None:
            return False
        return _overlap(outside.include, outside.exclude, inside.include, inside.exclude, below)

    def volume(self, store: StoreSpec) -> StoreVolume | None:
        """See `Kind`."""
        logs = member_of(store.segment_logs)
        if logs.volume is None:
            return None
        return StoreVolume(logs.root, logs.volume.claim_name, logs.volume.sub_path)

    # -- words ---------------------------------------------------------------------------------------------------------

    def nothing_found(self, store: StoreSpec, scan: ScanResult) -> ReasonMessage | None:
        """See `Kind`."""
        if scan.targets:
            return None
        logs = member_of(store.segment_logs)
        without = f" without {', '.join(logs.exclude)}" if logs.exclude else ""
        found = f"nothing below {logs.root} that matches {', '.join(logs.include)}{without} holds segment files"
        message = f"{found}: check root, include and exclude, if there should be logs"
        return ReasonMessage(SegmentReason.NO_LOGS_FOUND, message)

    def does(self, spec: CompactionJobSpec) -> str:
        """See `Kind`."""
        sources = member_of(spec.sources.segment_log)
        segments = sum(len(group.segments) for group in sources.groups)
        parts = []
        if sources.groups:
            cost = f", copying {format_bytes(spec.estimated_bytes)}" if spec.estimated_bytes else ""
            parts.append(f"rewrites {plural(segments, 'segment')} into {len(sources.groups)}{cost}")
        if sources.obsolete:
            parts.append(f"marks {plural(len(sources.obsolete), 'segment')} for deletion")
        if sources.clump:
            parts.append(f"re-writes runs of fewer than {sources.clump.shorter_than} live entries at the head")
        return f"The job {' and '.join(parts)}, in {sources.path}."

    def did(self, receipt: JobReceipt) -> str:
        """See `Kind`."""
        return f"{plural(receipt.groups_committed, 'group')} committed"

    def became(self, receipt: JobReceipt) -> str:
        """See `Kind`."""
        if receipt.clump is not None:
            ranges = f"{receipt.clump.ranges_before} live ranges became {receipt.clump.ranges_after}"
            return f"{receipt.clump.entries_moved} live entries were re-written at the head, {ranges}."
        before, after = format_bytes(receipt.bytes_before), format_bytes(receipt.bytes_after)
        return f"{before} became {after}, {receipt.records} entries copied."

    def debt(self, status: CompactionPolicyStatus) -> str:
        """See `Kind`."""
        debt = debt_of(status)
        where = f"{plural(debt.sources, 'segment')} of {plural(debt.targets, 'log')}"
        return f"{format_bytes(debt.bytes)} could be reclaimed by {where}"

    def warnings(self, status: CompactionPolicyStatus) -> tuple[str, ...]:
        """See `Kind`."""
        missing = _missing(status)
        if not missing:
            return ()
        entries = plural(missing, "live entry", "live entries")
        return (
            f"{entries} are in no segment: in a write-ahead log, or lost. Look into each log: "
            "compactor segments inspect DIR --verify",
        )

    def rows(self, status: CompactionPolicyStatus) -> tuple[tuple[str, str], ...]:
        """See `Kind`."""
        missing = _missing(status)
        if not missing:
            return ()
        return (("Missing", f"{plural(missing, 'live entry', 'live entries')} in no segment of their logs"),)


def tenant_of(root: str, path: str) -> str:
    """The tenant of a log: the first directory below the policy's root, or "" for logs directly in it (or elsewhere).

    Logs of one owner share a directory in every layout seen (docs/design/segment-commit.md#a-running-owner); a policy
    over several such directories serves them in turn, so that one busy owner does not keep the others waiting.
    """
    return first_below(root, path)


def _missing(status: CompactionPolicyStatus) -> int:
    return int(status.debt.measure(MISSING.name)) if status.debt is not None else 0


@lru_cache(maxsize=_PAIRS_KEPT)
def _overlap(
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    inner_include: tuple[str, ...],
    inner_exclude: tuple[str, ...],
    below: str,
) -> bool:
    names = below.split("/") if below else []
    return overlap(Selection.of(include, exclude), Selection.of(inner_include, inner_exclude, below=names))


SEGMENTS: Final = SegmentLogsKind()
